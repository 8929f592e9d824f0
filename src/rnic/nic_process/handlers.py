"""The requests of programs to the NIC process (:mod:`rnic.spec.attach`): one handler for each kind of message."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping

from rnic.device.faults import tell
from rnic.engine import use
from rnic.link.fault_events import ALL, PORT_EVENTS, FaultEvent, from_words
from rnic.link.verbs_faults import parse_verbs_rules
from rnic.nic_process.bypass_slot import SHARED_BYTES, BypassSlot
from rnic.nic_process.client import RUNG_AT, Client, EventFd
from rnic.nic_process.client_memory import CopiedMemory, ProgramMemory
from rnic.nic_process.descriptor import Descriptor
from rnic.nic_process.devices import DEVICE_OPTIONS, MAX_DEVICES, ConnectionManager, DeviceTable, ServedDevice
from rnic.nic_process.explain import Writer, verb_of
from rnic.nic_process.inspect import TAP, devices
from rnic.nic_process.live_capture import LiveCapture
from rnic.nic_process.memfd import shared_memory
from rnic.nic_process.netlink import NetlinkSockets
from rnic.nic_process.shm_loopback import LoopbackEnd
from rnic.rings.queue_block import BLOCK_BYTES
from rnic.runtime.loop import Runtime
from rnic.spec import attach, attach_cm, reasons
from rnic.spec import commands as cmd
from rnic.spec.errors import VerbsError
from rnic.spec.gids import gid_from_address
from rnic.spec.json_text import json_value
from rnic.spec.limits import MAX_EQS
from rnic.spec.registers import CONTROL, GLOBAL_BYTES
from rnic.state.budget import BYTES as BUDGET_BYTES
from rnic.trace.counters import Counters

_PAGE = attach.PAGE_BYTES
_U32 = struct.Struct("<I")
_COMMAND = struct.Struct("<HHIQI4x")
_ANSWER = struct.Struct("<IIQ")
_LISTED = struct.Struct("<HHII4x")
_NAME = re.compile(r"rnic(0|[1-9]\d{0,2})|(?!rnic|all$)[A-Za-z][A-Za-z0-9_-]{0,14}", re.ASCII)
_ADD_KINDS = {"address": str, "port": int, "name": str, **DEVICE_OPTIONS}
_REQUEST_BYTES = attach.REQUEST_BYTES | attach_cm.REQUEST_BYTES


Handler = Callable[[Client, bytes, list[int], list[int]], bytes]
"""Called with the client, the message's body, the descriptors sent with it, and a list for those of the answer."""


class Handlers:
    """Answers the messages of a NIC process's clients. Objects made for a client are released at its end.

    Args:
        devices: the process's devices.
        clients: its clients.
        cm: connection manager, if any.
        wake: the socket that wakes the process.
        counters: the process's own.
        writer: writes to the programs' stderr.
        netlink: serves NETLINK_RDMA sockets.
    """

    def __init__(
        self,
        devices: DeviceTable,
        clients: Mapping[int, Client],
        cm: ConnectionManager | None,
        wake: int,
        counters: Counters,
        writer: Writer,
        netlink: NetlinkSockets,
    ) -> None:
        self._writer = writer
        self._netlink = netlink
        self._devices = devices
        self._clients = clients
        self._cm = cm
        self._wake = wake
        self._counters = counters
        self.table: dict[int, Handler] = {
            attach.MSG_LIST: self._list,
            attach.MSG_OPEN: self._open,
            attach.MSG_COMMAND: self._command,
            attach.MSG_VECTOR: self._vector,
            attach.MSG_SHARE: self._share,
            attach.MSG_UNSHARE: self._unshare,
            attach.MSG_ADD: self._add,
            attach.MSG_INFO: self._info,
            attach.MSG_FAULT: self._fault,
            attach.MSG_REGISTER: self._register,
            attach.MSG_PUNT: self._punt,
            attach.MSG_SHM_RING: self._shm_ring,
            attach.MSG_EXPLAIN: self._explain,
            attach.MSG_VERBS_RULES: self._verbs_rules,
            attach.MSG_NETLINK: self._netlink_socket,
            attach.MSG_CAPTURE: self._capture,
            attach.MSG_SOURCE_PORT: self._source_port,
            attach_cm.MSG_CM: self._manage_connections,
        }

    def handle(self, client: Client, kind: int, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Handle a message; return the body of the answer.

        Args:
            client: the sender.
            kind: ``MSG_*``.
            body: the bytes after the header.
            fds: descriptors that came with the message, closed after the call.
            out: gets the descriptors that go with the answer.

        Raises:
            OSError: the message is refused; errno and message are the answer.
        """
        least, most = _REQUEST_BYTES.get(kind, (0, attach.MAX_MESSAGE))
        if not least <= len(body) <= most:
            raise OSError(
                errno.EINVAL, f"message kind {kind} has {len(body)} bytes of body: {least} to {most} are right"
            )
        if kind == attach.MSG_HELLO:
            return self._hello(client, body)
        if not client.greeted:
            raise OSError(errno.EPROTO, "HELLO comes first")
        handler = self.table.get(kind)
        if handler is None:
            raise OSError(errno.ENOSYS, f"message kind {kind} is unknown")
        with contextlib.nullcontext() if client.slot is None else client.slot.work:
            return handler(client, body, fds, out)

    def _hello(self, client: Client, body: bytes) -> bytes:
        hello = attach.HELLO.unpack(body)
        if hello["magic"] != attach.MAGIC or hello["version"] != attach.VERSION:
            raise OSError(
                errno.EPROTO,
                f"the library speaks version {hello['version']} of the process boundary and NIC process {os.getpid()}"
                f" version {attach.VERSION}: install one rnic and end the old NIC process",
            )
        if client.refusal is not None:
            code, why = client.refusal
            raise OSError(code, f"NIC process {os.getpid()} is full: {why}")
        client.greeted = True
        return struct.pack("<III", attach.VERSION, os.getpid(), len(self._devices))

    def _list(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        records = []
        for name, device in self._devices.items():
            nic = device.runtime.nic
            if nic.globals.dead:
                continue  # the device is gone until it reappears
            records.append(
                name.encode().ljust(16, b"\0")
                + gid_from_address(nic.config.address)
                + nic.config.guid.to_bytes(8, "big")
                + _LISTED.pack(nic.config.port, nic.config.mtu, nic.globals.port_state, nic.config.index)
            )
        return b"".join(records)

    def _add(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        wanted = json_value(body)
        if not isinstance(wanted, dict) or not isinstance(wanted.get("address"), str):
            raise OSError(errno.EINVAL, "ADD takes a JSON object with an address")
        for name, value in wanted.items():
            kind = _ADD_KINDS.get(name)
            if kind is None:
                raise OSError(errno.EINVAL, f"ADD: {name!r} is not an option that a program may set")
            if value is not None and type(value) is not kind:
                raise OSError(errno.EINVAL, f"ADD: {name}={value!r} is no {kind.__name__}")
        for name, value in (wanted.get("parameters") or {}).items():
            if type(value) is not int:
                raise OSError(errno.EINVAL, f"ADD: parameter {name}={value!r} is no int")
        if wanted.get("port") is not None and not 0 <= wanted["port"] <= 0xFFFF:
            raise OSError(errno.EINVAL, f"port={wanted['port']} is not a UDP port: use 0 to 65535")
        name = wanted.pop("name", None)
        if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise OSError(
                errno.EINVAL, f"ADD: name={name!r} is no device's: use a letter and at most 14 of a-z, 0-9, _, -"
            )
        if sum(map(self._devices.in_use, self._devices)) >= MAX_DEVICES:
            raise OSError(errno.ENOSPC, f"a NIC process has at most {MAX_DEVICES} devices")
        return self._devices.add(wanted["address"], wanted.get("port"), wanted, client, name).encode().ljust(16, b"\0")

    def _device(self, name: str) -> ServedDevice:
        device = self._devices.get(name)
        if device is None:
            there = ", ".join(self._devices)
            if not there:
                raise OSError(errno.ENODEV, "the NIC process has no device: rnic exec or rnic serve --addr makes one")
            raise OSError(errno.ENODEV, f"device {name!r} is not there; there are: {there}")
        return device

    def _open(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        name = body[:16].split(b"\0", 1)[0].decode()
        device = self._device(name)
        if device.runtime.nic.globals.dead:
            raise OSError(errno.ENODEV, f"device {name!r} has failed and is gone: it may return")
        if client.uar is not None or len(fds) != 1:
            raise OSError(errno.EINVAL, "OPEN comes once, with one descriptor")
        faults = device.runtime.verbs_faults
        failed = None if faults is None else faults.open_device(client.pid)
        if failed is not None:
            name_of = errno.errorcode.get(failed.value, str(failed.value))
            text = f"ibv_open_device {reasons.ON_COMMAND(code=name_of, rule=failed.rule)}"
            raise OSError(failed.value, text)
        mode = attach.OPEN.get(body, "mode")
        plain = mode & ~(attach.DMA_SLOT | attach.DMA_UNFIT | attach.DMA_NO_ENGINE)
        bypass = device.bypass
        with contextlib.ExitStack() as undo:
            memory = self._memory_of(client, fds[0], plain, attach.OPEN.get(body, "copier"))
            undo.callback(memory.close)
            slot = bypass.open(client.pid) if mode == attach.DMA_SLOT | attach.DMA_PROC_MEM else None
            if slot is not None:
                undo.callback(bypass.release_slot, slot)
            reason = ""
            if mode & attach.DMA_SLOT and slot is None:
                reason = bypass.refused or "the NIC process may not access its memory"
            elif mode & attach.DMA_UNFIT:
                reason = "its kernel does not let it run the data path"
            elif mode & attach.DMA_NO_ENGINE:
                reason = "its rnic was installed without a C compiler, or its engine is switched off"
            if reason:
                bypass.without_slot[client.pid] = reason
            undo.callback(client.forget_context)
            answer = self._map_window(client, device.runtime if slot is None else slot.runtime, memory, out)
            answer += reason.encode() if slot is None else self._assign_slot(client, slot, out)
            undo.pop_all()
        client.device = name
        self._devices.on_context(client, True)
        return answer

    @staticmethod
    def _assign_slot(client: Client, slot: BypassSlot, out: list[int]) -> bytes:
        """Give a program its slot; return the data that it needs to run the engine."""
        client.slot = slot
        slot.assign_to(client.sock, client.pid)
        out += slot.descriptors()
        slot.hand_over()
        config = slot.runtime.nic.config
        return attach.OPEN_SLOT.pack(
            {
                "layout": use.LAYOUT,
                "arena_bytes": slot.arena_bytes,
                "shared_bytes": SHARED_BYTES,
                "first_qpn": config.first_qpn,
                "slot": slot.member,
                "udp_port": config.port,
                "address_bytes": len(config.address),
                "address": int.from_bytes(config.address.ljust(16, b"\0"), "little"),
                "budget_bytes": BUDGET_BYTES,
                "source_ports": len(config.source_ports),
                "source_port_list": int.from_bytes(
                    struct.pack(f"<{len(config.source_ports)}H", *config.source_ports), "little"
                ),
            }
        )

    def _punt(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Handle a punt of a program's engine to the reference."""
        if client.slot is None:
            raise OSError(errno.EINVAL, "PUNT comes from a program with a slot")
        return client.slot.punt(body)

    def _source_port(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Give a program with a slot a socket on one of the device's source ports."""
        if client.slot is None:
            raise OSError(errno.EINVAL, "SOURCE_PORT comes from a program with a slot")
        out.append(client.slot.source_socket(attach.SOURCE_PORT.get(body, "port")))
        return b""

    def _shm_ring(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Let a program take part in loopback over shared memory, or connect the rings of one of its queue pairs."""
        slot = client.slot
        if slot is None:
            raise OSError(errno.EINVAL, "SHM_RING comes from a program with a slot")
        request = attach.SHM_RING.unpack(body)
        answer = dict.fromkeys(("numbers", "first_qpn", "pid", "ring", "bytes", "cookie_va", "cookie"), 0)
        if not request["qpn"]:
            if slot.end is not None:
                raise OSError(errno.EINVAL, "SHM_RING of QP 0 comes once")
            slot.end = LoopbackEnd(request["cookie_va"])
            out.append(slot.end.wake_receiver.fileno())
            answer["cookie"] = int.from_bytes(slot.end.cookie, "little")
        else:
            joined = self._devices[client.device].bypass.join(slot, request["qpn"])
            if joined is not None and joined[0].end is not None:
                other, pair = joined
                config, end = other.runtime.nic.config, joined[0].end
                out += [pair.memfd.number, end.wake_sender.fileno()]
                answer |= {"numbers": 1 << config.log_max_qps, "first_qpn": config.first_qpn, "pid": other.pid}
                answer |= {"ring": pair.tx_ring(slot.member), "bytes": pair.bytes, "cookie_va": end.cookie_va}
                answer["cookie"] = int.from_bytes(end.cookie, "little")
        slot.hand_over()
        return attach.SHM_RING_REPLY.pack(answer)

    @staticmethod
    def _memory_of(client: Client, fd: int, mode: int, copier: int) -> ProgramMemory | CopiedMemory:
        """Open the program's memory by the descriptor that it sent."""
        if mode not in (attach.DMA_PROC_MEM, attach.DMA_COPIER):
            raise OSError(errno.EINVAL, f"DMA mode {mode} is unknown")
        if not client.pid:
            raise OSError(
                errno.EACCES,
                f"the NIC process (there {os.getpid()}) runs in a PID namespace that shows it no process of this one:"
                " start it outside of that, or name another by RNIC_RUNTIME_DIR",
            )
        held = Descriptor()
        held.number = os.dup(fd)
        try:
            memory: ProgramMemory | CopiedMemory
            if mode == attach.DMA_COPIER:
                memory = CopiedMemory(held.number, client.pid, copier)
            else:
                memory = ProgramMemory(held.number, client.pid)
        except PermissionError:
            raise OSError(
                errno.EACCES,
                f"the NIC process may not access the memory of program {client.pid} (ptrace rules):"
                " unset RNIC_DMA, so that a thread of the program copies",
            ) from None
        held.detach()
        return memory

    def _map_window(
        self, client: Client, runtime: Runtime, memory: ProgramMemory | CopiedMemory, out: list[int]
    ) -> bytes:
        blocks = runtime.nic.resources.uar_blocks
        blocks_at = RUNG_AT + -(-blocks // _PAGE) * _PAGE
        size = blocks_at + blocks * BLOCK_BYTES
        memfd = client.new_descriptor()
        window = shared_memory("rnic window", size, memfd)
        window[: attach.WINDOW.size] = attach.WINDOW.pack(
            {
                "magic": attach.MAGIC,
                "version": attach.VERSION,
                "blocks": blocks,
                "alive": 1,
                "verbs_rules": 0 if runtime.verbs_faults is None else len(runtime.verbs_faults.library_rules()),
            }
        )
        client.uar = runtime.nic.map_uar(memory, memoryview(window)[blocks_at:], client.pid)
        client.runtime, client.memory, client.window = runtime, memory, window
        out += [memfd.number, self._wake]
        return struct.pack("<IIQQQ", blocks, BLOCK_BYTES, size, RUNG_AT, blocks_at)

    def _explain(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Explain failures to a program's user, on the stderr sent with the message."""
        if client.uar is None or client.lines is not None or len(fds) != 1:
            raise OSError(errno.EINVAL, "EXPLAIN comes once, after OPEN, with one descriptor")
        client.lines = client.uar.tell = self._writer.open(fds[0])
        return b""

    def _netlink_socket(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Serve a socket that replaces a program's NETLINK_RDMA socket."""
        if len(fds) != 1:
            raise OSError(errno.EINVAL, "NETLINK comes with one descriptor")
        self._netlink.add(fds[0], filter(None, body.decode().split(",")))
        return b""

    def _verbs_rules(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Return the rules for verbs that the library applies, as records."""
        if client.runtime is None:
            raise OSError(errno.ENODEV, "no device is open on this connection")
        faults = client.runtime.verbs_faults
        return b"" if faults is None else faults.records()

    def _command(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Execute the commands of a message, until one fails."""
        if client.runtime is None or client.uar is None:
            raise OSError(errno.ENODEV, "no device is open on this connection")
        commands = _parse_commands(body)
        client.flush_doorbells()
        reply = b""
        for op, op_modifier, in_modifier, inbox in commands:
            result = client.runtime.nic.command(client.uar, op, in_modifier, op_modifier, inbox)
            box = result.outbox
            if result.text:
                box = _U32.pack(result.kind) + f"{verb_of(op, in_modifier, op_modifier)}: {result.text}".encode()
            reply += _ANSWER.pack(result.status, len(box), result.out_param) + box
            if result.status != cmd.ST_OK:
                break
            if (op, in_modifier) == (cmd.ALLOC_RES, cmd.RES_UAR_BLOCK):
                client.rung_end = max(client.rung_end, RUNG_AT + result.out_param + 1)
        client.runtime.kick()
        if client.slot is not None:
            client.slot.hand_over()
        return reply

    def _register(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Load or store a register of the global block, the command register among them, as this context sees it."""
        if client.runtime is None or client.uar is None:
            raise OSError(errno.ENODEV, "no device is open on this connection")
        request = attach.REGISTER.unpack(body)
        if request["offset"] >= GLOBAL_BYTES or request["offset"] & 3:
            raise OSError(errno.EINVAL, f"offset {request['offset']:#x} is not a register of the global block")
        resources = client.runtime.nic.resources
        if request["store"]:
            others = len({each.pid for each in self._clients.values() if each.device == client.device} - {client.pid})
            if request["offset"] == CONTROL and others:
                raise OSError(errno.EBUSY, f"CONTROL is the whole device's: {others} other programs have it open")
            client.flush_doorbells()
            client.uar.write(request["offset"], request["value"])
            owners = resources.pools[cmd.RES_UAR_BLOCK].owners  # a command may have allocated a block
            last = max((block for block, owner in owners.items() if owner is client.uar), default=0)
            client.rung_end = max(client.rung_end, RUNG_AT + last + 1)
            client.runtime.kick()
            if client.slot is not None:
                client.slot.hand_over()
        return attach.REGISTER_REPLY.pack({"value": client.uar.read(request["offset"])})

    def _info(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Return the view that ``body`` names, ``DEVICE WHAT``, as JSON in a memfd: ``null`` if there is none.

        In addition to the views of :func:`rnic.device.inspect.look` there are ``tap``
        (:meth:`rnic.runtime.tap.Tap.answer`),
        ``why QPN``, the text of a queue pair's last reason, and, of no device, ``devices``
        (:func:`rnic.nic_process.inspect.devices`).
        """
        name, _, what = body.decode().partition(" ")
        if what == "devices":
            runtimes = {name: device.runtime for name, device in self._devices.items()}
            served = {name for name, device in self._devices.items() if device.pinned}
            return self._reply_json(client, devices(runtimes, self._clients.values(), served), out)
        device = self._device(name or next(iter(self._devices), ""))
        if what == "slots":
            return self._reply_json(client, device.bypass.view(), out)
        if what.startswith(TAP):
            self._devices.take_over(device.runtime.nic.config.name)
            tap = device.runtime.tap()
            device.bypass.watch(tap)
            answer = tap.answer(what.removeprefix(TAP))
            return self._reply_json(client, answer, out)
        if what.startswith(attach.INFO_WHY):
            config, number = device.runtime.nic.config, what.removeprefix(attach.INFO_WHY)
            qpn = int(number) if number.isascii() and number.isdecimal() else -1
            _, qp = self._devices.find_peer(config.address, config.port, qpn)
            return self._reply_json(client, "" if qp is None or qp.why is None else qp.why.text, out)
        view = device.bypass.inspect(what)
        if view is not None and what == "counters":
            view |= {name: view.get(name, 0) + count for name, count in self._counters.items()}
        return self._reply_json(client, view, out)

    @staticmethod
    def _reply_json(client: Client, view: object, out: list[int]) -> bytes:
        text = json.dumps(view).encode()
        memfd = client.new_descriptor()
        memfd.number = os.memfd_create("rnic info", os.MFD_CLOEXEC)
        with open(memfd.number, "wb", closefd=False) as file:
            file.write(text)
        out.append(memfd.number)
        return attach.INFO_REPLY.pack({"bytes": len(text)})

    def _fault(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Inject a fault into a device; the answer lists the faults active there, as JSON."""
        wanted = json_value(body)
        if not isinstance(wanted, dict) or not isinstance(wanted.get("event"), list):
            raise OSError(errno.EINVAL, "FAULT takes a JSON object with a device and an event")
        name, event = wanted.get("device") or next(iter(self._devices), ""), wanted["event"]
        if not isinstance(name, str):
            raise OSError(errno.EINVAL, f"FAULT takes a JSON object with a device and an event: {name!r} is no device")
        device = self._device(name)
        if rules := parse_verbs_rules(wanted.get("rules") or (), secrets.randbits(64)):
            self._devices.fail_verbs(device, rules)
        elif event:
            self.happen(device, from_words(event))
        return json.dumps(device.runtime.faults().state()).encode()

    def happen(self, device: ServedDevice, event: FaultEvent) -> None:
        """Apply an event to a device and the slots of its programs.

        Raises:
            OSError: EBUSY: a program was stopped while it held its arena.
            RnicError: the object that the event names does not exist.
        """
        if event.name == "async-event":
            _tell_programs(device, event)
            return
        faults = device.runtime.faults()
        faults.kill = _kill_process
        faults.port_held = device.bypass.hold_port
        elsewhere = event.name not in PORT_EVENTS
        if elsewhere:
            self._devices.take_over(device.runtime.nic.config.name)
        faults.happen(event)
        if elsewhere:
            for slot in device.bypass.slots.values():
                slot.runtime.faults().happen(event)
        if event.name == "heal" and device.runtime.verbs_faults is not None:
            device.runtime.verbs_faults.clear()

    def _capture(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Send a device's packets to a socket; the connection ends with the capture."""
        if client.capture is not None or len(fds) != 1:
            raise OSError(errno.EINVAL, "CAPTURE brings one end of one pair of sockets, once for each connection")
        device = self._device(body.decode() or next(iter(self._devices), ""))
        capture = LiveCapture(fds[0], lambda: _hang_up(client))
        try:
            device.readers.check_room()
            device.readers.add(capture)
        except BaseException:
            capture.close()
            raise
        client.capture = capture
        return b""

    def _manage_connections(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        """Pass a request on to the connection manager."""
        if self._cm is None:
            raise OSError(errno.EOPNOTSUPP, "this NIC process manages no connections")

        def make_signal() -> EventFd:
            signal = EventFd.semaphore()
            out.append(signal.fd)
            return signal

        return self._cm.request(client, body, make_signal, time.monotonic_ns())

    def _vector(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        vector = _U32.unpack(body)[0]
        if client.runtime is None or vector >= MAX_EQS:
            raise OSError(errno.EINVAL, f"vector {vector} is out of range")
        eq = client.runtime.nic.resources.eqs.get(vector)
        if eq is None or eq.uar is not client.uar:
            raise OSError(errno.EINVAL, f"vector {vector} is not an event queue of this context")
        old = client.vectors.get(vector)
        # the old eventfd is used until the new one exists, which the kernel may refuse
        fire = EventFd()
        out.append(fire.fd)
        client.vectors[vector] = client.runtime.handlers[vector] = fire
        if old is not None:
            old.close()
        return b""

    def _share(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        if client.memory is None or len(fds) != 1:
            raise OSError(errno.EINVAL, "SHARE needs an open device and one descriptor")
        va, length, offset, writable = struct.unpack_from("<QQQI", body)
        client.memory.share(va, length, fds[0], offset, bool(writable))
        return b""

    def _unshare(self, client: Client, body: bytes, fds: list[int], out: list[int]) -> bytes:
        if client.memory is not None:
            client.memory.unshare(struct.unpack_from("<Q", body)[0])
        return b""


def _tell_programs(device: ServedDevice, event: FaultEvent) -> None:
    """Report an asynchronous event to a device's programs, which keep receiving their packets.

    Raises:
        OSError: EBUSY: a program was stopped while it held its arena; EINVAL: no program has the object that the event
            names.
    """
    kind, number = event.told["event"], event.told["number"]
    missing: VerbsError | None = None
    found = False
    for slot in (None, *device.bypass.slots.values()):
        runtime = device.runtime if slot is None else slot.runtime
        with contextlib.nullcontext() if slot is None else slot.held():
            try:
                tell(runtime.nic, kind.event_type, kind.element, kind.subtype, None if number == ALL else number)
                found = True
            except VerbsError as error:
                missing = error
            runtime.deliver_interrupts()
    device.runtime.nic.counters.bump("fault_event_async_event")
    if missing is not None and not found:
        raise missing


def _parse_commands(body: bytes) -> list[tuple[int, int, int, bytes]]:
    """Return opcode, modifiers and inbox of each command of a message; ``OSError`` if it ends within one."""
    found, at = [], 0
    while at < len(body):
        if len(body) - at < _COMMAND.size:
            raise OSError(errno.EINVAL, f"COMMAND ends {len(body) - at} bytes after its last inbox: 0 or 24 are right")
        op, op_modifier, in_modifier, _, inbox_bytes = _COMMAND.unpack_from(body, at)
        at += _COMMAND.size
        found.append((op, op_modifier, in_modifier, body[at : at + inbox_bytes]))
        at += inbox_bytes
    return found


def _hang_up(client: Client) -> None:
    """End a connection as if the program had ended."""
    with contextlib.suppress(OSError):
        client.sock.shutdown(socket.SHUT_RDWR)


def _kill_process() -> None:
    """Kill the NIC process as ``kill -9`` does: no program is notified, nothing is written back."""
    os.kill(os.getpid(), signal.SIGKILL)
