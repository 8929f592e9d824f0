"""``closes.c`` in Python: ``python_closes.py HOW ADDRESS``, with ``range``, ``loop``, ``dup``, ``raw`` or ``child``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import subprocess
import sys
import time

import rnic
from rnic import enums as e
from rnic.spec.errors import VerbsError
from rnic.verbs import CQ, GID, MR, PD, QP, SGE, AHAttr, CompChannel, GlobalRoute, QPAttr, QPCap, QPInitAttr, SendWR

SYS_CLOSE_RANGE = 436
OTHERS, HIGHEST, MESSAGES, SECONDS = 10, 256, 200, 10.0

ctx = rnic.open(sys.argv[2])
pd, channel = PD(ctx), CompChannel(ctx)
cq = CQ(ctx, 64, channel=channel)
mr = MR(pd, bytearray(512), e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(8, 4, 1, 1, 0), cq, cq, None))
attr = QPAttr()
attr.path_mtu, attr.timeout, attr.retry_cnt, attr.rnr_retry = e.IBV_MTU_1024, 14, 7, 7
attr.qp_access_flags, attr.dest_qp_num = e.IBV_ACCESS_REMOTE_WRITE, qp.qp_num
attr.ah_attr = AHAttr(GlobalRoute(GID(ctx.address)), udp_dport=ctx.udp_port)
qp.to_rts(attr)


def write_once() -> None:
    wr = SendWR(5, e.IBV_WR_RDMA_WRITE, sg=[SGE(mr.buf, 256, mr.lkey)], send_flags=e.IBV_SEND_SIGNALED)
    wr.set_wr_rdma(mr.rkey, mr.buf + 256)
    qp.post_send(wr)
    end = time.monotonic() + SECONDS
    while not (found := cq.poll(1)[1]):
        assert time.monotonic() < end, "no completion came"
    assert found[0].status == e.IBV_WC_SUCCESS, found[0]


def close_all(how: str) -> None:
    if how == "range":
        os.closerange(3, HIGHEST)
    elif how == "loop":
        for fd in range(3, HIGHEST):
            with contextlib.suppress(OSError):
                os.close(fd)
    elif how == "dup":
        null = os.open("/dev/null", os.O_RDWR)
        for fd in range(3, null):
            os.dup2(null, fd)
    elif how == "raw":
        ctypes.CDLL(None).syscall(SYS_CLOSE_RANGE, 3, 0xFFFF_FFFF, 0)
    else:
        subprocess.run(["true"], check=True)
        assert select.select([ctx.async_fd], [], [], 0)[0] == []


def go_on() -> str:
    try:
        for turn in range(MESSAGES):
            if turn % 50 == 0:
                time.sleep(0.005)
            write_once()
    except VerbsError as error:
        print(error, file=sys.stderr)
        assert ctx.get_async_event().event_type == e.IBV_EVENT_DEVICE_FATAL
        return "fatal"
    return "works"


write_once()
time.sleep(0.005)  # the window that remains for raw system calls ends with a sleep
close_all(sys.argv[1])
time.sleep(0.005)
listener = socket.create_server(("127.0.0.1", 0))
senders = [socket.create_connection(listener.getsockname()) for _ in range(OTHERS)]
streams = [listener.accept()[0] for _ in senders]
files = [os.memfd_create("closes") for _ in senders]


def check_others() -> None:
    for stream in [*streams, *senders]:
        with contextlib.suppress(BlockingIOError):
            raise AssertionError(stream.recv(100, socket.MSG_DONTWAIT))
    assert [os.fstat(file).st_size for file in files] == [0] * OTHERS


said = go_on()
time.sleep(0.05)
check_others()
ctx.close()
check_others()
print(said)
