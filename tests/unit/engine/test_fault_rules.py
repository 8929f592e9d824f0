"""Fault rules in C and in Python: the same packets, the same verdicts, the same counts in the same memory."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rnic.link.fault_rules import Counts, PacketFacts, Rule, pack_rules
from rnic.link.fault_script import ACTIONS, parse_script
from rnic.state.fault_table import ACTION_NAMES, COUNT_BYTES, TABLE_BYTES
from rnic.wire.flow import Flow
from rnic.wire.opcode import OPCODES

NAMES = [row.name for row in OPCODES if row is not None]
PATTERNS = ["RC_*", "RC_SEND*", "*_ACKNOWLEDGE", "RC_READ_RESPONSE*", "UD_*", "RC_WRITE_LAST", "*"]


@pytest.fixture(scope="session")
def c_rules(builds: Callable[..., ctypes.CDLL], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    calls = str(Path(__file__).with_name("fault_rules.c"))
    return builds(tmp_path_factory.mktemp("fault rules") / "rules.so", "io/fault_rules.c", flags=(calls,))


def random_rule(rng: random.Random) -> dict[str, object]:
    """A rule that the grammar allows, with values that random packets meet."""
    match: dict[str, object] = {}
    choices: dict[str, Callable[[], object]] = {
        "direction": lambda: rng.choice(["tx", "rx"]),
        "opcode": lambda: rng.choice([*PATTERNS, rng.choice(NAMES)]) if rng.random() < 0.8 else rng.randrange(256),
        "psn": lambda: [rng.choice([0xFFFFF0, 0, 4]), rng.choice([8, 30, 0xFFFFFF])],
        "dqpn": lambda: rng.choice([2, [1, 3], [0, 0xFFFFFF]]),
        "length": lambda: sorted([rng.randrange(60), rng.randrange(60)]),
        "ackreq": lambda: rng.random() < 0.5,
        "syndrome": lambda: rng.choice(["ACK", "NAK", "RNR_NAK", 0, 0x1F, 0x60]),
        "src": lambda: rng.choice(["10.0.0.1", "fd00::1"]),
        "dst": lambda: rng.choice(["10.0.0.2", "fd00::2"]),
    }
    for key in rng.sample(sorted(choices), rng.choice([0, 1, 1, 2, 3])):
        match[key] = choices[key]()
    rule: dict[str, object] = {"match": match, "action": rng.choice(sorted(ACTIONS))}
    when = rng.randrange(6)
    if when == 0:
        rule["probability"] = rng.choice([0.3, 1, 1e-9, 0.999])
        if rng.random() < 0.3:
            rule["seed"] = rng.getrandbits(64)
    elif when < 5:
        rule |= {key: rng.randrange(1, 9) for key in ("nth", "every") if rng.random() < 0.6}
    if rng.random() < 0.3:
        rule["times"] = rng.randrange(1, 5)
    if rule["action"] == "delay":
        rule["delay_ns"] = rng.randrange(1 << 40)
    if rule["action"] == "corrupt" and rng.random() < 0.5:
        rule |= {"byte": rng.choice([-1, -60, -4, 0, 7, 59, 70]), "xor": rng.randrange(1, 256)}
    return rule


def random_packet(rng: random.Random) -> bytearray:
    if rng.random() < 0.05:
        return bytearray(rng.randbytes(rng.randrange(1, 14)))
    opcode = rng.choice([row.opcode for row in OPCODES if row is not None] + [0xFF, 0x1F])
    words = (rng.getrandbits(1) << 31 | rng.choice([0xFFFFFE, 0, 3, 20])).to_bytes(4)
    body = bytes([rng.choice([0, 0x1F, 0x60, 0x20, 0x65])]) + rng.randbytes(rng.randrange(48))
    return bytearray(bytes([opcode, 0, 0, 0]) + rng.randrange(5).to_bytes(4) + words + body)


def compare(c_rules: ctypes.CDLL, seed: int, packets: int) -> int:
    """Judge random packets by random rules in both; return how many were struck."""
    rng = random.Random(seed)
    script = [random_rule(rng) for _ in range(rng.randrange(1, 6))]
    mine, theirs = bytearray(COUNT_BYTES), bytearray(COUNT_BYTES)
    rules = parse_script(script, seed, Counts(memoryview(mine))).rules
    table = ctypes.create_string_buffer(pack_rules(rules), TABLE_BYTES)
    counts = (ctypes.c_uint8 * COUNT_BYTES).from_buffer(theirs)
    struck = 0
    for _ in range(packets):
        packet, direction, comes_back = random_packet(rng), rng.choice(["tx", "rx"]), rng.random() < 0.1
        four = rng.random() < 0.5
        ends = [bytes([10, 0, 0, end]) if four else b"\xfd" + bytes(14) + bytes([end]) for end in (1, 2)]
        rng.shuffle(ends)
        facts = PacketFacts(bytes(packet), direction, Flow(ends[0], ends[1], 4791, 4791), comes_back)
        hit: dict[str, Rule] = {rule.action: rule for rule in rules if rule.strikes(facts)}
        expected = bytearray(packet)
        if "corrupt" in hit:
            told = hit["corrupt"].struck(len(packet))
            at = told["byte"]
            assert at is not None
            if -len(packet) <= at < len(packet):
                expected[at] ^= told["xor"] or 0
        raw = (ctypes.c_uint8 * len(packet)).from_buffer(packet)
        way = ["tx", "rx"].index(direction)
        length = ctypes.c_uint64(len(packet))
        actions = c_rules.judge(table, counts, way, int(comes_back), raw, length, *ends, 4 if four else 16)
        del raw
        assert {name for number, name in enumerate(ACTION_NAMES) if actions >> number & 1} == set(hit), script
        assert packet == expected, script
        struck += bool(hit)
    del counts
    assert mine == theirs, script
    return struck


def test_verdicts_and_counts_are_the_same(c_rules: ctypes.CDLL) -> None:
    assert sum(compare(c_rules, seed, 60) for seed in range(15)) > 100


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_a_million_verdicts_are_the_same(c_rules: ctypes.CDLL, part: int) -> None:
    assert sum(compare(c_rules, 1000 + 10 * part + seed, 5000) for seed in range(10)) > 1_000


@pytest.mark.parametrize("seed", range(8))
def test_a_run_without_its_bytes_passes_if_all_its_packets_would(c_rules: ctypes.CDLL, seed: int) -> None:
    rng = random.Random(seed)
    passed = refused = 0
    for _ in range(40):
        script = [random_rule(rng) | {"match": {"opcode": rng.choice(PATTERNS)}} for _ in range(2)]
        mine, theirs = bytearray(COUNT_BYTES), bytearray(COUNT_BYTES)
        rules = parse_script(script, seed, Counts(memoryview(mine))).rules
        table = ctypes.create_string_buffer(pack_rules(rules), TABLE_BYTES)
        counts = (ctypes.c_uint8 * COUNT_BYTES).from_buffer(theirs)
        family = rng.choice(["SEND", "WRITE", "READ_RESPONSE"])
        whole = rng.choice([("FIRST", "LAST", "ONLY"), ("FIRST", "MIDDLE", "FIRST"), ("MIDDLE", "LAST", "LAST")])
        first, last, all_of_them = (f"RC_{family}_{part}" for part in whole)
        number = {name: row.opcode for row in OPCODES if row is not None for name in [row.name]}
        count, mtu, psn = rng.randrange(2, 7), 256, rng.choice([0, 0xFFFFFD])
        names = [first, *[f"RC_{family}_MIDDLE"] * (count - 2), last]
        struck = False
        for place, name in enumerate(names):
            row = OPCODES[number[name]]
            assert row is not None
            head = bytearray(bytes([row.opcode, 0, 0, 0]) + (5).to_bytes(4) + (psn + place & 0xFFFFFF).to_bytes(4))
            head += bytes([0x1F]) if row.aeth else b"\0"
            packet = bytes(head).ljust(row.header_bytes + mtu + 4, b"\0")
            address = bytes([10, 0, 0, 1])
            facts = PacketFacts(packet, "rx", Flow(address, address, 4791, 4791))
            hits = [rule.strikes(facts) for rule in rules]
            struck |= any(hits)
        length = ctypes.c_uint64(count * mtu)
        refused_here = c_rules.run(
            table, counts, number[all_of_them], psn, count, length, ctypes.c_uint64(mtu), 0, bytes([10, 0, 0, 1])
        )
        assert bool(refused_here) is struck, script
        del counts
        if struck:
            seen = memoryview(theirs).cast("Q")[1:].tolist()[::3]
            assert not any(seen), "what is refused is not counted"
        else:
            assert theirs == mine
        passed, refused = passed + (not struck), refused + struck
    assert min(passed, refused) > 0
