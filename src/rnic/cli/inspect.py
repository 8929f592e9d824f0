"""``rnic regs``, ``qp``, ``cq`` and ``counters``: inspect the NICs of the running NIC process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from rnic.cli.options import QPN, as_json, device, qpn
from rnic.runtime.attach import ask
from rnic.runtime.directory import runtime_directory
from rnic.spec.errors import RnicError


class LookError(RnicError):
    """There is nothing to inspect; the message is one line."""


def fetch(device: str, what: str) -> Any:
    """Return one INFO answer; raise :class:`LookError` if there is none."""
    answer = ask(runtime_directory(), device, what)
    if answer is None:
        raise LookError(f"{what}: the NIC has none; rnic top lists what there is")
    return answer


_KINDS = {"qps": "QPs", "cqs": "CQs", "srqs": "SRQs", "eqs": "EQs"}


def counted(objects: dict[str, int]) -> str:
    """Return how many objects there are, in words: ``1 context, 2 QPs``."""
    kinds = {name: _KINDS.get(name, name) for name in objects}
    return ", ".join(
        f"{count} {kinds[name].removesuffix('s') if count == 1 else kinds[name]}" for name, count in objects.items()
    )


def _show(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@click.command()
@device()
@as_json()
def regs(device: str, as_json: bool) -> None:
    """Show every register of the global block and of each queue block in use."""
    tree = fetch(device, "regs")
    if as_json:
        print(json.dumps(tree))
        return
    if tree["profile"]:
        chosen = " ".join(f"{name}={value}" for name, value in tree["parameters"].items())
        print(f"profile {tree['profile']}: {chosen}")
    blocks = [("global block", tree["global"]), ("congestion (configuration interface)", tree["congestion"])]
    blocks += [
        (f"{_slot(part)}block {part['block']}: {part['kind']} {part['number']}", part["registers"])
        for part in tree["blocks"]
    ]
    for title, rows in blocks:
        print(title)
        table = []
        for row in rows:
            fields = " ".join(f"{name}={value:#x}" for name, value in row.get("fields", {}).items() if value)
            table.append((f"  {row['offset']:02x}h", row["name"], row["access"], f"{row['value']:08x}", fields))
        _show(table)


def _slot(part: dict[str, Any]) -> str:
    return f"slot {part['slot']}, " if "slot" in part else ""


def _fields(rows: list[dict[str, Any]]) -> None:
    """Print a context's fields in host memory and in the cache; a star if they differ, a dash if one side has none."""

    def value(number: int | None) -> str:
        return "-" if number is None else f"{number:#x}" if number > 9 else str(number)

    print("context fields (* host memory and cache differ)")
    table = [("  field", "host memory", "cache", "")]
    table += [(f"  {r['field']}", value(r["host"]), value(r["cache"]), "*" if r["differs"] else "") for r in rows]
    _show(table)


def _queue(tree: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(tree))
        return
    _tree({name: value for name, value in tree.items() if name not in ("context", "fields")})
    _fields(tree["fields"])


def _peer_and_ring(pair: dict[str, Any]) -> tuple[str, ...]:
    remote = pair.get("remote_qpn")
    peer = "-" if remote is None else qpn(remote)
    return peer, *(str(pair.get(name, "-")) for name in ("sq_head", "sq_tail", "sq_entries"))


def _tree(tree: dict[str, Any], indent: str = "") -> None:
    for name, value in tree.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            _tree(value, indent + "  ")
        else:
            print(
                f"{indent}{name:24}{value:#x}" if isinstance(value, int) and value > 9 else f"{indent}{name:24}{value}"
            )


@click.command()
@click.argument("number", type=QPN, required=False)
@device()
@as_json()
def qp(number: int | None, device: str, as_json: bool) -> None:
    """List queue pairs; or show one: state, rings with head and tail, context in host memory and in the cache."""
    if number is None:
        pairs = fetch(device, "top")["qps"]
        if as_json:
            print(json.dumps(pairs))
        elif pairs:
            rows = [("QP", "state", "peer QP", "SQ head", "SQ tail", "entries")]
            rows += [(qpn(pair["qpn"]), pair["state"], *_peer_and_ring(pair)) for pair in pairs]
            _show(rows)
        else:
            print("no queue pair; rnic qp NUMBER shows one once a program made it")
        return
    _queue(fetch(device, f"qp {number}"), as_json)


@click.command()
@click.argument("number", type=QPN)
@device()
@as_json()
def cq(number: int, device: str, as_json: bool) -> None:
    """Show a completion queue: ring with head and tail, arming, context in host memory and in the cache."""
    _queue(fetch(device, f"cq {number}"), as_json)


@click.command()
@device()
@as_json()
def counters(device: str, as_json: bool) -> None:
    """Show all counters."""
    tree = fetch(device, "counters")
    if as_json:
        print(json.dumps(tree))
    elif tree:
        _show([(name, str(value)) for name, value in tree.items()])
