"""``rnic devinfo``: devices, their port and their limits, as ``ibv_devinfo`` prints them."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import click

from rnic.cli.options import udp_port
from rnic.link.base import parse_address
from rnic.link.udp import scope_of
from rnic.nic_process.bypass_programs import refusal
from rnic.runtime.attach import ask
from rnic.runtime.directory import ProcessError, runtime_directory
from rnic.spec import twins
from rnic.spec.errors import RnicError
from rnic.spec.limits import MTU_BYTES
from rnic.verbs import Context, Device, get_device_list, remote
from rnic.verbs import enums as e
from rnic.verbs.devices import format_guid

_PORT_STATES = {1: "PORT_DOWN", 2: "PORT_INIT", 3: "PORT_ARMED", e.IBV_PORT_ACTIVE: "PORT_ACTIVE"}
_GID_TYPES = {e.IBV_GID_TYPE_ROCE_V1: "RoCE v1", e.IBV_GID_TYPE_ROCE_V2: "RoCE v2"}
_LINK_LAYERS = {e.IBV_LINK_LAYER_ETHERNET: "Ethernet"}
_NOT_LIMITS = frozenset(
    ("fw_ver", "node_guid", "sys_image_guid", "vendor_id", "vendor_part_id", "hw_ver", "phys_port_cnt")
)
_HEX = frozenset(("device_cap_flags", "max_mr_size"))


def running_devices() -> list[Device]:
    """Return the devices of this user's NIC process, by their own names; none if no NIC process runs."""
    with contextlib.suppress(ProcessError):
        rows = ask(runtime_directory(), "", "devices")
        return [Device(each["name"], each["address"]) for each in rows if not each["dead"]]
    return []


def describe(device: Device, udp_port: int, running: bool = False) -> dict[str, Any]:
    """Return a description of one device: a running one, or one opened temporarily on ``udp_port``."""
    with remote.open(device.name, bypass=False) if running else Context(addr=device.address, port=udp_port) as ctx:
        attr = ctx.query_device()
        port = ctx.query_port()
        return {
            "name": device.name,
            "address": device.address,
            "running": running,
            "transport": "RoCE v2",
            "fw_ver": attr.fw_ver,
            "node_guid": attr.node_guid,
            "vendor_id": attr.vendor_id,
            "vendor_part_id": attr.vendor_part_id,
            "hw_ver": attr.hw_ver,
            "compiled": sorted(name for name, compiled in twins.in_use.items() if compiled),
            "kernel_bypass": kernel_bypass(device.address),
            "phys_port_cnt": attr.phys_port_cnt,
            "port": {
                "state": _PORT_STATES.get(port.state, str(port.state)),
                "max_mtu": MTU_BYTES[port.max_mtu],
                "active_mtu": MTU_BYTES[port.active_mtu],
                "link_layer": _LINK_LAYERS[port.link_layer],
                "max_msg_sz": port.max_msg_sz,
                "gids": [str(ctx.query_gid(1, index)) for index in range(port.gid_tbl_len)],
                "gid_types": [_GID_TYPES[ctx.query_gid_type(1, index)] for index in range(port.gid_tbl_len)],
                "pkeys": [ctx.query_pkey(1, index) for index in range(port.pkey_tbl_len)],
            },
            "limits": {name: value for name, value in vars(attr).items() if name not in _NOT_LIMITS},
        }


def kernel_bypass(address: str) -> str:
    """Return whether programs may run the data path themselves, in words: ``possible``, or why not.

    If the user's NIC process has a device at this address, that device reports it, and how many programs do.
    """
    why = refusal(parse_address(address), scope_of(address))
    with contextlib.suppress(ProcessError):
        directory = runtime_directory()
        for each in ask(directory, "", "devices"):
            if each["address"] == address:
                seen = ask(directory, each["name"], "slots")
                left_out = "; ".join(f"not program {pid}: {said}" for pid, said in seen["left_out"].items())
                if seen["slots"] or left_out:
                    sharing = sum(bool(slot["shm"]) for slot in seen["slots"])
                    rings = f"{sharing} of them share rings" if sharing else ""
                    budget = "{held} of {limit} packets in flight".format_map(seen["budget"]) if seen["budget"] else ""
                    return "; ".join(filter(None, (f"{len(seen['slots'])} programs", rings, budget, left_out)))
                why = seen["refused"] or why
    return f"not here: {why}" if why else "possible"


def _lines(found: dict[str, Any], verbose: bool) -> list[str]:
    """Format the description as lines of text."""
    port = found["port"]
    rows: list[tuple[str, object]] = [
        ("address", found["address"]),
        ("transport", found["transport"]),
        ("fw_ver", found["fw_ver"]),
        ("node_guid", found["node_guid"]),
        ("vendor_id", f"{found['vendor_id']:#06x}"),
        ("vendor_part_id", f"{found['vendor_part_id']:#06x}"),
        ("hw_ver", f"{found['hw_ver']:#x}"),
        ("compiled", ", ".join(found["compiled"]) or "nothing: plain Python"),
        ("kernel_bypass", found["kernel_bypass"]),
        ("phys_port_cnt", found["phys_port_cnt"]),
    ]
    if verbose:
        rows += [(name, hex(value) if name in _HEX else value) for name, value in found["limits"].items()]
    running = " (running)" if found["running"] else ""
    head = f"device: {found['name']}{running}"
    lines = [head, *(f"    {name + ':':<24} {value}" for name, value in rows), "    port: 1"]
    inner: list[tuple[str, object]] = [
        ("state", port["state"]),
        ("max_mtu", port["max_mtu"]),
        ("active_mtu", port["active_mtu"]),
        ("link_layer", port["link_layer"]),
        *(
            (f"GID[{index}]", gid if kind == found["transport"] else f"{gid}, {kind}")
            for index, (gid, kind) in enumerate(zip(port["gids"], port["gid_types"], strict=True))
        ),
    ]
    if verbose:
        inner.append(("max_msg_sz", f"{port['max_msg_sz']:#x}"))
        inner += [(f"pkey[{index}]", f"{pkey:#06x}") for index, pkey in enumerate(port["pkeys"])]
    return lines + [f"        {name + ':':<20} {value}" for name, value in inner]


def _chosen(name: str | None, addr: str | None) -> list[tuple[Device, bool]]:
    """Return the devices asked for, and whether each runs; a running one hides others of its name or address."""
    running = running_devices()
    addresses = {each.address for each in running}
    devices = [*running, *(each for each in get_device_list() if each.address not in addresses)]
    found = [each for each in devices if name in (None, each.name) and addr in (None, each.address)]
    if found:
        return [(each, each in running) for each in (found[:1] if name is not None else found)]
    known = ", ".join(f"{each.name} ({each.address})" for each in devices)
    what, option = (name, "--device") if name is not None else (addr, "--addr")
    raise click.BadParameter(f"{what} is not a device of this machine: use one of {known}", param_hint=option)


@click.command()
@click.option("-d", "--device", "name", help="Show only this device, such as rnic0.")
@click.option("--addr", help="Show only the device of this local IP address.")
@udp_port("UDP port to open devices on; by default any free one.", default=0)
@click.option("-v", "--verbose", is_flag=True, help="Show all limits, too.")
@click.option("-l", "--list", "only_names", is_flag=True, help="List only names and addresses.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def devinfo(name: str | None, addr: str | None, udp_port: int, verbose: bool, only_names: bool, as_json: bool) -> None:
    """Show devices, limits and the port. Exit status 1 if a device cannot be opened.

    Devices of a running NIC process come first, under their own names. The others are those that rnic would
    make for this machine's addresses.
    """
    devices = _chosen(name, addr)
    if only_names:
        rows = [
            {"name": each.name, "address": each.address, "running": runs, "node_guid": format_guid(each.guid)}
            for each, runs in devices
        ]
        width = max(len(each.address) for each, _ in devices)
        lines = (f"{r['name']:<10} {r['address']:<{width}} {'running' if r['running'] else ''}".rstrip() for r in rows)
        print(json.dumps(rows, indent=2) if as_json else "\n".join(lines))
        return
    found = []
    failed = False
    for device, running in devices:
        try:
            found.append(describe(device, udp_port, running))
        except RnicError as error:
            failed = True
            print(f"rnic devinfo: {device.name}: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print("\n\n".join("\n".join(_lines(each, verbose)) for each in found))
    if failed:
        sys.exit(1)
