"""``responder`` in a NIC: the conform scripts of an RC responder, and random packets beside the reference."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from responder_run import Place, on_amaranth, reason_to_skip, verilated

from rnic.conform.frames import Connection
from rnic.conform.runner import PASS, run
from rnic.conform.script import Script, scripts
from rnic.gateware.roce.responder_nic import ResponderParams
from rnic.spec.limits import BTH_BYTES
from rnic.spec.states import ERR
from rnic.transport.responder import NOTHING, SEND
from rnic.wire.opcode import OPCODES, UNSUPPORTED
from rnic.wire.packet import Packet, build, parse, seal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPTS = [script for script in scripts() if script.suite == "responder" and script.options["service"] == "RC"]
NOT_YET = {
    "fetch-add": "atomics",
    "compare-swap": "atomics",
    "duplicate-atomic": "atomics",
    "duplicate-second-atomic": "atomics",
    "atomic-read-only": "atomics",
    "atomic-key": "atomics",
    "marked": "congestion notifications",
    "atomic-write": "ATOMIC WRITE",
    "atomic-write-again": "ATOMIC WRITE",
    "atomic-write-key": "ATOMIC WRITE",
    "flush": "FLUSH",
    "flush-region": "FLUSH",
    "flush-right": "FLUSH",
    "flush-range": "FLUSH",
}
"""Scripts that do not pass, and what the gateware lacks."""
NOT_MEANT = ("ATOMIC WRITE", "FLUSH")
"""Operations that it was not to have: their scripts do not count."""


def group(width: int) -> pytest.MarkDecorator:
    """One worker compiles a responder, once, and runs all that is for it."""
    return pytest.mark.xdist_group(f"responder-{width}")


QUICK = ("send-only", "read-two-packets", "gap-once", "key-tag", "rnr")
"""What Amaranth's simulator plays."""


def play(simulate: Any, wanted: list[Script], width: int, **options: Any) -> None:
    """Play scripts on the gateware and on the reference: verdicts as said, states equal, no rule broken."""
    gateware, reference = Place(simulate, width, **options), Place()
    try:
        for script in wanted:
            result = run(gateware.bench, script)
            assert (result.verdict == PASS) == (script.name not in NOT_YET), f"{script.name}: {result.detail}"
            assert run(reference.bench, script).verdict == PASS
            if result.verdict == PASS:
                assert gateware.states[-1] == reference.states[-1], script.name
        assert gateware.broken_rules() == []
        assert gateware.frames
    finally:
        gateware.close()
        reference.close()


def test_some_scripts_pass() -> None:
    play(on_amaranth, [script for script in SCRIPTS if script.name in QUICK], 64)


@pytest.fixture(scope="module")
def verilator() -> None:
    reason = reason_to_skip()
    if reason:
        pytest.skip(reason)


def test_at_least_nine_in_ten_are_to_pass() -> None:
    assert set(NOT_YET) <= {script.name for script in SCRIPTS}
    lacks = [name for name, what in NOT_YET.items() if what not in NOT_MEANT]
    assert 10 * len(lacks) <= len(SCRIPTS) - (len(NOT_YET) - len(lacks))


@pytest.mark.full
@pytest.mark.parametrize("width", [pytest.param(64, marks=group(64)), pytest.param(512, marks=group(512))])
@pytest.mark.usefixtures("verilator")
def test_scripts_of_an_rc_responder_pass(width: int) -> None:
    play(verilated, SCRIPTS, width)


# ---------------------------------------------------------------- random packets


OPTIONS = (("256", "rw"), ("256", "r"), ("512", "w"), ("1024", "rw"), ("4096", "rw"))


class Traffic:
    """Packets to one connection: what goes on from the reference's state, and what does not."""

    def __init__(self, rng: random.Random, reference: Place, connection: Connection) -> None:
        self.rng, self.reference, self.connection = rng, reference, connection
        self.reads: list[dict[str, int]] = []

    @property
    def responder(self) -> Any:
        """The reference's responder."""
        return self.reference.nic.qps[self.connection.peer_qpn].responder

    @property
    def expected_psn(self) -> int:
        """The PSN that comes next."""
        psn: int = self.responder.qp.ctx.expected_psn
        return psn

    def packet(self) -> bytes:
        """The next packet, right or wrong, sealed."""
        rng, connection = self.rng, self.connection
        fields = self._right()
        way = rng.random()
        if way < 0.35:
            self._spoil(fields)
        row = OPCODES[fields["opcode"]] or UNSUPPORTED[fields["opcode"]]
        made = bytearray(build(**(fields | {"opcode": row})))
        if way > 0.95:
            self._damage(made)
        whole = len(made) % 4 == 0 and len(made) >= BTH_BYTES
        sealed = bytearray(seal(bytes(made), connection.flow)) if whole else bytearray(made + bytes(4))
        if 0.93 < way < 0.95:
            sealed[rng.randrange(len(sealed))] ^= 1 << rng.randrange(8)
        return bytes(sealed)

    def _right(self) -> dict[str, Any]:
        rng, connection, r = self.rng, self.connection, self.responder
        mtu = connection.mtu
        region = connection.regions["M"]
        fields: dict[str, Any] = {
            "dqpn": connection.peer_qpn, "psn": self.expected_psn, "ackreq": rng.random() < 0.5,
            "solicited": rng.random() < 0.2,
        }  # fmt: skip
        if r.open == NOTHING and rng.random() < 0.25:
            size = rng.choice((0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu + 7))
            at = rng.choice((0, 1, 64, 4090, 8191, 12_345))
            fields |= {"opcode": 0x0C, "va": region.va + at, "rkey": region.key, "dma_length": size}
            self.reads.append(dict(fields))
            return fields
        if r.open == NOTHING:
            send = rng.random() < 0.4
            length = rng.choice((0, 1, 3, 63, 64, 65, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5))
            first, size = length > mtu, min(length, mtu)
            opcode = (0x00 if send else 0x06) if first else (0x04 if send else 0x0A) + rng.choice((0, 0, 1))
            if not send:
                at = rng.choice((0, 1, 7, 2048, 4095, 4096 - 128, 20_000, rng.randrange(40_000)))
                fields |= {"va": region.va + at, "rkey": region.key, "dma_length": length}
        else:
            send = r.open == SEND
            left = (rng.choice((r.offset + 1, r.offset + mtu, r.receive_bytes)) if send else r.write_length) - r.offset
            size = max(0, min(left, mtu))
            last = left <= mtu
            opcode = (0x01 if send else 0x07) + (rng.choice((1, 1, 2)) if last else 0)
            if send and not last:
                size = mtu
        row = OPCODES[opcode]
        assert row is not None
        if row.end:
            fields["ackreq"] = True  # else the reference acknowledges after a while
        if row.immdt:
            fields["imm"] = rng.getrandbits(32)
        return fields | {"opcode": opcode, "payload": rng.randbytes(size)}

    def _spoil(self, fields: dict[str, Any]) -> None:
        """Make one thing wrong, or something that has been."""
        rng, connection = self.rng, self.connection
        psn = fields["psn"]
        way = rng.randrange(13)
        if way == 0:
            fields["psn"] = psn + rng.choice((1, 2, 100, 1 << 22)) & 0xFF_FFFF
        elif way in (1, 2) and fields["opcode"] != 0x0C:
            fields["psn"] = psn - rng.choice((1, 1, 2, 9)) & 0xFF_FFFF
        elif way == 3 and self.reads:
            again = rng.choice(self.reads[-10:])
            fields.clear()
            fields |= again
        elif way == 4:
            fields["opcode"] = rng.choice((0, 1, 2, 4, 6, 7, 8, 10, 0x13, 0x14, 0x18, 0x1F))
            row = OPCODES[fields["opcode"]]
            if row is not None and not row.payload:
                fields["payload"] = b""
            fields["ackreq"] = True
        elif way == 5 and "rkey" in fields:
            fields["rkey"] ^= rng.choice((1, 0x80, 0x1_0000, 0x8000_0000))
        elif way == 6 and "rkey" in fields:
            other = connection.regions[rng.choice("RLF")]
            fields |= {"va": other.va, "rkey": other.key}
        elif way == 7 and "va" in fields:
            region = connection.regions["M"]
            fields["va"] = region.va + rng.choice((-1, region.size - 1, region.size, -(1 << 30)))
        elif way == 8 and "payload" in fields:
            fields["payload"] = rng.randbytes(max(0, len(fields["payload"]) + rng.choice((-1, 1, 4, -7))))
        elif way == 9 and "dma_length" in fields:
            fields["dma_length"] = max(0, fields["dma_length"] + rng.choice((-1, 1, 256, 1 << 31))) & 0xFFFF_FFFF
        elif way == 10:
            fields["pkey"] = rng.choice((0x7FFF, 0x1234, 0xFFFE))
        elif way == 11:
            fields["dqpn"] ^= 0x5_A5A5
        elif way == 12:
            fields |= {"fecn": True, "becn": True, "migreq": False}

    def _damage(self, made: bytearray) -> None:
        """Change bytes of the transport headers, or the length."""
        rng = self.rng
        way = rng.randrange(4)
        if way == 0:
            made[1] ^= 1 << rng.randrange(8)
        elif way == 1:
            del made[-rng.choice((1, 2, 4, 8)) :]
        elif way == 2:
            made += bytes(rng.choice((1, 2, 4)))
        else:
            made[0] = rng.choice((0x20, 0x2A, 0x64, 0x81, 0x15, 0xC1, 0x40))


class Twins:
    """The gateware and the reference, each in its own world of the same seed."""

    def __init__(self, simulate: Any, width: int, seed: int, **options: Any) -> None:
        self.rng = random.Random(seed)
        self.gateware, self.reference = Place(simulate, width, seed=seed, **options), Place()
        self.places = (self.gateware, self.reference)
        self.counts = {"packets": 0, "replies": 0, "naks": 0, "connections": 0, "completions": 0}

    def open(self) -> Traffic:
        """A new connection on both."""
        mtu, access = self.rng.choice(OPTIONS)
        start = self.rng.choice((100, 0xFF_FFFE, self.rng.getrandbits(24)))
        options = {"mtu": mtu, "access": access, "start": str(start), "rnr_timer": str(self.rng.randrange(32))}
        options["credits"] = self.rng.choice("01")
        base = SCRIPTS[0]
        script = Script(
            base.suite, "random", "", "", base.options | options, frozenset(options), False, ()
        )  # fmt: skip
        ours, theirs = (place.bench.open(script) for place in self.places)
        assert (ours.peer_qpn, ours.regions) == (theirs.peer_qpn, theirs.regions)
        self.counts["connections"] += 1
        return Traffic(self.rng, self.reference, theirs)

    def receives(self) -> None:
        """Post receive entries on both, or none."""
        rng = self.rng
        if rng.random() < 0.3:
            line = f"recv {rng.randrange(1, 4)} {rng.choice((0, 64, 4096, 16_384))}"
            for place in self.places:
                place.bench.ask(line)

    def step(self, traffic: Traffic) -> None:
        """Give both a packet, and compare what they do."""
        packet = traffic.packet()
        ours, theirs = (self._send(place, traffic.connection, [packet]) for place in self.places)
        parsed = parse(memoryview(packet))
        again = isinstance(parsed, Packet) and parsed.opcode == 0x0C and not theirs
        if ours != theirs and not again:  # the gateware keeps no READs: each whose key is right is answered again
            raise AssertionError(f"{packet.hex()[:80]}: {ours} and not {theirs}")
        self.counts["packets"] += 1
        self.counts["replies"] += len(theirs)
        self._compare(traffic, packet)

    def _compare(self, traffic: Traffic, packet: bytes) -> None:
        """States and completions are the same."""
        number = traffic.connection.peer_qpn
        states = [place.state(number) for place in self.places]
        assert states[0] == states[1], packet.hex()[:80]
        self.counts["naks"] += states[0]["state"] == ERR
        while (said := [place.bench.ask("poll") for place in self.places])[1] != "none":
            assert said[0] == said[1], packet.hex()[:80]
            self.counts["completions"] += 1
        assert said[0] == "none"

    def burst(self, traffic: Traffic, count: int) -> None:
        """Give both packets, the gateware all at once, and compare what they do with all of them."""
        packets, theirs = [], list[bytes]()
        for _ in range(count):
            packet = traffic.packet()
            parsed = parse(memoryview(packet))
            if isinstance(parsed, Packet) and parsed.opcode == 0x0C and parsed.psn != traffic.expected_psn:
                continue  # a READ again, which the gateware may answer and the reference may not
            packets.append(packet)
            theirs += self._send(self.reference, traffic.connection, [packet])
        ours = self._send(self.gateware, traffic.connection, packets)
        assert ours == theirs, [packet.hex()[:80] for packet in packets]
        self.counts["packets"] += len(packets)
        self.counts["replies"] += len(theirs)
        self._compare(traffic, packets[-1] if packets else b"")

    def _send(self, place: Place, connection: Connection, packets: list[bytes]) -> list[bytes]:
        wire = place.bench.wire
        for packet in packets:
            wire.send(connection.flow, packet)
        out = []
        while (came := wire.receive(wire.now_ns() + 20_000)) is not None:
            assert came.icrc_ok
            out.append(came.payload[:-4])
        return out

    def end(self, traffic: Traffic) -> None:
        """Compare memory, and end the connection."""
        for region, size in (("M", 65_536), ("R", 4_096), ("L", 4_096), ("F", 4_096), ("S", 16_384 * 16)):
            ours, theirs = (place.bench.ask_bytes(region, 0, size) for place in self.places)
            assert ours == theirs, region
        for place in self.places:
            place.bench.close()

    def run(self, packets: int) -> None:
        """So many packets, over connections that end with an error, or after a while."""
        while self.counts["packets"] < packets:
            traffic = self.open()
            for _ in range(self.rng.randrange(5, 60)):
                self.receives()
                if self.rng.random() < 0.3:
                    self.burst(traffic, self.rng.randrange(2, 12))
                else:
                    self.step(traffic)
                if self.gateware.state(traffic.connection.peer_qpn)["state"] == ERR and self.rng.random() < 0.5:
                    break
            self.end(traffic)


@pytest.fixture
def twins(request: pytest.FixtureRequest) -> Iterator[Twins]:
    made = Twins(*request.param[:3], **request.param[3])
    yield made
    for place in made.places:
        place.close()


@pytest.mark.full
@pytest.mark.usefixtures("verilator")
@pytest.mark.parametrize(
    "twins",
    [
        pytest.param((verilated, 64, 1, {}), id="64", marks=group(64)),
        pytest.param((verilated, 64, 2, {"stalls": 0.4, "latency": 30}), id="64-stalls", marks=group(64)),
        pytest.param((verilated, 512, 3, {}), id="512", marks=group(512)),
        pytest.param((verilated, 512, 4, {"stalls": 0.4, "latency": 120}), id="512-stalls", marks=group(512)),
    ],
    indirect=True,
)
def test_random_packets_do_what_they_do_to_the_reference(twins: Twins) -> None:
    twins.run(1_000)
    assert twins.counts["replies"] > 500
    assert twins.counts["naks"] > 20
    assert twins.counts["completions"] > 200


@pytest.mark.parametrize("values", [{"width": 100}, {"room": 8000}])
def test_sizes_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        ResponderParams(**values)
