"""``rnic trace --attach``: trace the operations of a running program or queue pair through its NIC process.

Each NIC is a process of the trace; a queue pair has a track of operations (from fetch to completion) and lanes of
packets sent and received. An arrow leads from a packet's sending to its arrival if both are seen. The first
operation of a queue pair is marked as a cold start.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict, deque
from typing import Any

from rnic.cli.inspect import LookError
from rnic.cli.options import qpn as shown_qpn
from rnic.runtime.attach import ask
from rnic.runtime.directory import runtime_directory
from rnic.runtime.tap import MAX_QPS

MAX_SECONDS = 600.0
MAX_KEPT = 200_000
"""Most events of one trace; viewers have trouble with more."""
_POLL_S = 0.05
_DEVICES_S = 0.5
"""Seconds between two searches for new queue pairs during the trace."""
_SHORTEST_US = 0.1

Ends = dict[str, list[int]]
"""Queue pairs by device."""


def chosen(target: str, devices: list[dict[str, Any]]) -> Ends:
    """Return the queue pairs that ``PID``, ``QP``, ``pid:N`` or ``qp:N`` selects, and those connected to them.

    Raises:
        LookError: it matches nothing, or both a program and a queue pair.
    """
    kind, _, text = target.rpartition(":")
    if kind not in ("", "pid", "qp") or not (text.isascii() and text.isdigit()):
        raise LookError(f"--attach {target}: give a PID or a queue pair's number, or pid:N or qp:N to say which")
    number = int(text)
    is_program = any(program["pid"] == number for device in devices for program in device["programs"])
    is_pair = any(pair["qpn"] == number for device in devices for pair in device["qps"])
    if not kind and is_program and is_pair:
        raise LookError(f"--attach {target} is both a program and a queue pair: give pid:{target} or qp:{target}")
    if not (is_program and kind != "qp") and not (is_pair and kind != "pid"):
        programs = {f"{each['pid']} ({each['command']})" for device in devices for each in device["programs"]}
        there = ", ".join(sorted(programs)) or "none"
        raise LookError(f"--attach {target}: no such program or queue pair; attached programs: {there}")
    field = "pid" if is_program and kind != "qp" else "qpn"
    ends: dict[str, set[int]] = defaultdict(set)
    where = {(device["address"], pair["qpn"]): device["name"] for device in devices for pair in device["qps"]}
    for device in devices:
        for pair in device["qps"]:
            if pair[field] == number:
                ends[device["name"]].add(pair["qpn"])
                other = where.get((pair["remote_address"], pair["remote_qpn"]))
                if other is not None:
                    ends[other].add(pair["remote_qpn"])
    return {name: sorted(numbers)[:MAX_QPS] for name, numbers in ends.items()}


class Followed:
    """Events of all devices, and the trace made of them."""

    def __init__(self, seconds: float, sample: int) -> None:
        self.seconds = seconds
        self.sample = sample
        self.titles: dict[str, str] = {}
        self.events: list[tuple[str, list[Any]]] = []
        self.lost = 0
        self.operations = self.packets = self.arrows = 0

    def take(self, device: str, answer: dict[str, Any]) -> None:
        """Take a device's answer."""
        self.lost += answer["lost"]
        room = MAX_KEPT - len(self.events)
        self.lost += max(0, len(answer["events"]) - room)
        self.events += [(device, event) for event in answer["events"][:room]]

    def document(self) -> dict[str, Any]:
        """Return the trace in Chrome's JSON form."""
        self.operations = self.packets = self.arrows = 0
        rows: list[dict[str, Any]] = []
        # of a send and a receive in the same clock tick, the send came first
        ordered = sorted(self.events, key=lambda each: (each[1][1], each[1][2] == "received", each[1][0]))
        began = ordered[0][1][1] if ordered else 0
        numbers = {name: number for number, name in enumerate(self.titles, 1)}
        lanes: dict[tuple[str, str], int] = {}
        free: defaultdict[tuple[int, int], float] = defaultdict(float)
        """When each lane of packets is free: packets of a burst have the same time, and are drawn one after the other,
        so that each arrow has its own packet."""
        inflight: defaultdict[tuple[Any, ...], deque[dict[str, Any]]] = defaultdict(deque)
        open_operations: dict[tuple[str, int, int], dict[str, Any]] = {}

        def lane(device: str, qpn: int, what: str) -> dict[str, int]:
            # Perfetto labels a lane as the main thread if its number is that of its process
            tid = lanes.setdefault(
                (device, f"QP {shown_qpn(qpn)} {what}" if qpn else what), len(numbers) + len(lanes) + 1
            )
            return {"pid": numbers[device], "tid": tid}

        for device, (_, time_ns, stage, qpn, fields) in ordered:
            at = (time_ns - began) / 1000
            if stage in ("sent", "received"):
                place = lane(device, qpn, stage)
                self.packets += 1
                key = tuple(fields[name] for name in ("src", "dst", "dqpn", "psn", "opcode"))
                left = inflight[key][0]["ts"] if stage == "received" and inflight.get(key) else 0.0
                at = max(at, left, free[place["pid"], place["tid"]])
                free[place["pid"], place["tid"]] = at + _SHORTEST_US
                row = {"name": fields["opcode"], "ph": "X", "ts": at, "dur": _SHORTEST_US, "cat": "packet", **place}
                rows.append({**row, "args": fields})
                if stage == "sent":
                    inflight[key].append({"ts": at, **place})
                elif inflight.get(key):
                    self.arrows += 1
                    arrow = {"name": fields["opcode"], "cat": "wire", "id": self.arrows}
                    rows.append({**arrow, "ph": "s", **inflight[key].popleft()})
                    rows.append({**arrow, "ph": "f", "bp": "e", "ts": at, **place})
            elif stage == "fetched":
                self.operations += 1
                cold = " (cold start)" if fields.get("cold") else ""
                name = f"{fields['opcode']} {fields['bytes']} B{cold}"
                row = {
                    "name": name,
                    "cat": "operation",
                    "id2": {"local": f"op{self.operations}"},  # a plain id would not belong to a process in Perfetto
                    **lane(device, qpn, "operations"),
                }
                rows.append({**row, "ph": "b", "ts": at, "args": fields})
                open_operations[device, qpn, fields["index"]] = row
            elif stage == "completed":
                begun = open_operations.pop((device, qpn, fields["index"]), None)
                if begun is not None:
                    rows.append({**begun, "ph": "e", "ts": at})
            else:
                row = {"name": stage, "ph": "X", "ts": at, "dur": _SHORTEST_US, "cat": "step"}
                rows.append({**row, **lane(device, qpn, "steps"), "args": fields})
        end = (ordered[-1][1][1] - began) / 1000 if ordered else 0.0
        rows += [{**row, "ph": "e", "ts": end, "args": {"unfinished": True}} for row in open_operations.values()]
        names: list[dict[str, Any]] = []
        for name, title in self.titles.items():
            names.append({"name": "process_name", "ph": "M", "pid": numbers[name], "args": {"name": title}})
        for (name, text), tid in lanes.items():
            place = {"pid": numbers[name], "tid": tid}
            names.append({"name": "thread_name", "ph": "M", **place, "args": {"name": text}})
        marks = [
            {
                "name": "attached: what began before has no beginning",
                "ph": "i",
                "s": "p",
                "ts": 0.0,
                "pid": number,
                "tid": 0,
            }
            for number in numbers.values()
        ]
        return {
            "traceEvents": names + marks + sorted(rows, key=lambda row: float(row["ts"])),
            "displayTimeUnit": "ns",
            "otherData": {"sample": self.sample, "lost": self.lost, "seconds": self.seconds},
        }

    def summary(self) -> str:
        """Return a line that summarizes the document."""
        which = "" if self.sample == 1 else f" (one in {self.sample:,})"
        lost = f", {self.lost:,} events lost: use --sample" if self.lost else ""
        return (
            f"{self.operations:,} operations{which}, {self.packets:,} packets, {self.arrows:,} arrows"
            f" on {len(self.titles)} {'device' if len(self.titles) == 1 else 'devices'}{lost}"
        )


def follow(target: str, seconds: float, sample: int) -> Followed:
    """Follow a program or queue pair for ``seconds``.

    Raises:
        LookError: there is none.
        ProcessError: no NIC process runs.
    """
    directory = runtime_directory()
    session = f"trace{secrets.randbits(32):08x}"
    followed = Followed(seconds, sample)
    nexts: dict[str, int] = {}
    end = time.monotonic() + seconds
    ends: Ends = {}
    looked = -_DEVICES_S
    while True:
        now = time.monotonic()
        last = now >= end or len(followed.events) >= MAX_KEPT
        if now - looked >= _DEVICES_S:
            looked = now
            devices = ask(directory, "", "devices")
            titles = {device["name"]: f"{device['name']} at {device['address']}" for device in devices}
            try:
                ends = chosen(target, devices)
            except LookError:
                if not ends:
                    raise
                last = True  # the program has ended: take its remaining events once more
        for name, qpns in ends.items():
            followed.titles.setdefault(name, titles[name])
            words = f"tap {session} {nexts.get(name, 0)} {sample} {','.join(map(str, qpns))}"
            answer = ask(directory, name, words)
            nexts[name] = answer["next"]
            followed.take(name, answer)
        if last:
            return followed
        time.sleep(min(_POLL_S, max(0.0, end - time.monotonic())))


__all__ = ["MAX_KEPT", "MAX_SECONDS", "Followed", "chosen", "follow"]
