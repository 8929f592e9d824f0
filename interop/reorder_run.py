"""Check reordered packets from a guest: rnic takes hardly longer against it than another guest.

netem delays most packets of the guest and lets the others pass, so that IPv4 idents arrive out of order. The ping-pong
of ibverbs-utils runs alternately from a second guest and from rnic, and the times that it prints are added up.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from rig import Rig

TURNS = 3
ITERS = 200
NETEM = "delay 1ms reorder 30%"
SLOWER = 1.2
"""Limit of rnic's time relative to Linux's."""
SECONDS = 60
PORT = 18515
OPTIONS = ("-p", str(PORT), "-n", str(ITERS), "-s", "3001", "-m", "1024", "-c")
_TIME = re.compile(rf"{ITERS} iters in ([0-9.]+) seconds")


def run(rig: Rig, rnic: Path) -> tuple[str, str]:
    """Run it; return the problem, empty if there is none, and the output of the programs."""
    linux = shlex.join(["ibv_rc_pingpong", "-d", "rxe0", "-g", "1", *OPTIONS])
    outputs: dict[str, list[str]] = {"Linux": [], "rnic": []}
    rig.up(1, 2)
    rig.ask_guest(f"tc qdisc add dev eth0 root netem {NETEM}")
    try:
        for _ in range(TURNS):
            for side, said in outputs.items():
                server = rig.in_guest(linux, SECONDS)
                if not rig.wait_listening("guest", PORT):
                    return f"the guest did not listen on TCP port {PORT}", ""
                if side == "Linux":
                    client = rig.in_guest(f"{linux} {rig.guest[4]}", SECONDS, guest=2)
                else:
                    how = ("--compat", "ibv", "--addr", rig.host[4])
                    client = rig.beside(rnic, "pingpong", *how, *OPTIONS, rig.guest[4])
                said.append(_output(client))
                rig.ask_guest("killall ibv_rc_pingpong")
                _output(server)
    finally:
        rig.ask_guest("tc qdisc del dev eth0 root")
        rig.down(2)
    return verdict(outputs), "".join(f"--- {side}\n{text}" for side, said in outputs.items() for text in said)


def _output(program: subprocess.Popen[str]) -> str:
    try:
        return program.communicate(timeout=SECONDS + 20)[0]
    except subprocess.TimeoutExpired:
        program.kill()
        return program.communicate()[0]


def verdict(outputs: dict[str, list[str]]) -> str:
    """Return the problem in the outputs of the clients, by side; empty if there is none."""
    seconds: dict[str, float] = {}
    for side, said in outputs.items():
        for text in said:
            found = _TIME.search(text)
            if "invalid data" in text:
                return f"{side} saw wrong data"
            if found is None:
                return f"{side} did not print '{ITERS} iters in'"
            seconds[side] = seconds.get(side, 0) + float(found[1])
    if seconds["rnic"] > SLOWER * seconds["Linux"]:
        return f"rnic took {seconds['rnic']:.1f} s, more than {SLOWER} times the {seconds['Linux']:.1f} s of Linux"
    return ""
