"""Measure Soft-RoCE in the guest with stock programs, from the guest to itself: ``python interop/figures.py``.

Without hardware virtualization the guest is emulated (QEMU), and its figures are those of a much slower machine: they
show proportions between message sizes, but not whether rnic is faster. Exit status 77 if this machine cannot run the
guest.
"""

from __future__ import annotations

import sys

from rig import UnavailableError, booted

PINGPONG = "ibv_rc_pingpong -s 8 -n 1000 -g 1"
"""Measures time; ib_write_lat counts cycles, whose length it cannot determine in the guest."""
RUNS = (
    ("WRITE of 64 KiB", "ib_write_bw -s 65536 -n 200"),
    ("WRITE of 1 MiB", "ib_write_bw -s 1048576 -n 20"),
)
SECONDS = 90
LEFT_OUT = 77


def main() -> int:
    """Run the programs and print their results."""
    try:
        with booted() as rig:
            print(rig.ask_guest("uname -srm; nproc; ls /sys/class/infiniband"))
            device = rig.ask_guest("ls /sys/class/infiniband").split()[-1]
            server = rig.in_guest(f"{PINGPONG} > /dev/null", SECONDS)
            rig.wait_listening("guest", 18515, 30)
            print(f"SEND of 8 bytes, whole round trip: {PINGPONG}")
            print(rig.ask_guest(f"{PINGPONG} {rig.guest[4]} | tail -1", SECONDS), flush=True)
            server.communicate()
            for what, command in RUNS:
                run = f"{command} -d {device} -x 1 -F"
                server = rig.in_guest(f"{run} > /dev/null", SECONDS)
                rig.wait_listening("guest", 18515, 30)
                said = rig.ask_guest(f"{run} {rig.guest[4]} | grep -v '^-' | tail -2", SECONDS)
                server.communicate()
                print(f"{what}: {command}\n{said}", flush=True)
    except UnavailableError as reason:
        print(f"figures: LEFT OUT: {reason}", file=sys.stderr)
        return LEFT_OUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
