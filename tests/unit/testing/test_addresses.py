"""Two runs at once get networks of their own."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from rnic.testing import own_network

PROGRAM = """
import sys
from rnic.testing import own_network
print(own_network(int(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_network_is_held_while_its_process_lives() -> None:
    wanted = 7 + 250 * 249  # 127.250.7, unless somebody has it
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(wanted)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    try:
        networks = [run.stdout.readline().strip() for run in runs if run.stdout]
        assert len(set(networks)) == 3
    finally:
        for run in runs:
            run.communicate(timeout=120)
    assert [run.returncode for run in runs] == [0, 0, 0]


def test_the_same_process_gets_the_same() -> None:
    network = own_network()
    assert own_network() == network
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, pytest.raises(OSError):
        sock.bind((f"{network}.254", 4790))
