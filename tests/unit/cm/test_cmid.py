"""pyverbs' CMID and AddrInfo over the UDP loopback: as its own suite works with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EINVAL, ENOTCONN, EPROTONOSUPPORT
from typing import Any

import pytest

import rnic
from rnic import AH, CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam, JoinMCAttrEx, UDParam
from rnic.cm import cm_enums as ce
from rnic.runtime.wait import wait_readable
from rnic.testing import own_network
from rnic.verbs import enums as e

NET = own_network()
HERE, THERE = f"{NET}.83", f"{NET}.84"
PORT = 7471
BYTES = 1024


def passive(**more: Any) -> AddrInfo:
    return AddrInfo(src=HERE, src_service=str(PORT), port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE, **more)


def active(**more: Any) -> AddrInfo:
    return AddrInfo(src=THERE, dst=HERE, dst_service=str(PORT), port_space=ce.RDMA_PS_TCP, **more)


def queue_pair() -> rnic.QPInitAttr:
    return rnic.QPInitAttr(qp_type=e.IBV_QPT_RC, cap=rnic.QPCap(max_recv_wr=4))


@contextmanager
def beside(act: Callable[[], Any]) -> Iterator[list[Any]]:
    """Something that a thread does meanwhile; what came of it is there afterwards."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(act())
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        thread.join(10)
        assert not thread.is_alive()


def test_messages_both_ways_between_two_that_wait() -> None:
    with CMID(passive(), queue_pair()) as listening:
        listening.listen()

        def serve() -> bytes:
            with listening.get_request() as child:
                mr = child.reg_msgs(BYTES)
                child.post_recv(mr)
                child.accept()
                wc = child.get_recv_comp()
                said = mr.read(wc.byte_len, 0)
                mr.write(said[::-1], len(said))
                child.post_send(mr, length=len(said))
                assert child.get_send_comp().status == e.IBV_WC_SUCCESS
                assert child.query_qp(0)[1].qp_type == e.IBV_QPT_RC
                return said

        with beside(serve) as found, CMID(active(), queue_pair()) as peer:
            mr = peer.reg_msgs(BYTES)
            peer.connect()
            peer.post_recv(peer_in := peer.reg_msgs(BYTES))
            mr.write(b"hello", 5)
            peer.post_send(mr, length=5)
            assert peer.get_send_comp().status == e.IBV_WC_SUCCESS
            assert peer.get_recv_comp().byte_len == 5
            assert peer_in.read(5, 0) == b"olleh"
            peer.disconnect()
        assert found == [b"hello"]


@pytest.mark.parametrize("what", ["read", "write"])
def test_remote_memory(what: str) -> None:
    with CMID(passive(), queue_pair()) as listening:
        listening.listen()
        told: list[Any] = []
        ready, done = threading.Event(), threading.Event()

        def serve() -> bytes:
            with listening.get_request() as child:
                mr = (child.reg_read if what == "read" else child.reg_write)(BYTES)
                mr.write(b"s" * BYTES, BYTES)
                told.append((mr.rkey, mr.buf))
                ready.set()
                child.accept()
                assert done.wait(10)
                return mr.read(BYTES, 0)

        with beside(serve) as found, CMID(active(), queue_pair()) as peer:
            mr = peer.reg_msgs(BYTES)
            mr.write(b"c" * BYTES, BYTES)
            peer.connect(ConnParam(resources=1, depth=1))
            assert ready.wait(10)
            post = peer.post_read if what == "read" else peer.post_write
            post(mr, BYTES, told[0][1], told[0][0], flags=e.IBV_SEND_SIGNALED)
            wc = peer.get_send_comp()
            done.set()
            assert wc.status == e.IBV_WC_SUCCESS
            assert mr.read(BYTES, 0) == (b"s" if what == "read" else b"c") * BYTES
        assert found == [(b"s" if what == "read" else b"c") * BYTES]


def test_a_request_that_is_rejected() -> None:
    with CMID(passive(), queue_pair()) as listening:
        listening.listen()

        def serve() -> None:
            with listening.get_request() as child:
                child.reject("not today")

        with beside(serve) as found, CMID(active(), queue_pair()) as peer:
            with pytest.raises(rnic.CmRejectedError, match="consumer reject") as caught:
                peer.connect()
            assert caught.value.private.rstrip(b"\0") == b"not today"
        assert found == [None]


def test_a_request_for_which_no_queue_pair_can_be_made_is_rejected() -> None:
    with CMID(passive(), rnic.QPInitAttr(cap=rnic.QPCap(max_send_wr=10**7))) as listening:
        listening.listen()
        ctx = listening.context
        with (
            beside(lambda: rnic.cm_connect(HERE, PORT, addr=THERE, timeout_s=30)) as found,
            pytest.raises(rnic.VerbsError, match="cqe=10000000"),
        ):
            listening.get_request()
        (said,) = found
        assert isinstance(said, rnic.CmRejectedError)
        assert said.reason == 28
    assert ctx is not None
    assert ctx.closed, "nobody holds it any more"


def test_nobody_listens() -> None:
    elsewhere = AddrInfo(src=HERE, src_service=PORT + 1, flags=ce.RAI_PASSIVE)
    with CMID(elsewhere) as listening, CMID(active(), queue_pair()) as peer:
        listening.listen()
        with pytest.raises(rnic.CmRejectedError, match="nobody listens on that port"):
            peer.connect()


def expect(channel: CMEventChannel, event: int) -> CMEvent:
    found = CMEvent(channel)
    assert found.event_str() == ce.EVENT_NAMES[event]
    assert found.event_type == event
    found.ack_cm_event()
    return found


@pytest.mark.parametrize("own", [False, True], ids=["cmid's queue pair", "queue pair of the program's own"])
def test_events_say_what_happens(own: bool) -> None:
    made: list[rnic.QP] = []

    def ready(cmid: CMID, *states: int) -> int:
        if not made or made[-1].pd is not cmid.pd:
            assert cmid.context is not None
            cq = rnic.CQ(cmid.context, 10)
            made.append(rnic.QP(cmid.pd, rnic.QPInitAttr(rnic.enums.IBV_QPT_RC, scq=cq, rcq=cq, cap=rnic.QPCap(4, 4))))
        for state in states:
            made[-1].modify(*cmid.init_qp_attr(state))
        return made[-1].qp_num

    every = (e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS)
    with CMEventChannel() as here, CMEventChannel() as there:
        listening, peer = CMID(here), CMID(there)
        listening.bind_addr(passive())
        listening.listen(3)
        peer.resolve_addr(active())
        expect(there, ce.RDMA_CM_EVENT_ADDR_RESOLVED)
        peer.resolve_route()
        expect(there, ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
        param = ConnParam(qp_num=ready(peer) if own else 0)
        param.set_private_data("it is me")
        if not own:
            peer.create_qp(queue_pair())
        peer.connect(param)
        request = expect(here, ce.RDMA_CM_EVENT_CONNECT_REQUEST)
        assert request.private_data.rstrip(b"\0") == b"it is me"
        child = CMID(request, listen_id=listening)
        if own:
            child.accept(ConnParam(qp_num=ready(child, *every)))
            expect(there, ce.RDMA_CM_EVENT_CONNECT_RESPONSE)
            peer_qp = made[0]
            for state in every:
                peer_qp.modify(*peer.init_qp_attr(state))
            peer.establish()
        else:
            child.create_qp(queue_pair())
            child.accept()
            expect(there, ce.RDMA_CM_EVENT_ESTABLISHED)
            mr = child.reg_msgs(BYTES)
            child.post_recv(mr)
            out = peer.reg_msgs(BYTES)
            out.write(b"by events", 9)
            peer.post_send(out, length=9)
            assert child.get_recv_comp().byte_len == 9
            assert mr.read(9, 0) == b"by events"
        expect(here, ce.RDMA_CM_EVENT_ESTABLISHED)
        peer.disconnect()
        expect(here, ce.RDMA_CM_EVENT_DISCONNECTED)
        child.disconnect()
        expect(there, ce.RDMA_CM_EVENT_DISCONNECTED)
        for qp in made:
            qp.close()
        for cmid in (child, peer, listening):
            cmid.close()


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(rnic.VerbsError, match=r"port space 0x2 is not supported: use RDMA_PS_TCP") as caught:
        AddrInfo(dst=HERE, port_space=ce.RDMA_PS_IPOIB)
    assert caught.value.errno == EPROTONOSUPPORT
    with pytest.raises(rnic.VerbsError, match="RAI_PASSIVE has no src"):
        AddrInfo(dst=HERE, flags=ce.RAI_PASSIVE)
    with pytest.raises(rnic.VerbsError, match="neither src nor dst"):
        AddrInfo()
    with pytest.raises(rnic.CmConnectError, match="cannot look up no such host"):
        AddrInfo(dst="no such host")
    with pytest.raises(rnic.VerbsError, match=r"retry=8 is out of range; use 0 to 7"):
        ConnParam(retry=8)
    with pytest.raises(rnic.VerbsError, match="private data of 256 bytes"):
        ConnParam().set_private_data(bytes(256))
    with pytest.raises(rnic.VerbsError, match="an AddrInfo, a CMEventChannel or a CMEvent: 7"):
        CMID(7)  # type: ignore[arg-type]
    with CMEventChannel() as channel, CMID(channel) as cmid:
        with pytest.raises(rnic.VerbsError, match=r"no device: bind_addr\(\) or resolve_addr\(\) first") as caught:
            cmid.listen()
        assert caught.value.errno == EINVAL
        with pytest.raises(rnic.VerbsError, match="no queue pair") as caught:
            cmid.get_send_comp()
        assert caught.value.errno == ENOTCONN
        with pytest.raises(rnic.VerbsError, match="no event can come"):
            CMEvent(channel)
        with pytest.raises(rnic.VerbsError, match="are events of its channel"):
            cmid.get_request()


def test_the_device_ends_with_its_last_cmid() -> None:
    with CMID(passive(), queue_pair()) as listening:
        listening.listen()
        ctx = listening.context
        assert ctx is not None
        assert listening.port == PORT
        assert listening.dev_name == ctx.name
        assert listening.port_num == 1
        assert listening.qpn == 0
    assert ctx.closed
    listening.close()
    with pytest.raises(rnic.VerbsError, match="is closed; make another one"):
        listening.listen()


def test_closing_a_channel_ends_what_another_thread_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.cm.work_queue.MAX_WAIT_S", 0.05)
    sleeps = threading.Event()

    def sleep(descriptors: list[int], timeout_s: float | None) -> bool:
        sleeps.set()
        return wait_readable(descriptors, timeout_s)

    monkeypatch.setattr("rnic.cm.work_queue.wait_readable", sleep)
    with CMEventChannel() as channel, CMID(channel) as listening:
        listening.bind_addr(passive())
        with beside(lambda: CMEvent(channel)) as found:
            assert sleeps.wait(30)
            channel.close()
        (said,) = found
        assert isinstance(said, rnic.VerbsError)
        assert "the event channel is closed" in str(said)


def test_on_a_device_that_the_program_opened() -> None:
    with rnic.Context(addr=HERE) as ctx:
        with CMID(passive(context=ctx)) as listening:
            assert listening.context is ctx
        assert not ctx.closed


def datagrams() -> rnic.QPInitAttr:
    return rnic.QPInitAttr(qp_type=e.IBV_QPT_UD, cap=rnic.QPCap(max_recv_wr=4))


def udp(src: str, dst: str | None = None, service: int = 0) -> AddrInfo:
    own = PORT if dst is None else None
    return AddrInfo(src=src, dst=dst, src_service=own, dst_service=service, port_space=ce.RDMA_PS_UDP)


def event(channel: CMEventChannel, kind: int) -> CMEvent:
    """The next event, which is of a kind."""
    found = CMEvent(channel)
    assert found.event_type == kind, found.event_str()
    return found


@contextmanager
def found_ways(peer: CMID, channel: CMEventChannel, info: AddrInfo) -> Iterator[None]:
    """The active side up to where it may connect or join."""
    peer.resolve_addr(info)
    event(channel, ce.RDMA_CM_EVENT_ADDR_RESOLVED)
    peer.resolve_route()
    event(channel, ce.RDMA_CM_EVENT_ROUTE_RESOLVED)
    peer.create_qp(datagrams())
    yield


def test_a_peer_s_datagram_queue_pair_is_found() -> None:
    """As pyverbs' suite does in RDMA_PS_UDP: SIDR, then datagrams by what the answer says."""
    with (
        CMEventChannel() as theirs,
        CMEventChannel() as ours,
        CMID(theirs, port_space=ce.RDMA_PS_UDP) as listening,
        CMID(ours, port_space=ce.RDMA_PS_UDP) as peer,
    ):
        listening.bind_addr(udp(HERE))
        listening.listen()
        with found_ways(peer, ours, udp(THERE, HERE, PORT)):
            peer.connect()
        request = event(theirs, ce.RDMA_CM_EVENT_CONNECT_REQUEST)
        with CMID(request, listen_id=listening) as child:
            assert child.datagrams
            child.create_qp(datagrams())
            child.post_recv(mr := child.reg_msgs(BYTES))
            answer = ConnParam()
            answer.set_private_data(b"welcome")
            child.accept(answer)
            established = event(ours, ce.RDMA_CM_EVENT_ESTABLISHED)
            assert established.private_data.startswith(b"welcome")
            about = UDParam(established)
            assert (about.qp_num, about.qkey) == (child.qpn, 0x1234567)
            assert about.ah_attr.gr.dgid == rnic.GID(HERE)
            out = peer.reg_msgs(BYTES)
            out.write(b"by datagram", 11)
            peer.post_ud_send(out, AH(peer.pd, about.ah_attr), about.qp_num, length=11)
            assert peer.get_send_comp().status == e.IBV_WC_SUCCESS
            wc = child.get_recv_comp()
            assert (wc.byte_len, wc.src_qp) == (40 + 11, peer.qpn)
            assert mr.read(11, 40) == b"by datagram"


def test_a_service_that_is_refused_and_one_that_nobody_has() -> None:
    with (
        CMEventChannel() as theirs,
        CMEventChannel() as ours,
        CMID(theirs, port_space=ce.RDMA_PS_UDP) as listening,
        CMID(ours, port_space=ce.RDMA_PS_UDP) as peer,
        CMID(ours, port_space=ce.RDMA_PS_UDP) as other,
    ):
        listening.bind_addr(udp(HERE))
        listening.listen()
        with found_ways(peer, ours, udp(THERE, HERE, PORT)):
            peer.connect()
        with CMID(event(theirs, ce.RDMA_CM_EVENT_CONNECT_REQUEST), listen_id=listening) as child:
            child.reject(b"not today")
            refused = CMEvent(ours)
            assert refused.event_type in (ce.RDMA_CM_EVENT_UNREACHABLE, ce.RDMA_CM_EVENT_REJECTED)
            assert refused.private_data.startswith(b"not today")
            with pytest.raises(rnic.VerbsError, match="has no peer address"):
                UDParam(refused)
        with found_ways(other, ours, udp(THERE, HERE, PORT + 1)):
            other.connect()
        assert CMEvent(ours).event_type in (ce.RDMA_CM_EVENT_UNREACHABLE, ce.RDMA_CM_EVENT_REJECTED)


def test_who_joined_a_group_receives_what_is_sent_there() -> None:
    group = AddrInfo(dst="239.1.2.3", port_space=ce.RDMA_PS_UDP)
    with (
        CMEventChannel() as theirs,
        CMEventChannel() as ours,
        CMID(theirs, port_space=ce.RDMA_PS_UDP) as member,
        CMID(ours, port_space=ce.RDMA_PS_UDP) as sender,
    ):
        with found_ways(member, theirs, udp(HERE, "239.1.2.3")), found_ways(sender, ours, udp(THERE, "239.1.2.3")):
            member.join_multicast(group)
            sender.join_multicast(mc_attr=JoinMCAttrEx(group, join_flags=ce.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER))
        assert UDParam(event(theirs, ce.RDMA_CM_EVENT_MULTICAST_JOIN)).qp_num == 0xFFFFFF
        where = UDParam(event(ours, ce.RDMA_CM_EVENT_MULTICAST_JOIN))
        assert where.ah_attr.gr.dgid == rnic.GID("239.1.2.3")
        member.post_recv(got := member.reg_msgs(BYTES))
        out = sender.reg_msgs(BYTES)
        out.write(b"to all", 6)
        sender.post_ud_send(out, AH(sender.pd, where.ah_attr), where.qp_num, length=6)
        wc = member.get_recv_comp()
        assert (wc.byte_len, got.read(6, 40)) == (46, b"to all")
        member.leave_multicast(group)
        with pytest.raises(rnic.VerbsError, match=r"10\.0\.0\.1 is not a multicast address: use one of 224"):
            member.join_multicast(AddrInfo(dst="10.0.0.1", port_space=ce.RDMA_PS_UDP))


def test_what_goes_with_one_port_space_alone() -> None:
    with CMEventChannel() as channel, CMID(channel) as stream:
        with pytest.raises(rnic.VerbsError, match="not of RDMA_PS_UDP"):
            stream.join_multicast(AddrInfo(dst="239.1.2.3"))
        with pytest.raises(rnic.VerbsError, match="works by events: make it of a CMEventChannel"):
            CMID(udp(THERE, HERE, PORT))
    with pytest.raises(rnic.VerbsError, match="join_flags=4: use RDMA_MC_JOIN_FLAG_FULLMEMBER"):
        JoinMCAttrEx(join_flags=4)
    with (
        CMEventChannel() as channel,
        CMID(channel, port_space=ce.RDMA_PS_UDP) as peer,
    ):
        peer.bind_addr(udp(HERE))
        with pytest.raises(rnic.VerbsError, match="takes a queue pair of type IBV_QPT_UD"):
            peer.create_qp(queue_pair())
