"""RC Link compared with RoCEv2 RC in the same virtual network: header bytes, goodput, completion times under loss.

Two NICs, with a wire each way of 1 us per packet and 5 us delay; each packet of either direction, ACKs included, is
lost with the given probability. One side sends messages of 16 KiB in packets of 1024 bytes, four at a time, so that at
most 64 packets are outstanding. Time is virtual: the figures measure the protocol, not the program, and the same seed
gives the same figures.
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
"""Header bytes common to both."""


@dataclass(frozen=True)
class Figures:
    """Figures of one transport at one loss rate."""

    transport: str
    loss: float
    header_bytes: int
    """Header bytes of a data packet, from the Ethernet header to the ICRC."""
    goodput: float
    """Payload rate relative to the wire's: 1 for a wire that is never idle and carries no retransmissions."""
    median_us: float
    """Median time of a message from the first packet given to the NIC to the completion."""
    worst_us: float
    data_packets: int
    answers: int
    """Packets in the other direction."""


def run_messages(post: Callable[[], None], done: Callable[[], int], drive: Callable[[Callable[[], bool]], object],
                 clock: Callable[[], int], messages: int) -> tuple[int, list[int]]:  # fmt: skip
    """Keep four messages in flight; return the total time, and the time of each."""
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
    """Return the figures from times in nanoseconds."""
    elapsed, times = result
    goodput = len(times) * PACKETS * PACKET_NS / elapsed
    return Figures(
        transport, loss, BELOW + header, round(goodput, 3), median(times) / 1_000, max(times) / 1_000, data, answers
    )


def rclink(loss: float, messages: int = MESSAGES) -> Figures:
    """Measure RC Link, one QP."""
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
    """Measure RoCEv2 RC SEND, one queue pair."""
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
    """Return all rows, in the order of the loss rates."""
    return [transport(loss, messages) for loss in LOSSES for transport in (rclink, roce)]


def lines(rows: list[Figures]) -> list[str]:
    """Return the table as Markdown, for the documentation."""
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
