"""``rnic fault DEVICE EVENT [VALUE]...``: inject a fault into a device of the running NIC process."""

from __future__ import annotations

import json
from typing import Any

import click

from rnic.cli.options import as_json as json_option
from rnic.cli.options import qpn
from rnic.link.fault_events import EVENTS, from_words, usage
from rnic.runtime.attach import fault as ask
from rnic.runtime.directory import runtime_directory


def _listed() -> str:
    lines = ["\b", "Events and their values (durations such as 2s, 150ms, 50us):"]
    lines += [f"  {f'{name} {usage(name)}'.rstrip():38} {kind.meaning}" for name, kind in EVENTS.items()]
    return "\n".join(lines)


@click.command(epilog=_listed())
@click.argument("device")
@click.argument("event", nargs=-1)
@json_option("Print the active faults as JSON.")
def fault(device: str, event: tuple[str, ...], as_json: bool) -> None:
    """Inject EVENT into DEVICE of this user's NIC process; without an event, list active faults.

    rnic fault rnic0 port-down 2s
    """
    if event:
        try:
            from_words(event)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    state = ask(runtime_directory(), device, event)
    if as_json:
        print(json.dumps(state))
    else:
        _show(device, state)


def _show(device: str, state: dict[str, Any]) -> None:
    if not state:
        print(f"{device}: its NIC process is gone")
        return
    said = "gone" if state["dead"] else f"port {state['port']}"
    print(f"{state['device']}: {said}")
    if state["lasting"]:
        print(f"  active: {', '.join(state['lasting'])}")
    if state["pending"]:
        print(f"  pending in: {', '.join(f'{seconds:.1f} s' for seconds in state['pending'][:10])}")
    if state["failing"]:
        print(f"  completions to fail: {', '.join(f'QP {qpn(number)}' for number in state['failing'])}")
