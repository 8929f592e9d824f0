"""A NIC process's devices in Prometheus' text format (version 0.0.4)."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from rnic.spec.ports import PORT_ACTIVE

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_QPS = 1_000
"""Most queue pairs of a device with their own series; ``rnic_objects`` counts all."""
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_QP_GAUGES = {
    "sq_backlog": "Requests posted and not yet done.",
    "next_send_psn": "PSN of the next request packet.",
    "last_acked_psn": "PSN that the peer acknowledged last, as the context has it.",
    "expected_psn": "PSN of the request packet that is expected next.",
}
_QP_COUNTERS = {
    "sent_bytes": "Bytes of the packets that it sent, starting with the BTH.",
    "came_bytes": "Bytes of the packets that it accepted, starting with the BTH.",
}


def backlog(pair: dict[str, Any]) -> int:
    """Return the number of posted and uncompleted requests of a queue pair in a ``top`` view."""
    return int((pair["sq_tail"] - pair["sq_head"]) % max(1, pair["sq_entries"]))


def label(value: object) -> str:
    """Return a label value, quoted."""
    text = str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{text}"'


class _Families:
    """Series by metric, so that those of one metric are adjacent, as the format requires."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, kind: str, words: str, value: object, /, **labels: object) -> None:
        lines = self._lines.setdefault(name, [f"# HELP {name} {words}", f"# TYPE {name} {kind}"])
        inner = ",".join(f"{key}={label(each)}" for key, each in labels.items())
        lines.append(f"{name}{{{inner}}} {value}" if inner else f"{name} {value}")

    def text(self) -> str:
        return "".join(f"{line}\n" for lines in self._lines.values() for line in lines)


def exposition(devices: list[dict[str, Any]], views: dict[str, dict[str, Any]]) -> str:
    """Return the metrics of all devices.

    Args:
        devices: as :func:`rnic.nic_process.inspect.devices` lists them.
        views: :func:`rnic.device.inspect.summary` of each device, by name.
    """
    families = _Families()
    families.add("rnic_up", "gauge", "Whether this user's NIC process answers.", 1)
    for device in devices:
        name = device["name"]
        families.add(
            *("rnic_device_info", "gauge", "A device, its address and UDP port.", 1),
            device=name,
            address=device["address"],
            udp_port=device["udp_port"],
        )
        active = int(device["port_state"] == PORT_ACTIVE and not device["dead"])
        families.add("rnic_port_active", "gauge", "Whether the device's port is active.", active, device=name)
        families.add("rnic_programs", "gauge", "Programs that use it.", len(device["programs"]), device=name)
        view = views.get(name)
        if view is None:
            continue
        for kind, count in view["objects"].items():
            families.add("rnic_objects", "gauge", "Objects that exist, by kind.", count, device=name, kind=kind)
        for state, count in sorted(Counter(pair["state"] for pair in view["qps"]).items()):
            families.add("rnic_qp_states", "gauge", "Queue pairs, by state.", count, device=name, state=state)
        for pair in view["qps"][:MAX_QPS]:
            values = {**pair, "sq_backlog": backlog(pair)}
            for key, words in _QP_GAUGES.items():
                families.add(f"rnic_qp_{key}", "gauge", words, values[key], device=name, qpn=pair["qpn"])
            for key, words in _QP_COUNTERS.items():
                families.add(f"rnic_qp_{key}_total", "counter", words, pair[key], device=name, qpn=pair["qpn"])
        for counter, count in sorted(view["counters"].items()):
            metric = f"rnic_{_NOT_IN_NAMES.sub('_', counter)}_total"
            families.add(metric, "counter", f"The device's counter {counter}.", count, device=name)
    return families.text()


DOWN = "# HELP rnic_up Whether this user's NIC process answers.\n# TYPE rnic_up gauge\nrnic_up 0\n"
"""Answer while no NIC process runs."""

__all__ = ["CONTENT_TYPE", "DOWN", "MAX_QPS", "backlog", "exposition"]
