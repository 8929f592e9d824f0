"""The oracle: whatever the engine does, the reference does on the same bytes, and both leave the same behind.

:class:`EngineScript` is the scripted queue pair with the engine in front. Around each of its calls an :class:`Image` of
everything that an executor may change is taken; the state is put back, the reference does the same work, and the two
images are compared. What the engine punts it must have left as it was.
"""

from __future__ import annotations

import ctypes
from typing import Any

from rnic.engine import use
from rnic.rings.queue_block import BLOCK_BYTES, RQ_HEAD, RQ_TAIL
from rnic.wire.bursts import RxBurst, TxBurst
from rnic.wire.packet import Packet, parse


class Image:
    """Everything that an executor may change."""

    def __init__(self, script: Any) -> None:
        host, qp = script.host, script.qp
        self.state: dict[str, Any] = {
            "arena": bytes(host.arena.memory[: host.arena.used]),
            "context": bytes(qp.ctx),
            "memory": [bytes(entry.view) for entry in host.memory._live.values() if entry.view is not None],
            "queues": [queue.save() for queue in (script.send_cq, script.recv_cq)],
            "block": bytes(script.block),
            "counters": dict(host.counters),
            "events": list(host.events),
            "turn": (qp.scheduled, qp.armed_ns),
            "guarded": dict(qp.responder.replies.guarded),
            "arena's free pieces": {size: list(places) for size, places in host.arena._free.items()},
            "arena's new pieces": dict(host.arena._carved),
            "parted": list(host.parted),
        }

    def put_back(self, script: Any) -> None:
        host, qp, state = script.host, script.qp, self.state
        host.arena.memory[: len(state["arena"])] = state["arena"]
        ctypes.memmove(ctypes.addressof(qp.ctx), state["context"], len(state["context"]))
        views = [entry.view for entry in host.memory._live.values() if entry.view is not None]
        for view, data in zip(views, state["memory"], strict=True):
            if not view.readonly:
                view[:] = data
        for queue, saved in zip((script.send_cq, script.recv_cq), state["queues"], strict=True):
            queue.put_back(saved)
        script.block[:] = state["block"]
        host.counters.clear()
        host.counters.update(state["counters"])
        host.events[:] = state["events"]
        qp.scheduled, qp.armed_ns = state["turn"]
        qp.responder.replies.guarded = dict(state["guarded"])
        host.arena._free = {size: list(places) for size, places in state["arena's free pieces"].items()}
        host.arena._carved = dict(state["arena's new pieces"])
        host.parted[:] = state["parted"]

    def differences(self, other: Image) -> list[str]:
        """Where two differ, for people."""
        return [name for name, value in self.state.items() if value != other.state[name]]


def same(engine: Image, reference: Image, script: Any) -> None:
    """Both executors left the same behind."""
    differences = engine.differences(reference)
    if not differences:
        return
    said = []
    memory = script.qp.memory
    for name in differences:
        one, other = engine.state[name], reference.state[name]
        if name == "arena":
            words = [
                (at * 8 - memory.record, int.from_bytes(one[at * 8 :][:8], "little"), other[at * 8 : at * 8 + 8].hex())
                for at in range(len(one) // 8)
                if one[at * 8 : at * 8 + 8] != other[at * 8 : at * 8 + 8]
            ]
            said.append(f"arena words (offset from the record, engine, reference): {words[:8]}")
        else:
            said.append(f"{name}: engine {one!r:.300}, reference {other!r:.300}")
    raise AssertionError("engine and reference differ: " + "; ".join(said))


class Oracle:
    """The engine's executor of a script, each call of which is held against the reference."""

    def __init__(self, script: Any) -> None:
        self.script = script
        assert use.COMPILED is not None
        self.shared = use.COMPILED.Shared(script.host.arena, script.host.memory, script.host.config)
        self.shared.enable_prefetch()
        script.host.memory.on_key_change = self.shared.key_changed
        for entry in script.host.memory._live.values():
            self.shared.key_changed(entry)
        self.executor = use.COMPILED.Executor(self.shared, script.qp, memoryview(script.block).cast("I"))
        self.flow_to = script.host.flow_to
        script.host.flow_to = self.lead
        self.taken = 0
        """Packets that the engine took or made."""

    def lead(self, ctx: Any, message: Any) -> Any:
        """The path of a datagram, which the engine knows from then on, as a device's queue pairs tell it."""
        flow = self.flow_to(ctx, message)
        self.executor.add_destination(message, flow, self.script.host.max_segments(flow, False))
        return flow

    def receive(self, burst: RxBurst, start: int = 0) -> int:
        script = self.script
        if not script.still:
            return self.executor.receive(burst, start, script.now)
        before = Image(script)
        taken: int = self.executor.receive(burst, start, script.now)
        after = Image(script)
        if not taken:
            same(after, before, script)
            return 0
        before.put_back(script)
        for at in range(start, start + taken, burst.segment):
            self.taken += 1
            view = burst.buf[at : min(at + burst.segment, burst.length)]
            if burst.ident is not None:
                assert burst.flow.check(view, burst.ident + at // burst.segment), "the engine took a wrong ICRC"
            packet = parse(view)
            assert isinstance(packet, Packet), f"the engine took what is no packet: {packet}"
            assert packet.pkey == script.host.pkey(script.ctx.pkey_index)
            packet.burst = burst
            script.qp.receive(packet, script.now)
        same(after, Image(script), script)
        return taken

    def requests(self, budget: int, out: list[TxBurst]) -> int:
        count: int
        script, qp = self.script, self.script.qp
        if not script.still:
            count = self.executor.send(script.now, budget, out)
            self.taken += count
            if self.executor.punted and count < budget:
                count += qp.produce_requests(script.now, budget - count, out)
            return count
        before = Image(script)
        sent: list[TxBurst] = []
        count = self.executor.send(script.now, budget, sent)
        self.taken += count
        whole = not self.executor.punted
        if not whole:
            if not count:
                same(Image(script), before, script)
            if count < budget:
                count += qp.produce_requests(script.now, budget - count, sent)
        after = Image(script)
        before.put_back(script)
        expected: list[TxBurst] = []
        assert qp.produce_requests(script.now, budget, expected) == count
        same(after, Image(script), script)
        self.alike(sent, expected, whole)
        out += sent
        return count

    def timer(self) -> bool:
        """Handle a deadline that has come; false where the reference is to."""
        script = self.script
        before = Image(script)
        taken: bool = self.executor.timeout(script.now)
        after = Image(script)
        if not taken:
            same(after, before, script)
            return False
        before.put_back(script)
        script.qp.handle_timer(script.now)
        same(after, Image(script), script)
        return True

    def replies(self, budget: int, out: list[TxBurst]) -> int:
        script, qp = self.script, self.script.qp
        if not script.still:
            return self.executor.reply(budget, out) or qp.produce_replies(budget, out)
        before = Image(script)
        sent: list[TxBurst] = []
        count: int = self.executor.reply(budget, sent)
        self.taken += count
        after = Image(script)
        if not count:
            same(after, before, script)
            return qp.produce_replies(budget, out)  # type: ignore[no-any-return]
        before.put_back(script)
        expected: list[TxBurst] = []
        assert qp.produce_replies(budget, expected) == count
        same(after, Image(script), script)
        self.alike(sent, expected, True)
        out += sent
        return count

    @staticmethod
    def alike(sent: list[TxBurst], expected: list[TxBurst], whole: bool) -> None:
        """The same packets, in the same bursts where the engine made all of them."""
        if whole:
            assert [(b.segment, b.count, b.length, b"".join(b.buffers)) for b in sent] == [
                (b.segment, b.count, b.length, b"".join(b.buffers)) for b in expected
            ]
            return
        frames = []
        for bursts in (sent, expected):
            data = [(burst, b"".join(burst.buffers)) for burst in bursts]
            frames.append(
                [
                    joined[at : min(at + burst.segment, burst.length) - 4]  # the ICRC says the place in the burst
                    for burst, joined in data
                    for at in range(0, burst.length, burst.segment)
                ]
            )
        assert frames[0] == frames[1]


def engine_script(base: type[Any]) -> type[Any]:
    """The script class ``base`` with the engine in front and the oracle around it."""

    class EngineScript(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **fields: Any) -> None:
            self.block = bytearray(BLOCK_BYTES)
            self._tail = 0
            super().__init__(*args, **fields)
            self.oracle = Oracle(self)

        @property
        def rq_tail(self) -> int:
            return self._tail

        @rq_tail.setter
        def rq_tail(self, tail: int) -> None:
            self._tail = tail
            self.block[RQ_TAIL : RQ_TAIL + 4] = tail.to_bytes(4, "little")

        def show_head(self, head: int) -> None:
            self.block[RQ_HEAD : RQ_HEAD + 4] = head.to_bytes(4, "little")

        def bursts(self, budget: int = 256) -> list[TxBurst]:
            out: list[TxBurst] = []
            qp = self.qp
            qp.scheduled = False
            if qp.cnp_tag or qp.masked or qp.paced:
                qp.produce(self.now, budget, out)
                return out
            first = qp.replies_first
            sent = self.oracle.replies(budget, out) if first else 0
            sent += self.oracle.requests(min(budget, max(budget - sent, 4)), out)
            if qp.responder.replies and not first:
                self.oracle.replies(max(budget - sent, 4), out)
            return out

        def handle_timer(self) -> None:
            if not self.oracle.timer():
                super().handle_timer()

        def inject(self, name: str, psn: int, **fields: Any) -> None:
            frame = self.frame(name, psn, **fields)
            if not self.oracle.receive(self.burst([frame])):
                super().inject(name, psn, **fields)

    return EngineScript
