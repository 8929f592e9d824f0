"""A program that closes the descriptors of a device in its own process: nothing is written into what it opens then."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rnic.testing import own_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="descriptors are told apart on Linux"),
]
ADDRESS = f"{own_network()}.62"
PROGRAM = """
import contextlib, os, socket, sys, time
from rnic import enums as e
from rnic.link.udp import UdpLink
from rnic.spec.errors import VerbsError
from rnic.verbs import *

address, how, then, source_ports = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
UdpLink.__init__.__kwdefaults__["source_ports"] = source_ports
ctx = Context(addr=address, port=0)
ctx.runtime.start()
pd = PD(ctx)
cq = CQ(ctx, 64)
mr = MR(pd, bytearray(1 << 20), e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
qp = QP(pd, QPInitAttr(cap=QPCap(8, 4), scq=cq, rcq=cq))
attr = QPAttr()
attr.dest_qp_num, attr.qp_access_flags = qp.qp_num, e.IBV_ACCESS_REMOTE_WRITE
attr.ah_attr = AHAttr(GlobalRoute(ctx.query_gid()), udp_dport=ctx.udp_port)
qp.to_rts(attr)

def write(length=1 << 19):
    wr = SendWR(5, e.IBV_WR_RDMA_WRITE, sg=[SGE(mr.buf, length, mr.lkey)], send_flags=e.IBV_SEND_SIGNALED)
    wr.set_wr_rdma(mr.rkey, mr.buf + length)
    qp.post_send(wr)
    end = time.monotonic() + 10
    while not cq.poll(1)[1]:
        if ctx.nic.globals.dead:
            return False
        assert time.monotonic() < end, "no completion came"
    return True

for _ in range(8):
    assert write()
time.sleep(0.01)
null = os.open("/dev/null", os.O_RDWR)
if how == "close":
    os.closerange(3, 1024)
else:
    for fd in range(3, null):
        os.dup2(null, fd)
    os.closerange(3, 1024)
time.sleep(0.001)
listener = socket.create_server(("127.0.0.1", 0))
senders = [socket.create_connection(listener.getsockname()) for _ in range(6)]
streams = [listener.accept()[0] for _ in senders]
datagrams = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(4)]
for each in datagrams:
    each.bind((address, 0))
    each.sendto(b"mine", each.getsockname())
heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    heard.bind((address, ctx.udp_port))  # the device's own, which is free again: where its packets would go to
except OSError:
    heard.bind((address, 0))  # another run of this test has taken it meanwhile
files = [os.memfd_create("other") for _ in range(6)]
pipes = [os.pipe() for _ in range(6)]
for stream in (*streams, *senders):
    stream.sendall(b"mine")

def check():
    for each in (*streams, *senders, *datagrams):
        assert each.recv(100, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b"mine"
    with contextlib.suppress(BlockingIOError):
        raise AssertionError(heard.recv(100, socket.MSG_DONTWAIT))
    for each in datagrams:
        assert each.recv(100) == b"mine"
        with contextlib.suppress(BlockingIOError):
            raise AssertionError(each.recv(100, socket.MSG_DONTWAIT))
        each.sendto(b"mine", each.getsockname())
    assert [os.fstat(file).st_size for file in files] == [0] * len(files)
    for read, _ in pipes:
        os.set_blocking(read, False)
        with contextlib.suppress(BlockingIOError):
            raise AssertionError(os.read(read, 100))

if then == "posts":
    with contextlib.suppress(VerbsError):
        while write():
            pass
end = time.monotonic() + 30
while not ctx.nic.globals.dead:
    assert time.monotonic() < end, "nobody has noticed"
    time.sleep(0.01)
assert ctx.get_async_event().event_type == e.IBV_EVENT_DEVICE_FATAL
with contextlib.suppress(VerbsError):
    write(8)
time.sleep(0.6)
check()
kept = len(os.listdir("/proc/self/fd"))
ctx.close()
check()
assert len(os.listdir("/proc/self/fd")) == kept, "what the program opened is still there"
print("fatal")
"""


@pytest.mark.parametrize("engine", ["engine", "reference"])
@pytest.mark.parametrize("source_ports", [0, 3])
@pytest.mark.parametrize("then", ["posts", "waits"])
@pytest.mark.parametrize("how", ["close", "dup"])
def test_a_device_without_descriptors_says_so(how: str, then: str, source_ports: int, engine: str) -> None:
    command = [sys.executable, "-c", PROGRAM, ADDRESS, how, then, str(source_ports)]
    env = {**os.environ, "RNIC_PLAIN": "1" if engine == "reference" else "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "fatal\n"), done.stderr
    assert "this program has closed descriptors of device" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("how", ["a pipe", "a pipe that a child has, too"])
def test_a_pipe_that_the_program_closes_ends_at_once(how: str) -> None:
    """No thread of a device holds the program's descriptors."""
    done = subprocess.run([sys.executable, "-c", EOF, ADDRESS, how], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


EOF = """
import os, select, sys
import rnic
from rnic.verbs import Context
first = os.pipe()
ctx = Context(addr=sys.argv[1], port=0)
ctx.runtime.start()
second = os.pipe()
for read, write in (first, second):
    if how_ := sys.argv[2] != "a pipe":
        child = os.fork()
        if not child:
            os.close(write)
            os._exit(0 if select.select([read], [], [], 10)[0] and os.read(read, 1) == b"" else 1)
    os.close(write)
    if how_:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert select.select([read], [], [], 0)[0]
    assert os.read(read, 1) == b""
ctx.close()
print("ended")
"""
