"""What programs count on and seldom meet, by a C program against the system's own header."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rnic.testing import own_network
from tests.abi.test_verbs_check import build

SOURCE = Path(__file__).with_name("corners.c")
NAMES = re.findall(r'\{ "(\w+)", \1 \}', SOURCE.read_text(encoding="utf-8"))
OF_IPV6 = ["answers_to_all_addresses", "a_datagram_says_how_it_came"]
OF_IPV4 = [name for name in NAMES if name != "answers_to_all_addresses"]


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with all of them."""
    return build(SOURCE, libraries, tmp_path_factory.mktemp("corners"), "-pthread", "-rdynamic", "-ldl")


def free_port(address: str) -> str:
    """A UDP port that nobody has just now."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
        sock.bind((address, 0))
        return str(sock.getsockname()[1])


@pytest.mark.slow
@pytest.mark.parametrize("names", [OF_IPV6, OF_IPV4], ids=["IPv6", "IPv4"])
def test_corners(program: Path, mode: dict[str, str], names: list[str]) -> None:
    # there is one ::1 for all who test at a time: a port of one's own
    where = ["::1", "--udp-port", free_port("::1")] if names == OF_IPV6 else [f"{own_network()}.64"]
    command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", *where, "--", str(program), *names]
    done = subprocess.run(command, env=mode, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == names
