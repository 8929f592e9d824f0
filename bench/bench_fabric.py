"""How fast the fabric runs: packets that reach a NIC, and events, a second of processor time, one core.

    ./dev bench fabric [--hosts N] [--bytes B]

All hosts of a star send to all others. The floor of 150,000 packets a second is meant for the engine in C; this is the
Python transport.
"""

from __future__ import annotations

import argparse
import resource
import time

from rnic.sim import Fabric, Topology, all_to_all


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=16)
    parser.add_argument("--bytes", type=int, default=16 << 10)
    options = parser.parse_args()
    begun = time.process_time()
    with Fabric(Topology.star(options.hosts, gbps=25)) as fabric:
        fabric.add(all_to_all(list(fabric.hosts), options.bytes))
        built = time.process_time()
        results = fabric.run()
        took = time.process_time() - built
        packets = sum(port.sent for (_, there), port in fabric.ports.items() if there in fabric.hosts)
        print(f"{options.hosts} NICs, {len(results)} flows of {options.bytes} bytes: built in {built - begun:.2f} s")
        print(f"{packets / took:,.0f} packets/s, {fabric.agenda.events / took:,.0f} events/s, {took:.2f} s")
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")


if __name__ == "__main__":
    main()
