"""Options that several commands share: each has one name and one meaning; old spellings still work and print a hint."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import click

from rnic.cc.find import find
from rnic.spec.limits import MTU_CODES

Option = Callable[[Any], Any]
"""Result of :func:`click.option`: a decorator."""

Rename = str | Callable[[str], tuple[str, str]]
"""The new spelling of an option, or a function from the old value to the new spelling and its value."""

ADDR_HELP = "Local IP address of the NIC (default: 127.0.0.1; for a client, the source address of the route to {})."
MTUS = tuple(str(size) for size in MTU_CODES)
SERVICES = ("RC", "UC", "UD")


class Command(click.Command):
    """A command that still accepts old spellings of its options, and prints the new ones on stderr.

    Args:
        renamed: the new spelling of each old one.
    """

    def __init__(self, *args: Any, renamed: Mapping[str, Rename] | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._renamed = renamed or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace old spellings, up to the first word that is not the command's own."""
        return super().parse_args(ctx, self._today(ctx, args))

    def _today(self, ctx: click.Context, args: list[str]) -> list[str]:
        valued = {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for name in (*param.opts, *param.secondary_opts)
        }
        given, new = list(args), list[str]()
        while given:
            word = given.pop(0)
            if word == "--" or (not word.startswith("-") and not ctx.allow_interspersed_args):
                return [*new, word, *given]
            name, equals, value = word.partition("=")
            rename = self._renamed.get(name)
            if rename is None:
                new.append(word)
                if not equals and name in valued and given:
                    new.append(given.pop(0))
                continue
            if isinstance(rename, str):
                words = [rename + equals + value]
                if not equals and rename in valued and given:
                    words.append(given.pop(0))
                shown = rename
            else:
                if not equals and given:
                    value = given.pop(0)
                words = list(rename(value))
                shown = " ".join(words)
            new += words
            click.echo(f"{ctx.command_path}: {name} is now {shown}; the next release no longer takes {name}", err=True)
        return new


def tcp_port(default: int, *, low: int = 0) -> Option:
    """Return ``-p, --port``: the TCP port to which a client connects and on which a server listens."""
    kind = click.IntRange(low, 65535)
    return click.option("-p", "--port", default=default, show_default=True, type=kind, help="TCP port.")


def capture_policy() -> Option:
    """Return ``--capture-policy``: whether to drop packets or slow programs down if the disk is too slow."""
    return click.option(
        "--capture-policy",
        type=click.Choice(("wait", "drop")),
        envvar="RNIC_CAPTURE_POLICY",
        help="If packets arrive faster than they can be written: make programs wait (default), or drop packets.",
    )


def snaplen() -> Option:
    """Return ``--snaplen``: the number of bytes recorded of each packet."""
    return click.option(
        "--snaplen",
        type=click.IntRange(1, 0xFFFF),
        envvar="RNIC_SNAPLEN",
        help="Record at most this many bytes of each packet, starting with the BTH.",
    )


PORT_RENAMED: dict[str, Rename] = {"--tcp-port": "--port"}
UDP_PORT_RENAMED: dict[str, Rename] = {"--port": "--udp-port"}


def udp_port(text: str = "UDP port of the NIC.", *, low: int = 0, default: int | None = None, **more: Any) -> Option:
    """Return ``--udp-port``: the port on which RoCEv2 packets arrive."""
    shown = default is not None
    kind = click.IntRange(low, 65535)
    return click.option("--udp-port", type=kind, default=default, show_default=shown, help=text, **more)


def addr(peer: str) -> Option:
    """Return ``--addr``: the NIC's own address; ``peer`` is the client's name for the other side."""
    return click.option("--addr", help=ADDR_HELP.format(peer))


def size(default: int | None, most: int, text: str = "Message size in bytes.") -> Option:
    """Return ``-s, --size``: message size in bytes."""
    shown = default is not None
    return click.option("-s", "--size", default=default, show_default=shown, type=click.IntRange(1, most), help=text)


def iters(default: int, text: str, *, low: int = 1, most: int = 1 << 31) -> Option:
    """Return ``-n, --iters``: number of messages."""
    return click.option(
        "-n", "--iters", default=default, show_default=low > 0, type=click.IntRange(low, most), help=text
    )


def connection(short: bool = True) -> Option:
    """Return ``-c, --connection``: the transport service; no ``-c`` if the rdma-core program uses it otherwise."""
    names = ("-c", "--connection") if short else ("--connection",)
    kind = click.Choice(SERVICES)
    return click.option(*names, "service", default="RC", show_default=True, type=kind, help="Transport service.")


def nic_process() -> Option:
    """Return ``--nic-process``: use a device of this user's NIC process instead of one in this process."""
    return click.option(
        "--nic-process", is_flag=True, help="Use this user's NIC process, as programs under rnic exec do."
    )


def timeout() -> Option:
    """Return ``--timeout``: how long the peer may be silent."""
    kind = click.FloatRange(0.1)
    text = "Give up after this many seconds without a response from the peer."
    return click.option("--timeout", default=30.0, show_default=True, type=kind, help=text)


def as_json(text: str = "Print JSON.") -> Option:
    """Return ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def device(text: str = "Device name; by default the first.", *, default: str | None = "") -> Option:
    """Return ``-d, --device``: a device of the running NIC process."""
    return click.option("-d", "--device", default=default, help=text)


def faults(
    text: str = "Faults to inject: a JSON file of rules, the rules themselves, or rates such as drop=1%.",
) -> Option:
    """Return ``--faults``: faults injected into packets (:mod:`rnic.cli.faults`)."""
    return click.option("--faults", metavar="RULES", help=text)


def interval(default: float, low: float = 0.05) -> Option:
    """Return ``--interval``: time between two queries of a running NIC."""
    kind = click.FloatRange(low, 60.0)
    return click.option(
        "-i", "--interval", default=default, show_default=True, type=kind, help="Seconds between updates."
    )


def qpn(number: int) -> str:
    """Return a queue pair's number as every command prints it."""
    return f"{number:#08x}"


class ControlName(click.ParamType):  # type: ignore[type-arg] # generic in newer versions alone
    """The name of a congestion control; ``module:Class`` is also searched in the current directory."""

    name = "NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check that there is such a congestion control."""
        if ":" in value and "/" not in value:
            value = f"{os.getcwd()}/{value}"  # absolute, for the NIC process, which runs in another directory
        try:
            find(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class QpnType(click.ParamType):  # type: ignore[type-arg] # generic in newer versions alone
    """A queue pair's or completion queue's number: decimal, or hexadecimal with 0x, as commands print it."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or fail with a usage error."""
        try:
            number = int(str(value), 0)
        except ValueError:
            number = -1
        if not 0 <= number <= 0xFFFFFF:
            self.fail(f"{value!r} is not a number from 0 to 0xffffff", param, ctx)
        return number


QPN = QpnType()
