"""RC Link beside RoCEv2's RC in the same virtual network: header bytes, goodput and completion times under loss.

Two NICs with a wire each way that takes 1 us for a packet and 5 us to cross; each packet of either direction, ACKs
included, is lost with the given probability. One side sends messages of 16 KiB in packets of 1024 bytes, four at a
time, so that at most 64 packets are outstanding. Time is virtual: the figures are what the rules cost, not the
program, and every run with the same seed gives the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

import harness

from rnic.link.faults import FaultRates
from rnic.rclink.numbers import ICRC_BYTES, RH_BYTES
from rnic.spec.limits import BTH_BYTES
from rnic.testing import QpPair, RcLinkNet, SimNet
from rnic.verbs import enums as e
from rnic.wire.ethernet import ETHERNET_BYTES
from rnic.wire.ip import IPV4_BYTES, UDP_BYTES

PACKET = 1_024
PACKETS = 16
MESSAGE = PACKET * PACKETS
OUTSTANDING = 4
PACKET_NS = 1_000
LATENCY_NS = 5_000
LOSSES = (0.0, 0.001, 0.01)
MESSAGES = 200
SEED = 1

BELOW = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES
"""Header bytes that both have."""


@dataclass(frozen=True)
class Figures:
    """What one transport did at one loss rate."""

    transport: str
    loss: float
    header_bytes: int
    """Of a data packet, from the Ethernet header to the ICRC."""
    goodput: float
    """Payload bytes a nanosecond, in parts of what the wire carries: 1 is a wire that never idles nor repeats."""
    median_us: float
    """Of a message's time from the first packet given to the NIC to the completion."""
    worst_us: float
    data_packets: int
    answers: int
    """Packets of the other direction."""


def run_messages(post: Callable[[], None], done: Callable[[], int], drive: Callable[[Callable[[], bool]], object],
                 clock: Callable[[], int], messages: int) -> tuple[int, list[int]]:  # fmt: skip
    """Keep four messages under way; the time it took, and each message's own."""
    started: list[int] = []
    ended: list[int] = []
    begin = clock()

    def step() -> bool:
        ended.extend([clock()] * done())
        while len(started) < messages and len(started) - len(ended) < OUTSTANDING:
            started.append(clock())
            post()
        return len(ended) >= messages

    drive(step)
    return clock() - begin, [after - before for before, after in zip(started, ended, strict=True)]


def figures(
    transport: str, loss: float, header: int, result: tuple[int, list[int]], data: int, answers: int
) -> Figures:
    """From times in nanoseconds."""
    elapsed, times = result
    goodput = len(times) * PACKETS * PACKET_NS / elapsed
    return Figures(
        transport, loss, BELOW + header, round(goodput, 3), median(times) / 1_000, max(times) / 1_000, data, answers
    )


def rclink(loss: float, messages: int = MESSAGES) -> Figures:
    """RC Link, one QP."""
    net = RcLinkNet(
        2,
        seed=SEED,
        tx=FaultRates(drop=loss),
        packet_ns=PACKET_NS,
        latency_ns=LATENCY_NS,
        settings={"qp_num": 4, "ost": OUTSTANDING * PACKETS},
    )
    net.connect(0, 1, 1, 2)
    one, two = (port.endpoint for port in net.ports)

    def post() -> None:
        for index in range(PACKETS):
            one.send(1, bytes(PACKET), tag="end" if index == PACKETS - 1 else None)

    def done() -> int:
        while two.recv() is not None:
            pass
        return sum(1 for _ in iter(one.next_sent, None))

    result = run_messages(post, done, net.run, net.clock, messages)
    answers = two.counters["acks_sent"] + two.counters["naks_sent"]
    return figures("RC Link", loss, RH_BYTES + ICRC_BYTES, result, one.counters["tx_send"], answers)


def roce(loss: float, messages: int = MESSAGES) -> Figures:
    """RoCEv2 RC SEND, one queue pair."""
    net = SimNet(
        2,
        seed=SEED,
        tx=FaultRates(drop=loss),
        packet_ns=PACKET_NS,
        latency_ns=LATENCY_NS,
        settings={"window_packets": OUTSTANDING * PACKETS},
    )
    with QpPair(net=net, size=MESSAGE, depth=16) as pair:
        for _ in range(2 * OUTSTANDING):
            pair.b.post_recv(MESSAGE)

        def done() -> int:
            for wc in pair.b.poll():
                assert wc.status == e.IBV_WC_SUCCESS, wc.status_name
                pair.b.post_recv(MESSAGE)
            completions = pair.a.poll()
            assert all(wc.status == e.IBV_WC_SUCCESS for wc in completions)
            return len(completions)

        result = run_messages(lambda: pair.a.post_send(e.IBV_WR_SEND, MESSAGE), done, net.run, net.clock, messages)
        data, answers = (side.counters["tx_packets"] for side in (pair.a, pair.b))
    return figures("RoCEv2 RC", loss, BTH_BYTES + ICRC_BYTES, result, data, answers)


def table(messages: int = MESSAGES) -> list[Figures]:
    """All rows, in the order of the loss rates."""
    return [transport(loss, messages) for loss in LOSSES for transport in (rclink, roce)]


def lines(rows: list[Figures]) -> list[str]:
    """The table as Markdown, which is how the documentation has it."""
    out = [
        "| loss | transport | header bytes | goodput | median completion | worst completion | data packets | answers |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    out += [
        f"| {100 * row.loss:g} % | {row.transport} | {row.header_bytes} | {row.goodput:.3f} | {row.median_us:.0f} us "
        f"| {row.worst_us:.0f} us | {row.data_packets} | {row.answers} |"
        for row in rows
    ]
    return out


def main(argv: list[str]) -> None:
    """Run and print."""
    parser = harness.Parser("rclink", __doc__, json=True)
    parser.add_argument("--messages", type=harness.at_least_one, default=MESSAGES, help=f"of each row; {MESSAGES}")
    given = parser.read(argv)
    rows = table(given.messages)
    if not harness.write_json(given, [asdict(row) for row in rows]):
        print("\n".join(lines(rows)))


if __name__ == "__main__":
    harness.run(main)
