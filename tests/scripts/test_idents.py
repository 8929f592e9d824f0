"""A peer whose IPv4 idents nobody sees counts them up: what is taken, what is held, and what confirms it."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnic.engine import use
from rnic.link.ident_sockets import MASK
from rnic.spec.opcodes import RC, SEND_ONLY
from rnic.testing.executors import executed_by
from rnic.wire.bursts import NOTHING_KNOWN, RxBurst
from rnic.wire.flow import _effect
from rnic.wire.ident import IdentTracker, run_back
from rnic.wire.packet import Packet, build, parse, seal
from tests.fuzz.lockstep import _Quick
from tests.unit.device.conftest import Pair

MS = 1_000_000
FIRST_PSN = 7
EXECUTORS = ["reference", pytest.param("engine", marks=pytest.mark.skipif(use.COMPILED is None, reason="no engine"))]


class Peer:
    """A peer of one queue pair over a link that shows no idents; each of its SENDs has another payload."""

    def __init__(self, engine: bool, size: int = 8) -> None:
        self.size = size
        if use.COMPILED is None:
            self.pair = Pair()
        else:
            with executed_by(engine=engine):
                self.pair = Pair()
        _, self.qp = self.pair.connect()
        self.nic = self.pair.nics[1]
        if engine:
            _Quick(self.nic)
        flow = self.nic.qps[self.qp.number].flow
        assert flow is not None
        self.flow = flow.reverse()
        self.counters = self.nic.counters
        self.memory, self.va, self.key = self.pair.mrs[1]
        self.now = 5_000
        self.posted = self.done = 0
        self.post()

    def post(self) -> None:
        """Post receives, as far as there is room."""
        while self.posted < self.done + 8:
            self.pair.drivers[1].recv(self.qp, self.va + self.posted * self.size, self.size, self.key)
            self.posted += 1

    def frame(self, number: int, ident: int) -> bytes:
        """SEND number ``number``, from 0 on, as it leaves with an ident."""
        payload = (b"%07d " % number * self.size)[: self.size]
        return seal(
            build(RC | SEND_ONLY, dqpn=self.qp.number, psn=FIRST_PSN + number, ackreq=True, payload=payload),
            self.flow,
            ident & 0xFFFF,
        )

    def give(self, frame: bytes, after_ns: int = 1_000, known: tuple[int, int] = NOTHING_KNOWN) -> None:
        self.now += after_ns
        burst = RxBurst(self.flow, memoryview(frame), len(frame), len(frame), None, known=known)
        self.nic.receive(burst, self.now)

    def send(self, number: int, ident: int, after_ns: int = 1_000, known: tuple[int, int] = NOTHING_KNOWN) -> int:
        """Give SEND ``number`` with an ident; return how many completed since the last call."""
        self.give(self.frame(number, ident), after_ns, known)
        return self.completed()

    def completed(self) -> int:
        """Completions since the last call, each of which has the bytes that were sent."""
        found = self.pair.poll(1)
        for _ in found:
            at = self.done * self.size
            assert bytes(self.memory[at : at + self.size]) == (b"%07d " % self.done * self.size)[: self.size]
            self.done += 1
        self.post()
        return len(found)

    def acked(self) -> list[int]:
        """PSNs of the ACKs that it sends now."""
        psns = []
        for burst in self.nic.produce(self.now):
            data = memoryview(b"".join(burst.buffers))
            for at in range(0, len(data), burst.segment):
                packet = parse(data[at : at + burst.segment])
                assert isinstance(packet, Packet)
                psns.append(packet.psn - FIRST_PSN)
        return psns

    def held(self) -> tuple[int, int, int]:
        """Packets that were held, that were dropped for their ident, and that were wrong."""
        return self.counters["held_ident"], self.counters["drop_ident"], self.counters["drop_bad_icrc"]


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def peer(executor: str) -> Peer:
    """One whose SENDs 0 to 9 came with idents 30,000 to 30,009."""
    made = Peer(executor == "engine")
    for number in range(10):
        assert made.send(number, 30_000 + number) == 1
    assert made.acked() == [9]
    return made


def test_an_overtaken_packet_is_taken(peer: Peer) -> None:
    """It has an ident behind the last. The duplicate that overtook the SENDs moved the foremost ident alone."""
    assert peer.send(9, 30_020) == 0  # a repetition, with the ident of its time
    for number in range(10, 15):
        assert peer.send(number, 30_000 + number) == 1
    assert peer.held() == (0, 0, 0)


def test_sixteen_behind_and_forty_seven_ahead(peer: Peer) -> None:
    assert peer.send(10, 30_009 + 47) == 1
    assert peer.send(11, 30_009 + 47 - 16) == 1
    assert peer.send(12, 30_009 + 47 - 17) == 0
    assert peer.send(12, 30_009 + 47 + 48) == 1, "a repetition with another ident"
    assert peer.held() == (1, 0, 0)


def known(ident: int) -> tuple[int, int]:
    """What sockets for idents show of one."""
    return MASK, ident & MASK


def test_only_idents_that_agree_with_the_bits_that_are_known_are_believed(peer: Peer) -> None:
    assert peer.send(10, 30_010, known=known(30_010)) == 1
    assert peer.send(11, 30_011, known=known(30_011 ^ 8)) == 0, "it would be the next"
    assert peer.send(11, 30_012, known=known(30_012)) == 1
    assert peer.held() == (1, 0, 0)


def test_bits_that_two_packets_contradict_are_known_no_more(peer: Peer) -> None:
    """Somebody on the way joins packets: they come by the socket of the first one."""
    assert peer.send(10, 30_016, known=known(30_015)) == 0
    assert peer.send(11, 30_017, known=known(30_015)) == 2
    assert peer.send(12, 30_018, known=known(30_015)) == 1
    assert peer.held() == (1, 0, 0)


def test_a_small_ident_is_not_guessed_against_the_bits_that_are_known(executor: str) -> None:
    """Neither by the engine, which takes small idents alone."""
    made = Peer(executor == "engine")
    for number in range(4):
        assert made.send(number, 0) == 1
    assert made.send(4, 0, known=known(8)) == 0
    assert made.send(4, 5, known=known(5)) == 1
    assert made.send(5, 0, known=known(0)) == 1
    assert made.held() == (1, 0, 0)


def test_the_first_packet_of_a_path_agrees_with_the_bits_that_are_known(executor: str) -> None:
    made = Peer(executor == "engine")
    assert made.send(0, 30_000, known=known(30_008)) == 0
    assert made.send(0, 30_000, known=known(30_000)) == 1
    assert made.held() == (1, 0, 0)


def test_that_a_sender_counts_is_said_once(executor: str) -> None:
    made, told = Peer(executor == "engine"), list[bytes]()
    made.nic.counting = told.append
    for number in range(64):
        assert made.send(number, 30_000 + number) == 1
    assert not told
    for number in range(64, 70):
        assert made.send(number, 30_000 + number) == 1
    assert told == [made.flow.src]


def test_the_first_packet_behind_a_jump_is_held_for_its_successor(peer: Peer) -> None:
    assert peer.send(10, 50_009) == 0
    assert (peer.held(), peer.acked()) == ((1, 0, 0), [])
    assert peer.send(11, 50_010) == 2
    assert peer.acked() == [11]
    assert peer.send(12, 50_011) == 1
    assert peer.held() == (1, 0, 0)


def test_a_successor_may_overtake(peer: Peer) -> None:
    assert peer.send(11, 50_010) == 0
    assert peer.send(10, 50_009) == 1, "the one that overtook is beyond a gap, and was taken first"
    assert peer.counters["drop_psn_gap"] == 1
    assert peer.held() == (1, 0, 0)


def test_a_retransmission_confirms_the_first_packet_after_a_jump(peer: Peer) -> None:
    assert peer.send(10, 50_009) == 0
    assert peer.send(10, 61_000, after_ns=67 * MS) == 1
    assert peer.acked() == [10]
    assert peer.send(11, 61_001) == 1
    assert peer.held() == (1, 0, 0)


def test_a_pause_lets_an_ident_jump_by_its_ticks(peer: Peer) -> None:
    assert peer.send(10, 30_009 + 47 + 1, after_ns=32 * MS) == 1
    assert peer.send(11, 30_057 + 1_016, after_ns=1_000 * MS) == 1
    assert peer.send(12, 31_073 + 1_017, after_ns=1_000 * MS) == 0
    assert peer.held() == (1, 0, 0)


def test_after_a_minute_any_ident_is_believed(peer: Peer) -> None:
    """The count may be anywhere by then; who was silent for so long waits for no repetition."""
    assert peer.send(10, 29_000, after_ns=65_600 * MS) == 1
    assert peer.send(11, 29_001) == 1
    assert peer.held() == (0, 0, 0)


def pairs_of_bits(size: int) -> list[tuple[int, int, int]]:
    """Pairs of bits that change the ICRC of a packet as another ident does, and which bits of the ident."""
    length = 12 + size + 4
    by_rest: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for bit in range(5 * 8, (length - 4) * 8):
        change = _effect(1 << bit % 8, length - 1 - bit // 8)
        register = run_back(change, length + 24)
        by_rest[register >> 16].append((bit, (register & 0xFF) << 8 | register >> 8 & 0xFF))
    return [
        (one, other, ident ^ another)
        for found in by_rest.values()
        for at, (one, ident) in enumerate(found)
        for other, another in found[:at]
    ]


def damaged(frame: bytes, *bits: int) -> bytes:
    bad = bytearray(frame)
    for bit in bits:
        bad[bit // 8] ^= 1 << bit % 8
    return bytes(bad)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[int, int, int]]:
    found = [pair for pair in pairs_of_bits(256) if 64 <= pair[2] < 8_192 and pair[0] >= 12 * 8 <= pair[1]]
    assert found, "none looks like an ident that was believed once"
    return found


def test_damage_that_looks_like_another_ident_is_not_taken(executor: str, pairs: list[tuple[int, int, int]]) -> None:
    made = Peer(executor == "engine", 256)
    base = 0x4000
    for number in range(10):
        assert made.send(number, base + number) == 1
    made.acked()
    for count, (one, other, _) in enumerate(pairs[:8]):
        ident = base + 10 + 2 * count
        made.give(damaged(made.frame(10 + count, ident), one, other))
        assert made.completed() == 0
        assert made.acked() == []
        assert made.send(10 + count, ident + 1) == 1
        assert made.acked() == [10 + count]
    assert made.counters["held_ident"] == len(pairs[:8])
    assert made.counters["drop_bad_icrc"] == 0


def test_a_damaged_packet_that_comes_twice_confirms_nothing(executor: str, pairs: list[tuple[int, int, int]]) -> None:
    made = Peer(executor == "engine", 256)
    for number in range(10):
        assert made.send(number, 0x4000 + number) == 1
    made.acked()
    one, other, _ = pairs[0]
    bad = damaged(made.frame(10, 0x400A), one, other)
    made.give(bad)
    for marks in (0, 0, 1 << 7):  # FECN, which the ICRC does not cover
        made.give(bad[:4] + bytes((bad[4] | marks,)) + bad[5:])
    assert made.completed() == 0
    assert made.acked() == []
    assert made.held() == (1, 3, 0)
    assert made.send(10, 0x400B) == 1


def test_the_same_damage_to_a_peer_of_ident_0_confirms_nothing(
    executor: str, pairs: list[tuple[int, int, int]]
) -> None:
    made = Peer(executor == "engine", 256)
    for number in range(10):
        assert made.send(number, 0) == 1
    one, other, _ = pairs[0]
    for number in range(10, 14):
        made.give(damaged(made.frame(number, 0), one, other))
        assert made.completed() == 0
        assert made.send(number, 0) == 1
    assert made.counters["held_ident"] == 4


def test_few_packets_are_held_and_the_oldest_make_room(peer: Peer) -> None:
    for place in range(IdentTracker.HELD + 3):
        assert peer.send(10 + place, 40_000 + 1_000 * place) == 0
    assert peer.held() == (IdentTracker.HELD + 3, 3, 0)
    assert peer.send(20, 40_001) == 0, "what it would have confirmed has gone"
    assert peer.counters["held_ident"] == IdentTracker.HELD + 4


def test_what_nobody_confirms_is_dropped_after_so_many_others(peer: Peer) -> None:
    """Else the sender's own count would come to it one day, and confirm it."""
    assert peer.send(10, 50_009) == 0
    for step in range(IdentTracker.FRESH + 1):
        peer.send(9, 30_010 + step)
    assert peer.held() == (1, 0, 0)
    assert peer.send(11, 50_010) == 0
    assert peer.held() == (2, 1, 0)


def test_a_held_packet_of_a_queue_pair_that_has_gone_does_nothing(peer: Peer) -> None:
    assert peer.send(10, 50_009) == 0
    del peer.nic.running[peer.qp.number]
    peer.give(peer.frame(11, 50_010))
    assert peer.completed() == 0
    assert peer.counters["drop_not_cached"] == 2


def test_damage_that_no_ident_explains_is_a_wrong_icrc(peer: Peer) -> None:
    bad = damaged(peer.frame(10, 30_010), 12 * 8)
    peer.give(bad)
    assert peer.held() == (0, 0, 1)


steps = st.lists(
    st.tuples(
        st.sampled_from(["next", "overtake", "far", "repeat", "damage", "small"]),
        st.integers(0, 80),
        st.sampled_from([1_000, 2 * MS, 300 * MS]),
    ),
    max_size=20,
)


@pytest.mark.slow
@pytest.mark.skipif(use.COMPILED is None, reason="no engine")
@settings(max_examples=100)
@given(steps, st.booleans())
def test_both_executors_take_the_same(script: list[tuple[str, int, int]], counts: bool) -> None:
    """Whatever comes with whatever ident: equal completions, ACKs and counters."""
    both = [Peer(engine) for engine in (False, True)]
    ident, number = (30_000 if counts else 0), 0
    frames = [[peer.frame(number, ident) for peer in both]]
    for what, amount, after_ns in script:
        ident = ident + 1 & 0xFFFF if counts else 0
        if what == "repeat":
            made = frames[-1 - amount % len(frames)]
        else:
            number = min(number + 1, 30)
            shift = {"overtake": -amount, "far": 1_000 * amount}.get(what, 0)
            made = [peer.frame(number, amount if what == "small" else ident + shift) for peer in both]
        if what == "damage":
            made = [damaged(frame, 96 + amount) for frame in made]
        frames.append(made)
        found = []
        for peer, frame in zip(both, made, strict=True):
            peer.give(frame, after_ns)
            found.append((peer.completed(), peer.acked(), dict(peer.counters)))
        assert found[0] == found[1]
