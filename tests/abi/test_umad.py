"""A program's /dev/infiniband/umad0, by the calls that libibumad makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rnic.testing import own_network

NET = own_network()
PROGRAM = r"""
import errno, fcntl, os, select, struct
fd = os.open("/dev/infiniband/umad0", os.O_RDWR | os.O_NONBLOCK)
fcntl.ioctl(fd, 0x1B03)
def register(mgmt_class):
    request = bytearray(struct.pack("=I16sBBB3sBx", 99, bytes(16), 1, mgmt_class, 1, bytes(3), 0))
    fcntl.ioctl(fd, 0xC01C1B01, request)
    return struct.unpack_from("=I", request)[0]
waiting = select.poll()
waiting.register(fd, select.POLLIN | select.POLLOUT)
assert waiting.poll(0) == [(fd, select.POLLOUT)], "always, as of the kernel's"
try:
    os.read(fd, 320)
    raise SystemExit("nothing was there to read")
except BlockingIOError:
    pass
subnet, counters = register(1), register(4)
assert (subnet, counters) == (0, 1)
QP1 = struct.pack(">II", 1, 0x80010000) + bytes(36)
header = lambda agent, timeout: struct.pack("=5I", agent, 0, timeout, 0, 0) + QP1
get = lambda mgmt_class: bytes((1, mgmt_class, 1, 1)) + bytes(4) + struct.pack(">QHHI", 5, 0x12, 0, 1) + bytes(232)
for data, code in ((header(subnet, 0) + get(1), errno.EPROTONOSUPPORT), (b"short", errno.EINVAL)):
    try:
        os.write(fd, data)
        raise SystemExit("it was taken")
    except OSError as error:
        assert error.errno == code, error
assert os.write(fd, header(counters, 5000) + get(4)) == 320
assert select.select([fd], [], [], 30)[0]
answer = os.read(fd, 320)
assert struct.unpack_from("=II", answer) == (counters, 0)
answer = answer[64:]
assert answer[3] == 0x81 and answer[4:6] == bytes(2) and answer[12:16] == bytes((0, 0, 0, 5))
fcntl.ioctl(fd, 0x40041B02, struct.pack("=I", counters))
try:
    fcntl.ioctl(fd, 0x1B77)
    raise SystemExit("an unknown request was taken")
except OSError as error:
    assert error.errno == errno.ENOTTY
os.close(fd)
try:
    os.open("/dev/infiniband/umad7", os.O_RDWR)
    raise SystemExit("there is no device 7")
except FileNotFoundError:
    print("done")
"""


def test_a_program_sends_and_receives_management_datagrams(env: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, "-m", "rnic.cli", "exec", "--addr", f"{NET}.91", "--", sys.executable, str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
