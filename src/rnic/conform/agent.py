"""The agent: runs the peer's software for a script, controlled by lines of text. This one is for rnic; ``agent.c`` is
the same for any device with libibverbs.

There is one connection at a time. ``open`` makes new regions, CQ and queue pair, ``recv`` and ``post`` post work,
``poll`` takes one completion, ``bytes`` shows memory. An answer is one line: ``ok ...``, or ``error ...``.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from rnic.conform.frames import QKEY
from rnic.conform.script import QUEUES, REGIONS, pattern
from rnic.spec.limits import MTU_CODES
from rnic.verbs import enums as e
from rnic.verbs.attrs import (
    GID,
    SGE,
    AHAttr,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
)
from rnic.verbs.context import Context
from rnic.verbs.cq import CQ
from rnic.verbs.memory import AH, MR, PD
from rnic.verbs.qp import QP
from rnic.verbs.srq import SRQ
from rnic.verbs.xrc import XRCD

VERSION = 1
SIZES = {"M": 65_536, "R": 4_096, "L": 4_096, "F": 4_096}
SLOT, SLOTS = 16_384, 16
_FIRST = pattern("m", 0, max(SIZES.values()))
_SEND_ID = 1_000
"""wr_id of every send work request; the wr_id of a receive is the number of its slot."""
_LOCAL, _READ, _WRITE, _ATOMIC = (
    e.IBV_ACCESS_LOCAL_WRITE,
    e.IBV_ACCESS_REMOTE_READ,
    e.IBV_ACCESS_REMOTE_WRITE,
    e.IBV_ACCESS_REMOTE_ATOMIC,
)
_RIGHTS = {
    "M": _LOCAL | _READ | _WRITE | _ATOMIC | e.IBV_ACCESS_FLUSH_GLOBAL,
    "R": _LOCAL | _READ,
    "L": _LOCAL,
    "F": _LOCAL | _READ | _WRITE | _ATOMIC,
}
_LETTERS = {"r": _READ, "w": _WRITE, "a": _ATOMIC, "f": e.IBV_ACCESS_FLUSH_GLOBAL, "A": _WRITE}
"""Access rights of a queue pair; "A" requires a device with ATOMIC WRITE."""
_TYPES = {
    "RC": e.IBV_QPT_RC,
    "UC": e.IBV_QPT_UC,
    "UD": e.IBV_QPT_UD,
    "XRC": e.IBV_QPT_XRC_RECV,
    "XRC_INI": e.IBV_QPT_XRC_SEND,
}
_OPERATIONS = {
    "SEND": e.IBV_WR_SEND,
    "SEND_IMM": e.IBV_WR_SEND_WITH_IMM,
    "WRITE": e.IBV_WR_RDMA_WRITE,
    "WRITE_IMM": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "READ": e.IBV_WR_RDMA_READ,
    "CMP_SWAP": e.IBV_WR_ATOMIC_CMP_AND_SWP,
    "FETCH_ADD": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
}
STATES = {
    e.IBV_QPS_RESET: "RESET", e.IBV_QPS_INIT: "INIT", e.IBV_QPS_RTR: "RTR", e.IBV_QPS_RTS: "RTS",
    e.IBV_QPS_SQD: "SQD", e.IBV_QPS_SQE: "SQE", e.IBV_QPS_ERR: "ERR",
}  # fmt: skip


class VerbsAgent:
    """The agent on one of rnic's devices.

    Args:
        ctx: the device, opened.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._made: list[object] = []
        self._buffers: dict[str, bytearray] = {}
        self._regions: dict[str, MR] = {}
        self._slots = bytearray()
        self._posted = 0

    def ask(self, line: str) -> str:
        """Execute a line; return the answer."""
        name, *words = line.split() or [""]
        values = dict(word.split("=", 1) for word in words if "=" in word)
        command = getattr(self, f"_do_{name}", None)
        if command is None:
            return f"error no such command: {name}"
        try:
            return str(command(values, [word for word in words if "=" not in word]))
        except Exception as error:  # noqa: BLE001 - last resort: the client is across a network
            return f"error {type(error).__name__}: {error}".replace("\n", " ")

    def _do_hello(self, values: dict[str, str], words: list[str]) -> str:
        gid = self._ctx.query_gid().raw.hex()
        return f"ok version={VERSION} maker=rnic gid={gid} mtu={self._ctx.nic.config.mtu} port={self._ctx.udp_port}"

    def _do_open(self, values: dict[str, str], words: list[str]) -> str:
        self._close()
        ctx = self._ctx
        pd, foreign = PD(ctx), PD(ctx)
        self._cq = CQ(ctx, 256)
        self._made = [self._cq, pd, foreign]
        for name in REGIONS:
            buffer = self._buffers[name] = bytearray(_FIRST[: SIZES[name]])
            self._regions[name] = MR(foreign if name == "F" else pd, buffer, _RIGHTS[name])
            self._made.insert(0, self._regions[name])
        self._slots = bytearray(SLOT * SLOTS)
        self._inbox = MR(pd, self._slots, _LOCAL)
        self._made.insert(0, self._inbox)
        self._posted = 0
        service = values["service"]
        shown = " ".join(f"{n}={mr.buf:#x}:{mr.rkey:#x}:{SIZES[n]}" for n, mr in self._regions.items())
        self._queues: dict[int, tuple[SRQ, MR]] = {}
        if service.startswith("XRC"):
            self._qp = self._open_xrc(pd, foreign, service)
            shown += "".join(f" {name}={srqn}" for name, srqn in zip(QUEUES, self._queues, strict=True))
        else:
            cap = QPCap(64, 64, 1, 1, 0)
            self._qp = QP(pd, QPInitAttr(_TYPES[service], None, cap, self._cq, self._cq))
        self._made.insert(0, self._qp)
        self._connect(values, pd, service)
        return f"ok qpn={self._qp.qp_num} {shown}"

    def _open_xrc(self, pd: PD, foreign: PD, service: str) -> QP:
        """Return an XRC queue pair; make two SRQs in its domain, and one in another."""
        domain, other = XRCD(self._ctx), XRCD(self._ctx)
        self._made += [domain, other]
        inbox = MR(foreign, self._slots, _LOCAL)
        self._made.insert(0, inbox)
        for memory, near, xrcd in ((pd, self._inbox, domain), (foreign, inbox, domain), (pd, self._inbox, other)):
            srq = SRQ(memory, SrqInitAttr(SrqAttr(64, 1), None, e.IBV_SRQT_XRC, xrcd, self._cq))
            self._queues[srq.srqn] = srq, near
            self._made.insert(0, srq)
        if service == "XRC":
            return QP(domain, QPInitAttr(_TYPES[service]))
        return QP(pd, QPInitAttr(_TYPES[service], None, QPCap(64, 0, 1, 0, 0), self._cq))

    def _connect(self, values: dict[str, str], pd: PD, service: str) -> None:
        attr = QPAttr()
        attr.path_mtu = MTU_CODES[int(values["mtu"])]
        attr.dest_qp_num = self._peer_qpn = int(values["qpn"])
        attr.rq_psn, attr.sq_psn = int(values["theirs"]), int(values["ours"])
        attr.qp_access_flags = reduce(or_, (_LETTERS[letter] for letter in values["access"]))
        attr.max_rd_atomic = attr.max_dest_rd_atomic = int(values["rd"])
        attr.min_rnr_timer, attr.timeout = int(values["rnr_timer"]), int(values["timeout"])
        attr.retry_cnt, attr.rnr_retry = int(values["retry"]), int(values["rnr_retry"])
        attr.credits = values["credits"] == "1"
        attr.qkey = QKEY
        attr.ah_attr = AHAttr(GlobalRoute(GID(bytes.fromhex(values["gid"]))), udp_dport=int(values["port"]))
        self._ah = None
        if service == "UD":
            self._ah = AH(pd, attr.ah_attr)
            self._made.insert(0, self._ah)
        self._qp.to_rts(attr)

    def _do_recv(self, values: dict[str, str], words: list[str]) -> str:
        queue: QP | SRQ = self._qp
        inbox = self._inbox
        if self._queues:
            queue, inbox = self._queues[int(values.get("srqn", next(iter(self._queues))))]
        for _ in range(int(words[0])):
            slot = self._posted % SLOTS
            self._posted += 1
            queue.post_recv(RecvWR(slot, 1, [SGE(inbox.buf + slot * SLOT, int(words[1]), inbox.lkey)]))
        return "ok"

    def _do_post(self, values: dict[str, str], words: list[str]) -> str:
        memory = self._regions["M"]
        operation = words[0]
        length = 8 if operation in ("CMP_SWAP", "FETCH_ADD") else int(values["len"])
        wr = SendWR(
            _SEND_ID, _OPERATIONS[operation], imm_data=int(values.get("imm", "0")), send_flags=e.IBV_SEND_SIGNALED
        )
        wr.sg = [SGE(memory.buf, length, memory.lkey)]
        va, key = int(values.get("va", "0")), int(values.get("rkey", "0"))
        if operation in ("CMP_SWAP", "FETCH_ADD"):
            wr.set_wr_atomic(key, va, int(values.get("compare_add", "0")), int(values.get("swap", "0")))
        else:
            wr.set_wr_rdma(key, va)
        if self._queues:
            wr.set_qp_type_xrc(int(values.get("srqn", "0")))
        if self._ah is not None:
            wr.set_wr_ud(self._ah, self._peer_qpn, QKEY)
        self._qp.post_send(wr)
        return "ok"

    def _do_poll(self, values: dict[str, str], words: list[str]) -> str:
        count, found = self._cq.poll(1)
        if not count:
            return "ok none"
        wc = found[0]
        kind = "send" if wc.wr_id == _SEND_ID else "recv"
        return f"ok kind={kind} status={wc.status} len={wc.byte_len} imm={wc.imm_data} slot={wc.wr_id}"

    def _do_bytes(self, values: dict[str, str], words: list[str]) -> str:
        name, at, size = words[0], int(words[1]), int(words[2])
        memory = self._slots if name == "S" else self._buffers[name]
        return f"ok {bytes(memory[at : at + size]).hex()}"

    def _do_state(self, values: dict[str, str], words: list[str]) -> str:
        return f"ok {STATES[self._qp.qp_state]}"

    def _do_close(self, values: dict[str, str], words: list[str]) -> str:
        self._close()
        return "ok"

    def _close(self) -> None:
        made, self._made = self._made, []
        for thing in made:
            thing.close()  # type: ignore[attr-defined]
