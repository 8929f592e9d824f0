"""Datagram parts of a :class:`~rnic.cm.cmid.CMID` of ``RDMA_PS_UDP``: destinations and multicast groups."""

from __future__ import annotations

from errno import EINVAL
from typing import TYPE_CHECKING

from rnic.cm import cm_enums as ce
from rnic.spec.errors import VerbsError
from rnic.verbs.attrs import GID, AHAttr, GlobalRoute

if TYPE_CHECKING:
    from rnic.cm.cmid_events import AddrInfo, CMEvent

HOP_LIMIT = 64
_SAYS_WHERE = frozenset({ce.RDMA_CM_EVENT_ESTABLISHED, ce.RDMA_CM_EVENT_MULTICAST_JOIN})


class UDParam:
    """The destination of datagrams, from an event: the peer that answered, or the group that was joined.

    Args:
        cm_event: ``RDMA_CM_EVENT_ESTABLISHED`` or ``RDMA_CM_EVENT_MULTICAST_JOIN`` of a CMID of ``RDMA_PS_UDP``.

    Attributes:
        ah_attr: what an :class:`rnic.AH` is made of.
        qp_num: queue pair number of the peer; 0xFFFFFF of a group.
        qkey: its Q_Key.

    Raises:
        VerbsError: EINVAL for another event.
    """

    def __init__(self, cm_event: CMEvent) -> None:
        event, about = cm_event.event, cm_event.about
        if cm_event.event_type not in _SAYS_WHERE or about is None or not about.datagrams:
            raise VerbsError(
                EINVAL,
                f"{cm_event.event_str()} has no peer address: use RDMA_CM_EVENT_ESTABLISHED or"
                " RDMA_CM_EVENT_MULTICAST_JOIN of a CMID of RDMA_PS_UDP",
            )
        gid = GID(event.fields["dst"].to_bytes(16, "little"))
        own = about.context.gid_index
        route = GlobalRoute(gid, own, hop_limit=HOP_LIMIT, traffic_class=event.fields["tos"])
        self.ah_attr = AHAttr(route, udp_dport=about.context.udp_port)
        self.qp_num = event.fields["qpn"]
        self.qkey = event.fields["qkey"]


class JoinMCAttrEx:
    """Address and join state of a multicast membership.

    Args:
        addr: the group's address, as ``src`` or ``dst``.
        comp_mask: mask of the valid attributes; kept.
        join_flags: ``RDMA_MC_JOIN_FLAG_FULLMEMBER`` or ``_SENDONLY_FULLMEMBER``, which receives nothing.
    """

    def __init__(
        self,
        addr: AddrInfo | None = None,
        comp_mask: int = 0,
        join_flags: int = ce.RDMA_MC_JOIN_FLAG_FULLMEMBER,
    ) -> None:
        if join_flags not in (ce.RDMA_MC_JOIN_FLAG_FULLMEMBER, ce.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER):
            raise VerbsError(
                EINVAL,
                f"join_flags={join_flags}: use RDMA_MC_JOIN_FLAG_FULLMEMBER or RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER",
            )
        self.addr = addr
        self.comp_mask = comp_mask
        self.join_flags = join_flags


def group_of(addr: AddrInfo | None) -> GID:
    """Return the multicast group that an address names.

    Raises:
        VerbsError: EINVAL if there is no address, or it is not a multicast address.
    """
    place = None if addr is None else addr.dst or addr.src
    if place is None:
        raise VerbsError(EINVAL, "join_multicast: give the group's address, AddrInfo(dst=...)")
    gid = GID(place.gid)
    first = gid.address[0]
    if not (first >> 4 == 0xE if len(gid.address) == 4 else first == 0xFF):
        raise VerbsError(EINVAL, f"{place.text} is not a multicast address: use one of 224.0.0.0/4 or ff00::/8")
    return gid


__all__ = ["HOP_LIMIT", "JoinMCAttrEx", "UDParam", "group_of"]
