"""Two processes and real UDP sockets, over IPv4 and IPv6: the short API, the verbs API, and a peer that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import rnic
from rnic import enums as e
from rnic.cm.rdmacore_pingpong import Destination, connect
from rnic.verbs import (
    CQ,
    GID,
    MR,
    PD,
    QP,
    SGE,
    WC,
    AHAttr,
    Context,
    GlobalRoute,
    QPAttr,
    QPCap,
    QPInitAttr,
    SendWR,
)

pytestmark = pytest.mark.slow
ADDRESSES = pytest.mark.parametrize("addr", ["127.0.0.1", "::1"], ids=["ipv4", "ipv6"])

SERVER = """
    import sys
    import numpy as np
    import rnic
    table = np.arange(500_000, dtype=np.float64).reshape(1000, 500)
    words = np.zeros(4, np.int64)
    listener = rnic.listen(sys.argv[1], 0, udp_port=0).share(table=table, words=words)
    print(listener.port, flush=True)
"""


@contextmanager
def process(code: str, *args: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A script in a process of its own; with the number that it prints first."""
    child = subprocess.Popen(
        [sys.executable, "-u", "-W", "error", "-c", textwrap.dedent(code), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        yield child, int(child.stdout.readline())
    finally:
        child.kill()
        child.communicate()


@ADDRESSES
def test_a_passive_process_is_read_and_written(addr: str) -> None:
    with (
        process(SERVER + "    listener.wait()", addr) as (_, port),
        rnic.connect(addr, port, udp_port=0) as peer,
    ):
        expected = np.arange(500_000, dtype=np.float64).reshape(1000, 500)
        assert (peer.read("table") == expected).all()
        peer.write("table", -expected)
        assert (peer.read("table") == -expected).all()
        assert [peer.fetch_add("words", 1, 2) for _ in range(3)] == [0, 2, 4]
        assert peer.compare_swap("words", 1, 6, 7) == 6
        assert peer.read("words").tolist() == [0, 7, 0, 0]


@ADDRESSES
def test_messages_between_processes(addr: str) -> None:
    code = (
        SERVER
        + """
    with listener, listener.accept() as peer:
        try:
            while True:
                message = peer.recv()
                peer.send(message[::-1].copy() if isinstance(message, np.ndarray) else message.upper())
        except rnic.PeerClosedError:
            print("closed")
    """
    )
    with process(code, addr) as (child, port):
        with rnic.connect(addr, port, udp_port=0) as peer:
            peer.send(b"hello")
            assert peer.recv(10) == b"HELLO"
            peer.send(np.arange(50_000))
            assert (peer.recv(10) == np.arange(50_000)[::-1]).all()
        output, _ = child.communicate(timeout=120)
        assert output == "closed\n"
        assert child.returncode == 0


@ADDRESSES
def test_a_peer_that_is_killed(addr: str) -> None:
    with (
        process(SERVER + "    listener.wait()", addr) as (child, port),
        rnic.connect(addr, port, udp_port=0) as peer,
    ):
        assert peer.read("table", 5, 1).tolist() == [5]
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        with pytest.raises(rnic.WorkCompletionError, match="RETRY_EXC_ERR") as error:
            peer.read("table")
        assert error.value.status == e.IBV_WC_RETRY_EXC_ERR
        with pytest.raises(rnic.WorkCompletionError, match="WR_FLUSH_ERR"):
            peer.read("words")
        with pytest.raises((rnic.PeerClosedError, rnic.WorkCompletionError)):
            peer.recv(30)


def test_a_peer_that_is_stopped_for_a_while_is_waited_for() -> None:
    with (
        process(SERVER + "    listener.wait()", "127.0.0.1") as (child, port),
        rnic.connect("127.0.0.1", port, udp_port=0) as peer,
    ):
        os.kill(child.pid, signal.SIGSTOP)
        waker = subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -CONT {child.pid}"])
        assert peer.read("table", 0, 100_000)[-1] == 99_999
        waker.wait()


VERBS_SERVER = """
    import sys
    from rnic import enums as e
    from rnic.cm.rdmacore_pingpong import Destination, serve
    from rnic.cm.line_socket import listen_socket
    from rnic.verbs import *

    ctx = Context(addr=sys.argv[1], port=0)
    pd, cq = PD(ctx), CQ(ctx, 100)
    qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(10, 60), cq, cq), QPAttr())
    mr = MR(pd, bytearray(60_000))
    for number in range(60):
        qp.post_recv(RecvWR(number, 1, [SGE(mr.buf + 1000 * number, 1000, mr.lkey)]))

    def up(theirs):
        attr = QPAttr()
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = theirs[0].qpn, theirs[0].psn, 7
        attr.ah_attr = AHAttr(GlobalRoute(theirs[0].gid), udp_dport=int(sys.stdin.readline()))
        qp.to_rts(attr)

    listener = listen_socket(sys.argv[1], 0)
    print(listener.getsockname()[1], flush=True)
    print(ctx.udp_port, flush=True)
    serve(listener, [Destination(qp.qp_num, 7, ctx.query_gid().raw)], up)
    got = []
    while len(got) < 50:
        got += cq.poll(16)[1]
    ctx.driver.start()
    assert all(wc.status == e.IBV_WC_SUCCESS for wc in got), got
    assert [wc.wr_id for wc in got] == list(range(50))
    assert all(mr.read(1000, 1000 * at) == bytes([at]) * 1000 for at in range(50))
    print("all there", flush=True)
    sys.stdin.readline()
"""


@ADDRESSES
def test_verbs_between_processes(addr: str) -> None:
    with process(VERBS_SERVER, addr) as (child, port), Context(addr=addr, port=0) as ctx:
        assert child.stdin is not None
        assert child.stdout is not None
        peer_port = int(child.stdout.readline())
        child.stdin.write(f"{ctx.udp_port}\n")
        child.stdin.flush()
        pd, cq = PD(ctx), CQ(ctx, 100)
        qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, None, QPCap(50), cq, cq), QPAttr())
        memory = bytearray(b"".join(bytes([at]) * 1000 for at in range(50)))
        mr = MR(pd, memory)
        theirs = connect(addr, port, [Destination(qp.qp_num, 9, ctx.query_gid().raw)])[0]
        attr = QPAttr()
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = theirs.qpn, theirs.psn, 9
        attr.ah_attr = AHAttr(GlobalRoute(GID(theirs.gid)), udp_dport=peer_port)
        qp.to_rts(attr)
        for at in range(50):
            qp.post_send(SendWR(at, sg=[SGE(mr.buf + 1000 * at, 1000, mr.lkey)]))
        done: list[WC] = []
        while len(done) < 50:
            done += cq.poll(16)[1]
        assert all(wc.status == e.IBV_WC_SUCCESS for wc in done), done
        assert child.stdout.readline() == "all there\n"


def test_the_readmes_first_example_in_ten_lines() -> None:
    server = """
        import numpy as np, rnic
        listener = rnic.listen("127.0.0.1", 0).share(a=np.arange(12).reshape(3, 4))
        print(listener.port, flush=True)
        listener.wait()
    """
    with process(server) as (_, port):
        client = f"""
            import rnic
            with rnic.connect("127.0.0.1", {port}) as peer:
                print(peer.read("a")[2, 3])
        """
        with process(client) as (_, last):
            assert last == 11


def test_a_forked_child_leaves_its_parents_nic_alone() -> None:
    code = """
        import os, numpy as np, rnic
        listener = rnic.listen("127.0.0.1", 0, udp_port=0).share(a=np.arange(5))
        with rnic.connect("127.0.0.1", listener.port, udp_port=0) as peer:
            child = os.fork()
            if child == 0:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            print(int(peer.read("a").sum()))
        listener.close()
    """
    with process(code) as (child, total):
        assert total == 10
        child.communicate(timeout=120)
        assert child.returncode == 0


def test_forked_children_close_what_they_inherited() -> None:
    """While a thread of their parent's moves data by the device; that goes on, and takes new connections."""
    code = """
        import os, signal, threading, numpy as np, rnic
        signal.alarm(20)
        listener = rnic.listen("127.0.0.1", 0, udp_port=0).share(a=np.arange(1 << 17))
        peer = rnic.connect("127.0.0.1", listener.port, udp_port=0)
        accepted = listener.accept(30)
        stop = threading.Event()
        def read():
            while not stop.is_set():
                peer.read("a")
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                signal.alarm(5)
                peer.close()  # whose thread is not there
                accepted.close()
                listener.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        reader.join()
        assert not peer.peer_gone() and not accepted.peer_gone()
        peer.send(b"still here")
        assert accepted.recv(30) == b"still here"
        with rnic.connect("127.0.0.1", listener.port, udp_port=0) as other:
            print(int(peer.read("a")[7] + other.read("a")[8]))
        for each in (peer, accepted, listener):
            each.close()
    """
    with process(code) as (child, total):
        assert total == 15
        child.communicate(timeout=120)
        assert child.returncode == 0
