"""Measurements of a run: queues and progress over time, pauses, captures of links, and figures at the end."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from rnic.link.pcap import PcapngWriter
from rnic.link.recording import path_ethernet
from rnic.sim.topology import TopologyError
from rnic.spec.psn import psn_diff
from rnic.wire.ip import ip_packet

if TYPE_CHECKING:
    from typing import BinaryIO

    from rnic.sim.fabric import Fabric
    from rnic.sim.port import Packet, Port
    from rnic.sim.workloads import Flow

MOST_SAMPLES = 4_096
"""Most samples, an even number: at this count, every other sample is dropped and the period doubles."""
WATCHED_FLOWS = 64
"""Number of flows, from the first, whose progress is recorded."""
COUNTERS = (
    "cnps_sent",
    "cnps_received",
    "cnp_rate_cuts",
    "ecn_marked_packets",
    "retransmitted_packets",
    "probes",
    "ack_timeouts",
    "sequence_naks_sent",
)
PERCENTILES = (50, 90, 99, 99.9, 100)
SIZE_CLASSES = (10_000, 100_000, 1_000_000, 10_000_000)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile by nearest rank; ``ordered`` must be sorted and not empty."""
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]


class Pause(NamedTuple):
    """A pause of a port."""

    port: str
    start_ns: int
    end_ns: int


class Watched(NamedTuple):
    """A flow whose progress is recorded: ``bytes`` arrived in order, for each sample from ``first``."""

    flow: Flow
    first: int
    bytes: list[int]


class Measure:
    """Sampler of a running fabric.

    Args:
        fabric: the fabric, before it runs.
        period_ns: time between two samples; 0 takes none.

    ``times_ns`` are the times of the samples; ``queues`` holds the queued bytes of each switch port at those times.
    """

    def __init__(self, fabric: Fabric, period_ns: int) -> None:
        self.fabric = fabric
        self.period_ns = period_ns
        self.times_ns: list[int] = []
        self.ports: list[Port] = [port for (here, _), port in fabric.ports.items() if here in fabric.switches]
        self.queues: list[list[int]] = [[] for _ in self.ports]
        self._sent: list[list[int]] = [[] for _ in self.ports]
        """Bytes that each port has sent, at those times."""
        self._paused: list[list[int]] = [[] for _ in self.ports]
        """Nanoseconds for which PFC has stopped each port, up to those times."""
        self.watched: dict[int, Watched] = {}
        self._last: dict[int, tuple[int, int]] = {}
        self.cnps: list[int] = []
        self._skip = 0
        self._every = 1
        if period_ns:
            fabric.every(period_ns, self._look)
        for port in fabric.ports.values():
            port.stops = []

    def _look(self, now_ns: int) -> None:
        self._skip += 1
        if self._skip < self._every:
            return
        self._skip = 0
        at = len(self.times_ns)
        self.times_ns.append(now_ns)
        for port, queue, sent, paused in zip(self.ports, self.queues, self._sent, self._paused, strict=True):
            queue.append(port.queued_bytes)
            sent.append(port.sent_bytes)
            paused.append(port.paused_now_ns)
        self.cnps.append(self.fabric.count("cnps_sent"))
        self._progress(at)
        if len(self.times_ns) >= MOST_SAMPLES:
            self._thin()

    def _progress(self, at: int) -> None:
        mtu = self.fabric.topology.mtu
        for number, (flow, pair) in self.fabric.traffic.begun.items():
            if number >= WATCHED_FLOWS:
                break
            if flow.start_ns > self.fabric.agenda.now_ns:
                continue
            watched = self.watched.get(number)
            if watched is None:
                watched = self.watched[number] = Watched(flow, at, [])
            psn, packets = self._last.get(number, (0, 0))
            now = pair.received_psn
            packets += psn_diff(now, psn)
            self._last[number] = now, packets
            watched.bytes.append(min(flow.size, packets * mtu))
        for number, watched in self.watched.items():
            if number not in self.fabric.traffic.begun and len(watched.bytes) + watched.first <= at:
                watched.bytes.append(watched.flow.size)

    def _thin(self) -> None:
        self.times_ns = self.times_ns[::2]
        self.queues, self._sent, self._paused = (
            [series[::2] for series in each] for each in (self.queues, self._sent, self._paused)
        )
        self.cnps = self.cnps[::2]
        self.watched = {
            number: Watched(flow, (first + 1) // 2, series[first % 2 :: 2])
            for number, (flow, first, series) in self.watched.items()
        }
        # the newest sample was dropped: keep the period to the newest kept sample
        self._skip = self._every
        self._every *= 2

    # -------------------------------------------------------------------------------------- at the end

    def pauses(self) -> list[Pause]:
        """Return the times at which ports were paused."""
        now_ns = self.fabric.agenda.now_ns
        found = []
        for port in self.fabric.ports.values():
            stops = [*(port.stops or ()), now_ns]
            pairs = zip(stops[::2], stops[1::2], strict=False)
            found += [Pause(port.name, begin, end) for begin, end in pairs]
        return found

    def flows(self) -> list[dict[str, Any]]:
        """Return a row for each finished flow."""
        return [
            {
                "src": flow.src,
                "dst": flow.dst,
                "workload": flow.label,
                "bytes": flow.size,
                "start_ns": flow.start_ns,
                "fct_ns": result.took_ns,
                "ideal_ns": result.ideal_ns,
                "slowdown": round(result.slowdown, 6),
                "goodput_gbps": round(flow.size * 8 / result.took_ns, 6),
                "status": result.status,
                "path": " > ".join(self.fabric.path(result)),
            }
            for result in self.fabric.results
            for flow in (result.flow,)
        ]

    def sizes(self) -> list[dict[str, Any]]:
        """Return completion times and slowdowns by flow size; the last row is over all flows."""
        rows = []
        below = 0
        good = [result for result in self.fabric.results if not result.status]
        for above in (*SIZE_CLASSES, 0):
            some = [each for each in good if below < each.flow.size <= above or (not above and each.flow.size > below)]
            rows.append(_size_row(f"up to {above:,}" if above else f"over {below:,}", some))
            below = above
        return [row for row in [*rows, _size_row("all", good)] if row["flows"]]

    def series(self) -> list[dict[str, Any]]:
        """Return a row for each sample of each switch port that sent: its queue, and rate and pauses since the previous
        sample."""
        rows: list[dict[str, Any]] = []
        for port, queue, sent, paused in zip(self.ports, self.queues, self._sent, self._paused, strict=True):
            if not port.sent:
                continue
            before = (0, 0, 0)
            for now in zip(self.times_ns, sent, paused, strict=True):
                time_ns, moved, stood = (new - old for new, old in zip(now, before, strict=True))
                rows.append(
                    {
                        "time_ns": now[0],
                        "port": port.name,
                        "queue_bytes": queue[len(rows) % len(queue)],
                        "gbps": round(moved * 8 / time_ns, 6) if time_ns else 0.0,
                        "paused": round(stood / time_ns, 6) if time_ns else 0.0,
                    }
                )
                before = now
        return rows

    def progress(self) -> list[dict[str, Any]]:
        """Return a row for each sample of each watched flow: arrived bytes, and the rate since the previous sample."""
        rows = []
        for number, (flow, first, series) in self.watched.items():
            times = self.times_ns[first : first + len(series)]
            before = max(flow.start_ns, 0), 0
            for now in zip(times, series, strict=True):
                time_ns, moved = (new - old for new, old in zip(now, before, strict=True))
                rows.append(
                    {
                        "time_ns": now[0],
                        "flow": number,
                        "src": flow.src,
                        "dst": flow.dst,
                        "bytes": now[1],
                        "gbps": round(moved * 8 / time_ns, 6) if time_ns else 0.0,
                    }
                )
                before = now
        return rows

    def port_rows(self) -> list[dict[str, Any]]:
        """Return a row for each port that sent or was paused."""
        series = dict(zip((id(port) for port in self.ports), self.queues, strict=True))
        rows = []
        for port in self.fabric.ports.values():
            if not port.sent and not port.pauses:
                continue
            looks = sorted(series.get(id(port), ()))
            rows.append(
                {
                    "port": port.name,
                    "packets": port.sent,
                    "bytes": port.sent_bytes,
                    "queue_peak_bytes": port.peak_bytes,
                    "queue_mean_bytes": round(sum(looks) / len(looks)) if looks else None,
                    "queue_p99_bytes": percentile(looks, 99) if looks else None,
                    "marked": port.marked,
                    "lost": port.lost,
                    "pauses": port.pauses,
                    "paused_ns": port.paused_ns,
                }
            )
        return rows

    def summary(self) -> dict[str, Any]:
        """Return the figures of the whole run."""
        fabric = self.fabric
        good = [result for result in fabric.results if not result.status]
        moved = sum(result.flow.size for result in good)
        begun = min((result.flow.start_ns for result in good), default=0)
        ended = max((result.end_ns for result in good), default=0)
        return {
            "virtual_ns": fabric.agenda.now_ns,
            "events": fabric.agenda.events,
            "nics": len(fabric.hosts),
            "flows_over": len(fabric.results),
            "flows_failed": len(fabric.results) - len(good),
            "flows_left": fabric.left,
            "bytes": moved,
            "goodput_gbps": round(moved * 8 / (ended - begun), 6) if ended > begun else 0.0,
            "packets": sum(port.sent for (_, there), port in fabric.ports.items() if there in fabric.hosts),
            "headroom_bytes": max((max(fabric.topology.headrooms(row)) for row in fabric.topology.switches), default=0),
            "dropped": sum(switch.dropped for switch in fabric.switches.values()),
            "lost": sum(port.lost for port in fabric.ports.values()),
            "marked": sum(port.marked for port in fabric.ports.values()),
            "pauses": sum(port.pauses for port in fabric.ports.values()),
            "paused_ns": sum(port.paused_ns for port in fabric.ports.values()),
            **{name: fabric.count(name) for name in COUNTERS},
        }


def _size_row(name: str, results: Sequence[Any]) -> dict[str, Any]:
    times = sorted(each.took_ns for each in results)
    slow = sorted(each.slowdown for each in results)
    row: dict[str, Any] = {"size": name, "flows": len(results)}
    if results:
        row |= {f"fct_p{percent:g}_ns": percentile(times, percent) for percent in PERCENTILES}
        row |= {f"slowdown_p{percent:g}": round(percentile(slow, percent), 6) for percent in PERCENTILES}
    return row


def capture(fabric: Fabric, link: str, file: BinaryIO) -> None:
    """Record the packets of both directions of a link as pcapng; a packet's time is that of its last bit.

    Args:
        link: the names of its ends, joined by ``-``: ``s0-h16``.
        file: opened for writing bytes.

    Raises:
        TopologyError: there is no such link.
    """
    found = [ports for (here, there), ports in fabric.ports.items() if link in (f"{here}-{there}", f"{there}-{here}")]
    if not found:
        some = ", ".join(f"{row.a}-{row.b}" for row in fabric.topology.links[:4])
        raise TopologyError(f"link {link!r}: there is none: name its two ends, such as {some}")
    writer = PcapngWriter(file, interface=link)

    def write(packet: Packet) -> None:
        burst = packet.burst
        flow = burst.flow.marked() if packet.ce else burst.flow
        writer.write(fabric.agenda.now_ns, path_ethernet(flow).pack() + ip_packet(flow, b"".join(burst.buffers)))

    for port in found:
        port.tap = write
