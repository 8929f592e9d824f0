"""The measured loops of ``rnic perf``: bandwidth and latency of each operation, with the data verified."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import fmean, median, pstdev
from typing import Any
from zlib import crc32

from rnic.cli.peer import Line, PeerError
from rnic.cli.perf_peer import ATOMIC_BYTES, QKEY, Endpoint
from rnic.rings.sqe import FLAG_SIGNALED
from rnic.spec import opcodes as op
from rnic.spec.limits import GRH_BYTES
from rnic.verbs import QP, SGE, WC, SendWR
from rnic.verbs import enums as e

OPERATIONS = ("write", "read", "send", "atomic")
_WR = {"write": op.WR_WRITE, "read": op.WR_READ, "send": op.WR_SEND, "atomic": op.WR_FETCH_ADD}
_SIGNAL_EVERY = 32
_COMPLETIONS_A_DEPTH = 4
"""Signaled requests per send queue depth; each completion also covers the messages before it. perftest signals one in a
hundred."""
_WARM_UP = 16
_RESEND = 20
_LONGEST_RUN = 10_000
"""Most messages of a run considered for the peak rate."""

Row = dict[str, float | int | bool | str]


class Peak:
    """The fastest run of ``length`` messages, as in perftest: from the post of its first to the completion of its last.

    A run is at least as long as the number of messages in flight, so that completions read in one batch do not look
    like a high rate.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.rate = 0.0
        """Messages per second."""
        self._posted: deque[float] = deque()
        self._completed = 0
        self.posted = self._posted.append
        """Notes the post of a message, at a time in seconds."""

    def completed(self, count: int, now: float) -> None:
        """Note ``count`` completed messages: of the runs that end with one of them, the one ending with the last is the
        fastest."""
        self._completed += count
        ended = min(count, self._completed - self.length + 1)
        if ended > 0:
            began = max(self._posted.popleft() for _ in range(ended))
            self.rate = max(self.rate, self.length / max(now - began, 1e-9))


class Run:
    """One test between this end and its peer. Both ends make the same object and call the matching methods.

    Args:
        end: this end, connected.
        line: the control line.
        operation: ``write``, ``read``, ``send`` or ``atomic``.
    """

    def __init__(self, end: Endpoint, line: Line, operation: str) -> None:
        self.end = end
        self.line = line
        self.operation = operation
        self.rng = random.Random(20)

    # ------------------------------------------------------------------------------------ bandwidth

    def bandwidth(self, size: int, iterations: int) -> Row:
        """Run the active side: ``iterations`` messages of each queue pair, up to ``depth`` in flight; return one
        table row."""
        end = self.end
        total, count, depth = iterations * len(end.qps), len(end.qps), end.depth
        self._begin(size, iterations)
        peak = Peak(min(total, max(depth * count, total // 10), _LONGEST_RUN))
        posters = [self._poster(size, at) for at in range(count)]
        clock, note = time.perf_counter, peak.posted
        every = 1 if self.operation == "atomic" else max(1, depth // _COMPLETIONS_A_DEPTH)
        posted, completed = [0] * count, [0] * count
        start = clock()
        while sum(completed) < total:
            for at, post in enumerate(posters):
                number, room = posted[at], min(iterations, completed[at] + depth)
                while number < room:
                    note(clock())
                    number += 1
                    post(number * count + at, 0 if number % every and number < iterations else FLAG_SIGNALED)
                posted[at] = number
            ready, completions = end.cq.poll(depth)
            if not ready and not end.driver.progress():
                end.wait(self._arrived)
            _check(completions)
            for wc in completions:
                number, at = divmod(wc.wr_id, count)
                peak.completed(number - completed[at], clock())
                completed[at] = number
        seconds = time.perf_counter() - start
        verified = self._verify(size)
        rate = total / seconds
        average = rate * size
        return {
            "bytes": size,
            "iterations": total,
            "bw_peak_MBps": max(peak.rate * size, average) / 1e6,
            "bw_average_MBps": average / 1e6,
            "msg_rate_Mpps": rate / 1e6,
            "verified": verified,
        }

    def serve_bandwidth(self, message: dict[str, Any]) -> None:
        """Run the passive side of one row, until the active side asks for the verdict."""
        end = self.end
        size = int(message["size"])
        self._prepare_passive(size)
        receiving = self.operation == "send"
        if receiving:
            end.fill_receives()
        self.line.send(ready=True)
        sock_check = 0
        asked = False

        def step() -> bool:
            nonlocal sock_check, asked
            if receiving:
                count, completions = end.cq.poll(64)
                if count:
                    _check(completions)
                    end.fill_receives(completions)
            sock_check += 1
            if sock_check % 64 == 0:
                asked = self.line.waiting()
            return asked

        end.wait(step, timeout_s=600, line=self.line)
        self._answer_verify(size)
        if receiving:
            _, completions = end.cq.poll(2 * end.depth * len(end.qps))
            _check(completions)
            end.fill_receives(completions)

    # -------------------------------------------------------------------------------------- latency

    def latency(self, size: int, iterations: int) -> Row:
        """Run the active side: half round trips (whole ones for READ and atomics) in microseconds; return one row."""
        self._begin(size, iterations)
        samples: list[float] = []
        clock = time.perf_counter
        whole = self.operation in ("read", "atomic")
        ping, await_pong = self._ping_pong(size)
        for index in range(iterations + _WARM_UP):
            start = clock()
            ping(index)
            await_pong(index)
            samples.append(clock() - start)
        self._settle()
        verified = self._verify(size)
        scale = 1e6 if whole else 5e5
        times = sorted(sample * scale for sample in samples[_WARM_UP:])
        return {
            "bytes": size,
            "iterations": iterations,
            "t_min_us": times[0],
            "t_max_us": times[-1],
            "t_typical_us": median(times),
            "t_avg_us": fmean(times),
            "t_stdev_us": pstdev(times),
            "p99_us": times[int(len(times) * 0.99)],
            "p999_us": times[int(len(times) * 0.999)],
            "verified": verified,
        }

    def serve_latency(self, message: dict[str, Any]) -> None:
        """Run the passive side: answer each ping, or just drive the NIC."""
        size = int(message["size"])
        self._prepare_passive(size)
        if self.operation == "send":
            self.end.fill_receives()
        self.line.send(ready=True)
        if self.operation in ("read", "atomic"):
            self.end.wait(self.line.waiting, timeout_s=600, line=self.line)
        else:
            pong, await_ping = self._ping_pong(size)
            for index in range(int(message["iterations"]) + _WARM_UP):
                await_ping(index)
                pong(index)
            self._settle()
            self.end.wait(self.line.waiting, timeout_s=600, line=self.line)
        self._answer_verify(size)

    def _ping_pong(self, size: int) -> tuple[Callable[[int], None], Callable[[int], None]]:
        """Return two functions: one posts a message of a latency test, one waits for the answer. Both take the number
        of the message."""
        if self.operation == "write":
            return self._write_ping(size), self._await_byte(size)
        if self.operation == "send":
            post = self._poster(size)
            return (
                lambda index: post(index, 0 if index % _SIGNAL_EVERY else FLAG_SIGNALED),
                lambda index: self._await_message(),
            )
        post = self._poster(size)
        return lambda index: post(index, FLAG_SIGNALED), lambda index: self._wait_completions(1)

    def _write_ping(self, size: int) -> Callable[[int], None]:
        """Return a function that posts a WRITE whose last byte is a counter, so that the receiver sees its arrival."""
        end = self.end
        buffer, last, post = end.buffer, size - 1, end.qp.post_rdma
        local, lkey = end.out, end.mr.lkey
        remote, rkey = int(end.peer["into"]), int(end.peer["rkey"])

        def ping(index: int) -> None:
            buffer[last] = index + 1 & 0xFF
            turn = index % _SIGNAL_EVERY
            post(op.WR_WRITE, local, size, lkey, remote, rkey, index, 0 if turn else FLAG_SIGNALED)
            if turn == _SIGNAL_EVERY - 1:
                _check(end.cq.poll(4)[1])

        return ping

    def _await_byte(self, size: int) -> Callable[[int], None]:
        end = self.end
        buffer, at, progress = end.buffer, end.slot + size - 1, end.driver.progress

        def wait(index: int) -> None:
            wanted = index + 1 & 0xFF
            for _ in range(20_000):
                if buffer[at] == wanted:
                    return
                progress()
            end.wait(lambda: buffer[at] == wanted or self._failed(), timeout_s=30)

        return wait

    def _failed(self) -> bool:
        """Poll for a completion in error while waiting; raise if there is one."""
        _check(self.end.cq.poll(4)[1])
        return False

    def _await_message(self) -> None:
        end = self.end
        deadline = time.monotonic() + 30
        while True:
            count, completions = end.cq.poll(4)
            if count:
                _check(completions)
                if any(wc.opcode & e.IBV_WC_RECV for wc in completions):
                    end.fill_receives(completions)
                    return
            elif time.monotonic() > deadline:
                raise PeerError("no message came within 30 s")

    # -------------------------------------------------------------------------------------- common

    def _poster(self, size: int, at: int = 0) -> Callable[[int, int], None]:
        """Return a function that posts a message of this test to queue pair ``at``, given its number and send flags."""
        end = self.end
        if end.service == "UD":
            return self._post_datagram(size, at)
        if self.operation == "atomic":
            return partial(self._post_atomic, end.qps[at])
        post, opcode, lkey, rkey = end.qps[at].post_rdma, _WR[self.operation], end.mr.lkey, int(end.peer["rkey"])
        local = end.into if self.operation == "read" else end.out
        remote = int(end.peer["out" if self.operation == "read" else "into"])
        return partial(post, opcode, local, size, lkey, remote, rkey)

    def _post_datagram(self, size: int, at: int) -> Callable[[int, int], None]:
        end, signaled = self.end, e.IBV_SEND_SIGNALED
        qp, number = end.qps[at], int(end.peer["qpns"][at])

        def post(index: int, flags: int) -> None:
            sg = [SGE(end.out, size, end.mr.lkey)]
            wr = SendWR(index, e.IBV_WR_SEND, send_flags=signaled if flags else 0, sg=sg)
            wr.set_wr_ud(end.ah, number, QKEY)
            qp.post_send(wr)

        return post

    def _post_atomic(self, qp: QP, index: int, flags: int) -> None:
        end = self.end
        wr = SendWR(index, e.IBV_WR_ATOMIC_FETCH_AND_ADD, sg=[SGE(end.out, ATOMIC_BYTES, end.mr.lkey)])
        wr.set_wr_atomic(int(end.peer["rkey"]), int(end.peer["into"]), 1)
        qp.post_send(wr)

    def _hear(self) -> dict[str, Any]:
        """Return the peer's next message. Drive the NIC meanwhile: the peer may still wait for an ACK."""
        self.end.wait(self.line.waiting, timeout_s=600, line=self.line)
        return self.line.receive()

    def _take(self, most: int) -> int:
        count, completions = self.end.cq.poll(most)
        if count:
            _check(completions)
        return count

    def _arrived(self) -> bool:
        return self.end.cq.ready()

    def _wait_completions(self, count: int) -> None:
        end = self.end
        spins = 0
        while count:
            done = self._take(count)
            count -= done
            if not done:
                spins += 1
                if spins > 20_000:
                    end.wait(self._arrived, timeout_s=30)

    def _settle(self) -> None:
        """Complete outstanding requests before the next row."""
        deadline = time.monotonic() + 10
        requester_idle = self._requester_idle
        while not requester_idle() and time.monotonic() < deadline:
            self._take(16)
        self._take(16)

    def _requester_idle(self) -> bool:
        end = self.end
        end.driver.progress()
        return all(qp.idle for qp in end.qps)

    def _begin(self, size: int, iterations: int) -> None:
        end = self.end
        end.buffer[:size] = self.rng.randbytes(size)
        end.buffer[end.slot : end.slot + size] = bytes(size)
        if self.operation == "send":
            end.fill_receives()
        self.iterations = iterations
        self.line.send(size=size, iterations=iterations)
        self._hear()

    def _prepare_passive(self, size: int) -> None:
        end = self.end
        end.buffer[:size] = self.rng.randbytes(size)
        end.buffer[end.slot : end.slot + size] = bytes(size)

    def _verify(self, size: int) -> bool:
        """Return whether the received data is the sent data: compare CRCs of the whole buffers over the line.

        For services that may lose a message, retry the last one a few times.
        """
        end = self.end
        grh = GRH_BYTES if end.service == "UD" else 0
        good = False
        for attempt in range(1 if end.service == "RC" else _RESEND):
            if attempt:
                self._poster(size)(attempt, FLAG_SIGNALED)
                self._wait_completions(1)
            self.line.send(verify=True, crc=crc32(end.buffer[:size]), grh=grh, again=end.service != "RC")
            answer = self._hear()
            if self.operation == "read":
                good = crc32(end.buffer[end.slot : end.slot + size]) == int(answer["out"])
            elif self.operation == "atomic":
                good = int(answer["counter"]) >= self.iterations * len(end.qps)
            else:
                good = bool(answer["good"])
            if good:
                break
        if end.service != "RC":
            self.line.send(verify=False)
            self._hear()
        return good

    def _answer_verify(self, size: int) -> None:
        end = self.end
        while True:
            message = self._hear()
            if message.get("verify") is False:
                self.line.send(done=True)
                return
            for _ in range(64):
                if not end.driver.progress():
                    break
            at = end.slot + int(message["grh"])
            into = memoryview(end.buffer)[at : at + size]
            latency_tail = message["crc"]
            self.line.send(
                good=crc32(into) == latency_tail,
                out=crc32(memoryview(end.buffer)[:size]),
                counter=int.from_bytes(end.buffer[end.slot : end.slot + ATOMIC_BYTES], "little"),
            )
            if not message["again"]:
                return
            end.wait(self.line.waiting, timeout_s=60, line=self.line)


def _check(completions: list[WC]) -> None:
    for wc in completions:
        if wc.status != e.IBV_WC_SUCCESS:
            raise PeerError(f"a work request completed with {wc.status_name} (vendor error {wc.vendor_err:#x})")
