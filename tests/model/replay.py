"""Carry out on scripted queue pairs each step that the model's ends took in an exploration.

An end's steps depend on its own words and one packet alone, so all steps of all states are few. Each is carried out
from a queue pair that was brought to the words before it, and has to leave the words behind it and the same packets.
"""

from __future__ import annotations

import bisect
import pickle
import zlib
from typing import Any

from rnic.rings.sqe import FLAG_FENCE, FLAG_SIGNALED
from rnic.spec.limits import NEVER
from rnic.spec.opcodes import FETCH_ADD, RC, READ_REQUEST
from rnic.spec.syndromes import NAK_PSN_SEQUENCE
from rnic.transport.send_queue import ACK_EACH_AFTER_PROBE
from rnic.wire.bursts import TxBurst
from rnic.wire.packet import Packet
from tests.model import rc
from tests.model.explore import End, System, carry_out
from tests.model.requester import Requester
from tests.model.responder import Responder
from tests.model.traces import SPACE, Watch, bare
from tests.scripts.oracle import Image

MTU = 256
BASE = SPACE - 2
"""The first PSN: after two packets it wraps."""
_FAR = 1 << 40
_SELDOM = 1 << 16
"""A PSN of so many asks for an ACK by itself."""
_ATOMICS, _WRITES, _READS, _RECEIVES = 0, 4096, 8192, 16384
_POSTED = {rc.SEND: "SEND", rc.WRITE: "WRITE", rc.WRITE_IMM: "WRITE_IMM", rc.READ: "READ", rc.ATOMIC: "FETCH_ADD"}
_ACKS = {rc.ACK: 0x1F, rc.NAK: NAK_PSN_SEQUENCE, rc.RNR: 0x21}


def replay_config(program: list[rc.Work], script: Any, **bounds: Any) -> rc.Config:
    """Return the model of two queue pairs like ``script``, with the addresses and keys of its memory."""
    works = []
    for work in program:
        opcode, at = (READ_REQUEST, _READS) if work.kind == rc.READ else (FETCH_ADD, _ATOMICS)
        args: Any = ((script.key, RC | opcode), int(work.kind == rc.ATOMIC), 0) if work.kind in rc.READS else ()
        length = 8 if work.kind == rc.ATOMIC else work.packets * MTU
        works.append(work._replace(va=script.va + at, length=length, args=args))
    fixed = {"space": SPACE, "base": BASE, "unit": MTU, "ack_every": _SELDOM, "replies": 320}
    return rc.Config(works, ack_each_after_probe=ACK_EACH_AFTER_PROBE, **(fixed | bounds))


class _Bench:
    """A queue pair that is brought to any words that it was found in before."""

    def __init__(self, script: Any, config: rc.Config) -> None:
        self.script, self.config, self.watch = script, config, Watch(script)
        if not hasattr(script, "block"):
            script.block = bytearray(1)
        script.data[:] = bytes(len(script.data))
        script.data[_READS:_RECEIVES] = bytes(1 + at // MTU for at in range(_RECEIVES - _READS))  # each unit its own
        self.payload = bytes(MTU)
        """Of the packet that was injected last."""
        self._found: dict[int, bytes] = {}

    def keep(self, number: int) -> None:
        """Keep all as it is now under a state's number."""
        if number not in self._found:
            script = self.script
            state = pickle.dumps((Image(script).state, script.sq_tail, script.rq_tail))
            self._found[number] = zlib.compress(state, 1)

    def bring_back(self, number: int) -> None:
        """Bring all back as it was, and set what the model leaves out to what never ends anything."""
        script = self.script
        image = Image.__new__(Image)
        image.state, script.sq_tail, script.rq_tail = pickle.loads(zlib.decompress(self._found[number]))
        image.put_back(script)
        self.watch._head = 0
        requester = script.qp.requester
        requester.peer.limit = 1 << 15
        requester.retry_left, requester.backoff = 7, 0
        requester.probe_shift = min(requester.probe_shift, 1)
        requester.window = requester.widest = self.config.window
        requester.ack_every, requester.read_chunk = self.config.ack_every, self.config.read_chunk
        for name in ("ack_deadline", "probe_deadline", "rnr_until"):
            if getattr(requester, name) != NEVER:
                setattr(requester, name, script.now + _FAR)
        if script.qp.responder.owed_ns != NEVER:
            script.qp.responder.owed_ns = script.now + _FAR

    def packets(self, requests: bool) -> list[Packet]:
        """Take a turn of one packet, and return what it sends."""
        script, out = self.script, list[TxBurst]()
        if requests:
            return list(script.packets(1))
        oracle = getattr(script, "oracle", None)
        if oracle is None:
            script.qp.produce_replies(1, out)
        else:
            oracle.replies(1, out)
        return list(script.parse(out))

    def do(self, do: Any) -> list[Packet]:
        """Carry out a step that sends nothing; return no packets."""
        script, requester = self.script, self.script.qp.requester
        if do == "post":
            work = self.config.program[script.sq_tail]
            flags = FLAG_SIGNALED * work.signaled | FLAG_FENCE * work.fence
            script.post(_POSTED[work.kind], work.length, _RECEIVES, flags=flags, remote=work.va, rkey=script.key)
        elif do == "recv":
            script.recv(8 * MTU, _RECEIVES)
        elif do in ("rnr_over", "ack_timeout", "probe", "owed_over"):
            half = script.qp.responder if do == "owed_over" else requester
            words = {"rnr_over": "rnr_until", "probe": "probe_deadline", "owed_over": "owed_ns"}
            setattr(half, words.get(do, "ack_deadline"), script.now)
            script.handle_timer()
        else:
            self.payload = bytes([self.payload[0] % 255 + 1]) * MTU  # other bytes each time
            if isinstance(do, rc.Response):
                self._respond(do)
            else:
                self._request(do)
        return []

    def _respond(self, packet: rc.Response) -> None:
        inject = self.script.inject
        if packet.kind == rc.READ:
            place = {(True, True): "ONLY", (True, False): "FIRST", (False, True): "LAST"}
            name = f"READ_RESPONSE_{place.get((packet.start, packet.end), 'MIDDLE')}"
            inject(name, packet.psn, payload=self.payload)
        elif packet.kind == rc.ATOMIC:
            inject("ATOMIC_ACKNOWLEDGE", packet.psn, orig=packet.orig)
        else:
            inject("ACKNOWLEDGE", packet.psn, syndrome=_ACKS[packet.kind])

    def _request(self, packet: rc.Request) -> None:
        script, ask = self.script, packet.ask
        if packet.kind in rc.READS:
            name = "READ_REQUEST" if packet.kind == rc.READ else "FETCH_ADD"
            fields = {"dma_length": packet.length} if packet.kind == rc.READ else {"swap_add": 1}
            script.inject(name, packet.psn, va=packet.va, rkey=script.key, ackreq=ask, **fields)
            return
        place = {(True, True): "ONLY", (True, False): "FIRST", (False, True): "LAST"}
        name = f"{packet.kind.partition('_')[0]}_{place.get((packet.start, packet.end), 'MIDDLE')}"
        fields = {"imm": 7} if packet.kind == rc.WRITE_IMM and packet.end else {}
        if packet.kind != rc.SEND and packet.start:
            work = next(w for w, psn in zip(self.config.program, self.config.first, strict=False) if psn == packet.psn)
            fields |= {"va": script.va + _WRITES, "rkey": script.key, "dma_length": work.packets * MTU}
        name += "_IMM" if "imm" in fields else ""
        script.inject(name, packet.psn, ackreq=ask, payload=self.payload, **fields)

    def place(self, data: bytearray, half: Any) -> bytearray:
        """Place into the memory before a step what the model's half took in it."""
        config = self.config
        for each in half.placed:
            if isinstance(half, Requester):
                message, place, orig = each
                atomic = config.program[message].kind == rc.ATOMIC
                at, brought = _RECEIVES + place * MTU, orig.to_bytes(8, "little") if atomic else self.payload
            else:
                message = bisect.bisect(config.first, each) - 1
                at = _RECEIVES if config.program[message].kind == rc.SEND else _WRITES
                at, brought = at + (each - config.first[message]) * MTU, self.payload
            data[at : at + len(brought)] = brought
        if isinstance(half, Responder):
            data[_ATOMICS : _ATOMICS + 8] = half.value.to_bytes(8, "little")
        return data

    def words(self, requester: bool) -> dict[str, Any]:
        """Return the words of one half by name."""
        half: Any = Requester if requester else Responder
        words = self.watch.requester() if requester else self.watch.responder()
        named = dict(zip(half.WORDS, words, strict=True))
        if not requester:
            named["value"] = int.from_bytes(self.script.data[_ATOMICS : _ATOMICS + 8], "little")
        return named


def replay(system: System, end: End, script: Any) -> int:
    """Carry out all steps of an end on a script in RTS; return how many."""
    bench = _Bench(script, system.config)
    half = Requester if end is system.requester else Responder
    requester = half is Requester
    bench.keep(0)
    for (number, do), (after, out) in end.steps.items():
        bench.bring_back(number)
        model, before = half(system.config, end.words.values[number]), bytearray(script.data)
        carry_out(model, do)
        packets = bench.packets(requester) if do == "produce" else bench.do(do)
        expected = dict(zip(half.WORDS, end.words.values[after], strict=True))
        where = f"{do} in {end.words.values[number]}"
        watch: Any = bench.watch
        if requester:
            sent = [watch.request(packet, BASE) for packet in packets]
            assert [watch.named(each) for each in sent] == [watch.named(each) for each in out], where
        else:
            assert [watch.response(packet, BASE) for packet in packets] == [bare(each) for each in out], where
        for packet, each in zip(packets, out, strict=True):
            if each.kind == rc.READ and not requester:
                watch.check_bytes(packet, each)
        assert script.data == bench.place(before, model), f"after {where} the memory has other bytes"
        found = bench.words(requester)
        wrong = {name: (found[name], value) for name, value in expected.items() if found[name] != value}
        assert not wrong, f"after {where}: found and expected {wrong}"
        if requester:
            done = sum(work.signaled for work in system.config.program[: found["sq_head"]])
            assert [entry.status for entry in script.send_cq.entries] == ["SUCCESS"] * done
        bench.keep(after)
    return len(end.steps)
