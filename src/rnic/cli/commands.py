"""The commands of ``rnic``. Each is loaded when it is used, so that the others start fast."""

from __future__ import annotations

import importlib
import os
import shutil
import sys

import click

from rnic.cli import INTERRUPTED
from rnic.spec.errors import RnicError

COMMANDS = {
    "check": ("rnic.cli.check", "Judge captures: which packets break which rule."),
    "conform": ("rnic.cli.conform", "Play packet scripts against a RoCEv2 peer: which rules it keeps."),
    "counters": ("rnic.cli.inspect", "Show all counters of a running NIC."),
    "cq": ("rnic.cli.inspect", "Show one completion queue of a running NIC."),
    "coyote": ("rnic.cli.coyote", "Run Coyote's perf_rdma between two processes."),
    "decode": ("rnic.cli.decode", "Show every packet of a pcap or pcapng file."),
    "devinfo": ("rnic.cli.devinfo", "Show devices, limits and the port."),
    "exec": ("rnic.cli.exec", "Run an RDMA program (libibverbs), unmodified, on this NIC."),
    "fault": ("rnic.cli.fault", "Let something happen to a running NIC: port down, device gone, errors."),
    "gateware": ("rnic.cli.gateware", "Simulate the descriptor engine, or write it as Verilog."),
    "paxi": ("rnic.cli.paxi", "Read and write another chip's memory as on an AXI bus."),
    "perf": ("rnic.cli.perf", "Measure bandwidth and latency, as perftest does."),
    "qp": ("rnic.cli.inspect", "List queue pairs of a running NIC, or show one."),
    "rclink": ("rnic.cli.rclink", "Exchange messages with a peer over RC Link."),
    "regs": ("rnic.cli.inspect", "Show every register of a running NIC."),
    "top": ("rnic.cli.top", "Watch objects, queue pairs and rates of a running NIC."),
    "trace": ("rnic.cli.trace", "Write one operation's life, stage by stage, as a trace file."),
    "pingpong": ("rnic.cli.pingpong", "Exchange messages with a peer, as ibv_rc_pingpong does."),
    "vectors": ("rnic.cli.vectors", "Write test vectors: frames in, and frames that must come out."),
    "web": ("rnic.cli.web", "Show a running NIC on a local page, with JSON and Prometheus metrics."),
    "sim": ("rnic.cli.sim", "Run a network of NICs in virtual time: topology, workload, congestion."),
    "serve": ("rnic.cli.serve", "Run the NIC process that serves this user's programs."),
}

HIDDEN = {"again": ("rnic.cli.exec", "Start the NIC process again, for the libraries.")}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; ``None`` if there is none of this name."""
        entry = COMMANDS.get(cmd_name, HIDDEN.get(cmd_name))
        if entry is None:
            return None
        command: click.Command = getattr(
            importlib.import_module(entry[0]), "execute" if cmd_name == "exec" else cmd_name
        )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; who names a program of this machine instead learns how it is run."""
        if self.get_command(ctx, args[0]) is None and shutil.which(args[0]) is not None:
            raise click.UsageError(f"No such command {args[0]!r}. To run that program: rnic exec -- {args[0]}", ctx)
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib  # noqa: PLC0415 - for mistakes alone

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            meant = f"did you mean {near[0]}?" if near else "rnic --help lists them"
            raise click.UsageError(f"No such command {args[0]!r}; {meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rnic")
def group() -> None:
    """An RDMA NIC in Python: RoCEv2 without hardware, kernel module or root."""


def one_line(error: click.ClickException) -> str:
    """What click has to say, as this command line says it; the help where a group is called without a command."""
    if type(error).__name__ == "NoArgsIsHelpError":  # since click 8.2
        return error.format_message()
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "rnic"
    said = " ".join(error.format_message().split())
    # of a range of numbers click says that the value is none
    said = said.replace("is not a valid integer range.", "is not a whole number.")
    said = said.replace("is not a valid float range.", "is not a number.")
    if isinstance(error, click.NoSuchOption) and not error.possibilities:
        said += f" {command} --help lists them."
    if said.startswith("No such command") and said.endswith("."):
        said = f"{said[:-1]}; {command} --help lists them"
    return f"{command}: {said}"


def run() -> None:
    """Run the command line; an error of ours or a wrong argument is one line on stderr and exit status 2."""
    try:
        # a command that ends early by itself (--help, --version) hands its status over
        sys.exit(group(sys.argv[1:] or ["--help"], prog_name="rnic", standalone_mode=False))
    except click.ClickException as error:
        print(one_line(error), file=sys.stderr)
        sys.exit(2)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # whoever read our output has enough, such as head; nothing is left to flush into
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (RnicError, ConnectionError, TimeoutError) as error:
        print(f"rnic: {error}", file=sys.stderr)
        sys.exit(getattr(error, "exit_status", 2))
    except OSError as error:
        if error.filename is None:
            raise
        print(f"rnic: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
