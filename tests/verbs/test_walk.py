"""A random walk of valid and nearly valid verbs over many queue pairs, against a model of a few lines.

Each round starts something on several queue pairs at once, lets the network run until all is quiet, and compares
every completion, every state and every byte with the model. With faults the network loses, repeats and reorders
packets, which no reliable queue pair may show.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter, deque
from collections.abc import Callable

import pytest

from rnic.link.faults import NO_FAULTS, FaultRates
from rnic.spec.errors import VerbsError
from rnic.spec.limits import GRH_BYTES
from rnic.testing import QpPair, SimNet
from rnic.testing.pair import Side
from rnic.verbs import MR, QPAttr, RecvWR, SendWR
from rnic.verbs import enums as e

AREA = 4096
SOURCE, TARGET, RESULT, RECEIVE = (AREA * place for place in range(4))
SLOTS = 4
SLOT = AREA // SLOTS
FAULTS = FaultRates(drop=0.02, duplicate=0.02, reorder=0.02, corrupt=0.01)
WORD = 8
NAKED = (e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_REM_INV_REQ_ERR)


class End:
    """The model of one side: its bytes, its state, what it has posted, and what is to complete."""

    def __init__(self, side: Side, rng: random.Random) -> None:
        self.side = side
        self.rng = rng
        side.buf[:] = rng.randbytes(len(side.buf))
        self.memory = bytearray(side.buf)
        self.peer: End = self
        self.serial = 0
        self.in_use = False
        self.forget()

    def forget(self) -> None:
        """As after a reset."""
        self.state = e.IBV_QPS_RTS
        self.receives: deque[tuple[int, int]] = deque()
        self.sends_due: list[tuple[int, int]] = []
        self.receives_due: list[tuple[int, int, int | None]] = []

    def post_recv(self) -> None:
        if len(self.receives) == SLOTS:
            return
        slot = self.serial % SLOTS
        self.serial += 1
        self.side.post_recv(SLOT, RECEIVE + slot * SLOT, wr_id=self.serial)
        self.receives.append((self.serial, slot))

    def post(self, opcode: int, length: int, offset: int, status: int = e.IBV_WC_SUCCESS, **more: int) -> None:
        """Post a send work request that will complete with ``status``."""
        self.serial += 1
        if status != e.IBV_WC_SUCCESS or self.rng.random() < 0.8:
            self.sends_due.append((self.serial, status))
        else:
            more["flags"] = 0
        self.side.post_send(opcode, length, offset, wr_id=self.serial, **more)

    def fail(self) -> None:
        """The queue pair goes to ERR: whatever is posted is flushed."""
        self.state = e.IBV_QPS_ERR
        self.receives_due += [(number, e.IBV_WC_WR_FLUSH_ERR, None) for number, _ in self.receives]
        self.receives.clear()

    def fill(self, length: int, offset: int) -> None:
        """New bytes to send, where no message uses the old ones."""
        if self.in_use:
            return
        data = self.rng.randbytes(length)
        self.side.buf[offset : offset + length] = self.memory[offset : offset + length] = data


class Walk:
    """Queue pairs of every service on two NICs; ``log`` holds what was done last."""

    def __init__(self, seed: int, pairs: int = 6) -> None:
        self.rng = random.Random(seed)
        self.faulty = seed % 2 == 1
        self.net = SimNet(2, seed=seed, tx=FAULTS if self.faulty else NO_FAULTS)
        services = ["RC"] * pairs if self.faulty else ["RC"] * (pairs - 2) + ["UC", "UD"]
        self.pairs = [QpPair(service, net=self.net, size=4 * AREA, depth=16) for service in services]
        self.ends: dict[QpPair, tuple[End, End]] = {}
        for pair in self.pairs:
            a, b = End(pair.a, self.rng), End(pair.b, self.rng)
            a.peer, b.peer = b, a
            self.ends[pair] = (a, b)
        self.log: deque[str] = deque(maxlen=40)
        self.done: Counter[str] = Counter()

    def round(self) -> None:
        """Start something on some queue pairs, wait until all is quiet, compare."""
        for pair in self.rng.sample(self.pairs, 3):
            end = self.rng.choice(self.ends[pair])
            choices = RECOVERIES if e.IBV_QPS_ERR in (end.state, end.peer.state) else ACTIONS[pair.service]
            action = self.rng.choice(choices)
            self.log.append(f"{pair.service} {end.side.qp.qp_num} {action.__name__}")
            self.done[action.__name__] += 1
            action(self, pair, end)
        self.net.run(None)
        for pair, ends in self.ends.items():
            for end in ends:
                self.compare(pair, end)

    def compare(self, pair: QpPair, end: End) -> None:
        wcs = end.side.poll()
        posted = {number for number, _ in end.sends_due}
        sends = [wc for wc in wcs if wc.wr_id in posted]
        receives = [wc for wc in wcs if wc.wr_id not in posted]
        if self.faulty:
            # the one NAK of a fatal error may be lost, and a queue pair that has failed sends no other
            for wc, (_, status) in zip(sends, end.sends_due, strict=False):
                if wc.status == e.IBV_WC_RETRY_EXC_ERR and status in NAKED:
                    wc.status = status
        assert [(wc.wr_id, wc.status) for wc in sends] == end.sends_due, list(self.log)
        got = [(wc.wr_id, wc.status, None if wc.status else wc.byte_len) for wc in receives]
        assert got == end.receives_due, list(self.log)
        end.sends_due.clear()
        end.receives_due.clear()
        assert end.side.qp.query()[0].qp_state == end.state, list(self.log)
        header = GRH_BYTES if pair.service == "UD" else 0
        for slot in range(SLOTS if header else 0):  # the model does not say what the header space holds
            at = RECEIVE + slot * SLOT
            end.memory[at : at + header] = end.side.buf[at : at + header]
        assert end.side.buf == end.memory, list(self.log)


# ------------------------------------------------------------------------------------------- valid


def span(walk: Walk, limit: int = AREA) -> tuple[int, int]:
    """A random length and an offset that it fits behind."""
    length = walk.rng.choice((0, 1, 7, walk.rng.randrange(limit), limit))
    return length, walk.rng.randrange(limit - length + 1)


def write(walk: Walk, pair: QpPair, end: End) -> None:
    length, offset = span(walk)
    remote = TARGET + offset
    end.fill(length, SOURCE + offset)
    end.post(e.IBV_WR_RDMA_WRITE, length, SOURCE + offset, remote=remote)
    end.peer.memory[remote : remote + length] = end.memory[SOURCE + offset : SOURCE + offset + length]


def send(walk: Walk, pair: QpPair, end: End, opcode: int = e.IBV_WR_SEND) -> None:
    header = pair.recv_offset
    length, offset = span(walk, SLOT - header)
    end.peer.post_recv()
    end.fill(length, SOURCE + offset)
    end.post(opcode, length, SOURCE + offset, imm=length)
    number, slot = end.peer.receives.popleft()
    end.peer.receives_due.append((number, e.IBV_WC_SUCCESS, length + header))
    at = RECEIVE + slot * SLOT + header
    end.peer.memory[at : at + length] = end.memory[SOURCE + offset : SOURCE + offset + length]


def send_imm(walk: Walk, pair: QpPair, end: End) -> None:
    send(walk, pair, end, e.IBV_WR_SEND_WITH_IMM)


def write_imm(walk: Walk, pair: QpPair, end: End) -> None:
    end.peer.post_recv()
    length, offset = span(walk)
    end.fill(length, SOURCE + offset)
    end.post(e.IBV_WR_RDMA_WRITE_WITH_IMM, length, SOURCE + offset, remote=TARGET + offset)
    at = TARGET + offset
    end.peer.memory[at : at + length] = end.memory[SOURCE + offset : SOURCE + offset + length]
    number, _ = end.peer.receives.popleft()
    end.peer.receives_due.append((number, e.IBV_WC_SUCCESS, length))


def read(walk: Walk, pair: QpPair, end: End) -> None:
    length, offset = span(walk)
    end.post(e.IBV_WR_RDMA_READ, length, RESULT + offset, remote=TARGET + offset)
    end.memory[RESULT + offset : RESULT + offset + length] = end.peer.memory[TARGET + offset : TARGET + offset + length]


def fetch_add(walk: Walk, pair: QpPair, end: End) -> None:
    at = TARGET + WORD * walk.rng.randrange(AREA // WORD)
    there = end.peer.memory
    value = int.from_bytes(there[at : at + WORD], "little")
    if walk.rng.random() < 0.5:
        add = walk.rng.getrandbits(64)
        new = value + add & 2**64 - 1
        end.post(e.IBV_WR_ATOMIC_FETCH_AND_ADD, WORD, RESULT, remote=at, compare_add=add)
    else:
        compare = walk.rng.choice((value, value ^ 1))
        new = 7 if compare == value else value
        end.post(e.IBV_WR_ATOMIC_CMP_AND_SWP, WORD, RESULT, remote=at, compare_add=compare, swap=7)
    end.memory[RESULT : RESULT + WORD] = value.to_bytes(WORD, "little")
    there[at : at + WORD] = new.to_bytes(WORD, "little")


def batch(walk: Walk, pair: QpPair, end: End) -> None:
    """Several messages behind each other, from bytes that stay as they are until the last is complete."""
    end.fill(AREA, SOURCE)
    end.in_use = True
    for _ in range(walk.rng.randrange(2, 5)):
        walk.rng.choice((write, send, send_imm, write_imm) if pair.service == "RC" else (send,))(walk, pair, end)
    end.in_use = False


def late_receive(walk: Walk, pair: QpPair, end: End) -> None:
    """The receive entry comes when the message has been turned away already."""
    if end.peer.receives:
        return
    length, offset = span(walk, SLOT)
    end.fill(length, SOURCE + offset)
    end.post(e.IBV_WR_SEND, length, SOURCE + offset)
    for _ in range(walk.rng.randrange(300)):
        walk.net.turn()
    end.peer.post_recv()
    number, slot = end.peer.receives.popleft()
    end.peer.receives_due.append((number, e.IBV_WC_SUCCESS, length))
    at = RECEIVE + slot * SLOT
    end.peer.memory[at : at + length] = end.memory[SOURCE + offset : SOURCE + offset + length]


def post_recv(walk: Walk, pair: QpPair, end: End) -> None:
    end.post_recv()


def resize_cq(walk: Walk, pair: QpPair, end: End) -> None:
    end.side.cq.resize(walk.rng.choice((64, 100, 255)))


def register_again(walk: Walk, pair: QpPair, end: End) -> None:
    """The same memory under another key; the old one is worth nothing."""
    end.side.mr.close()
    end.side.mr = MR(end.side.pd, end.side.buf, end.side.mr.access)
    if end.receives:  # they hold the old key
        stop(walk, pair, end)


# --------------------------------------------------------------------------------------- refused at once


def refused(walk: Walk, pair: QpPair, end: End) -> None:
    """Verbs that must fail where they are called, and leave nothing behind."""
    side = end.side
    calls: tuple[Callable[[], object], ...] = (
        lambda: side.qp.post_send(SendWR(opcode=99, sg=[side.sge(1)])),
        lambda: side.qp.post_send(SendWR(send_flags=0x100, sg=[side.sge(1)])),
        lambda: side.qp.post_send(SendWR(sg=[side.sge(1)] * 5)),
        lambda: side.qp.post_recv(RecvWR(0, 5, [side.sge(1)] * 5)),
        lambda: side.qp.modify(QPAttr(e.IBV_QPS_INIT), e.IBV_QP_STATE),
        lambda: side.qp.modify(QPAttr(e.IBV_QPS_RTR), e.IBV_QP_STATE),
        lambda: side.qp.modify(QPAttr(e.IBV_QPS_RTS), e.IBV_QP_STATE | e.IBV_QP_SQ_PSN),
        lambda: side.cq.resize(0),
        lambda: MR(side.pd, bytes(8), e.IBV_ACCESS_LOCAL_WRITE),
        lambda: MR(side.pd, bytearray(8), e.IBV_ACCESS_REMOTE_WRITE),
    )
    with pytest.raises(VerbsError):
        walk.rng.choice(calls)()


# ------------------------------------------------------------------------------------- wrong, and told later


def bad_rkey(walk: Walk, pair: QpPair, end: End) -> None:
    """A key, a range or a right that the peer does not grant: both ends fail."""
    wr = end.side.send_wr(e.IBV_WR_RDMA_WRITE, 600, SOURCE, wr_id=end.serial + 1)
    end.serial += 1
    if walk.rng.random() < 0.5:
        wr.rkey ^= 0x40
    else:
        wr.remote_addr += walk.rng.choice((4 * AREA - 599, -1, 1 << 40))
    end.sends_due.append((wr.wr_id, e.IBV_WC_REM_ACCESS_ERR))
    end.side.qp.post_send(wr)
    end.fail()
    end.peer.fail()


def bad_lkey(walk: Walk, pair: QpPair, end: End) -> None:
    """A local fault: this end fails, and the other does not learn of it."""
    wr = end.side.send_wr(e.IBV_WR_SEND, 600, SOURCE, wr_id=end.serial + 1)
    end.serial += 1
    wr.sg[0].lkey ^= 0x40
    end.sends_due.append((wr.wr_id, e.IBV_WC_LOC_PROT_ERR))
    end.side.qp.post_send(wr)
    end.fail()


def too_long(walk: Walk, pair: QpPair, end: End) -> None:
    """A SEND that the receive entry does not hold."""
    end.peer.post_recv()
    end.post(e.IBV_WR_SEND, SLOT + 1, SOURCE, e.IBV_WC_REM_INV_REQ_ERR)
    number, slot = end.peer.receives.popleft()
    end.peer.receives_due.append((number, e.IBV_WC_LOC_LEN_ERR, None))
    at = RECEIVE + slot * SLOT
    end.peer.memory[at : at + SLOT] = end.memory[SOURCE : SOURCE + SLOT]  # its whole packets were stored
    end.fail()
    end.peer.fail()


def crooked_atomic(walk: Walk, pair: QpPair, end: End) -> None:
    end.post(e.IBV_WR_ATOMIC_FETCH_AND_ADD, WORD, RESULT, e.IBV_WC_REM_INV_REQ_ERR, remote=TARGET + 4)
    end.fail()
    end.peer.fail()


def stop(walk: Walk, pair: QpPair, end: End) -> None:
    """Software fails its own queue pair."""
    end.side.qp.modify(QPAttr(e.IBV_QPS_ERR), e.IBV_QP_STATE)
    end.fail()


# ----------------------------------------------------------------------------------- once an end has failed


def flushed(walk: Walk, pair: QpPair, end: End) -> None:
    """Work posted in ERR completes as flushed."""
    if end.state == e.IBV_QPS_ERR:
        end.post(e.IBV_WR_RDMA_WRITE, 10, SOURCE, e.IBV_WC_WR_FLUSH_ERR)
        end.serial += 1
        end.side.post_recv(10, RECEIVE, wr_id=end.serial)
        end.receives_due.append((end.serial, e.IBV_WC_WR_FLUSH_ERR, None))


def reconnect(walk: Walk, pair: QpPair, end: End) -> None:
    for each in (end, end.peer):
        walk.compare(pair, each)
        each.side.qp.modify(QPAttr(e.IBV_QPS_RESET), e.IBV_QP_STATE)
        each.forget()
    psn = walk.rng.choice((0, 0xFFFFFE, walk.rng.getrandbits(24)))
    pair.connect(sq_psn=psn, rq_psn=psn)


ANY = (refused, post_recv, resize_cq)
ACTIONS: dict[str, tuple[Callable[[Walk, QpPair, End], None], ...]] = {
    "RC": (
        *(write, send, send_imm, write_imm, read, fetch_add, batch, late_receive, register_again),
        *(bad_rkey, bad_lkey, too_long, crooked_atomic, stop),
        *ANY,
    ),
    "UC": (write, send, send_imm, write_imm, batch, stop, *ANY),
    "UD": (send, send_imm, batch, stop, *ANY),
}
RECOVERIES = (flushed, reconnect, reconnect)


def walk(seed: int, rounds: int) -> Walk:
    walked = Walk(seed)
    with contextlib.closing(walked.net):
        for _ in range(rounds):
            walked.round()
    return walked


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_walk(seed: int) -> None:
    walk(seed, 80)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 150))
def test_long_walk(seed: int) -> None:
    walk(seed, 300)


def test_every_step_is_taken() -> None:
    taken = walk(1, 60).done + walk(2, 60).done
    assert set(taken) == {action.__name__ for action in {*ACTIONS["RC"], *RECOVERIES}}
