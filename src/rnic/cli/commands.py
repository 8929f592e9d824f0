"""The commands of ``rnic``. Each is loaded when it is used, so that the others start fast."""

from __future__ import annotations

import importlib
import os
import shutil
import sys

import click

from rnic.cli import INTERRUPTED
from rnic.spec.errors import RnicError

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Run programs": {
        "exec": ("rnic.cli.exec", "Run an unmodified RDMA program (libibverbs) on this NIC."),
        "serve": ("rnic.cli.serve", "Run the NIC process that serves this user's programs."),
        "cdi": ("rnic.cli.cdi", "Give containers of unmodified images a NIC, with a CDI specification."),
        "fault": ("rnic.cli.fault", "Inject a fault into a running NIC: port down, device gone, errors."),
        "doctor": ("rnic.cli.doctor", "Check whether programs can run on this NIC, and show remedies."),
    },
    "Inspect a running NIC": {
        "devinfo": ("rnic.cli.devinfo", "Show devices, limits and the port."),
        "top": ("rnic.cli.top", "Watch objects, queue pairs and rates."),
        "qp": ("rnic.cli.inspect", "List queue pairs, or show one."),
        "cq": ("rnic.cli.inspect", "Show a completion queue."),
        "regs": ("rnic.cli.inspect", "Show all registers."),
        "counters": ("rnic.cli.inspect", "Show all counters."),
        "trace": ("rnic.cli.trace", "Trace the stages of operations, for Perfetto."),
        "wireshark": ("rnic.cli.wireshark", "Install capture interfaces and a findings plugin for Wireshark."),
        "extcap": ("rnic.cli.extcap", "Answer Wireshark's extcap calls."),
        "web": ("rnic.cli.web", "Serve a local web page, JSON and Prometheus metrics."),
    },
    "Check packets and peers": {
        "decode": ("rnic.cli.decode", "Show every packet of a capture."),
        "check": ("rnic.cli.check", "Check captures against the rules of RoCEv2."),
        "conform": ("rnic.cli.conform", "Run packet scripts against a RoCEv2 peer and report the rules it follows."),
        "vectors": ("rnic.cli.vectors", "Write test vectors: input frames and the expected output frames."),
    },
    "Run Python peers": {
        "perf": ("rnic.cli.perf", "Measure bandwidth and latency, as perftest does."),
        "pingpong": ("rnic.cli.pingpong", "Exchange messages with a peer, as ibv_rc_pingpong does."),
        "rclink": ("rnic.cli.rclink", "Exchange messages with a peer over RC Link."),
        "coyote": ("rnic.cli.coyote", "Run Coyote's perf_rdma between two processes."),
        "paxi": ("rnic.cli.paxi", "Access another chip's memory as over an AXI bus."),
    },
    "Simulate": {
        "sim": ("rnic.cli.sim", "Simulate a network of NICs in virtual time: topology, workload, congestion."),
    },
    "Hardware": {
        "gateware": ("rnic.cli.gateware", "Simulate the descriptor engine, or write it as Verilog."),
    },
    "This command": {
        "completion": ("rnic.cli.completion", "Print or install shell completion."),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

HIDDEN = {
    "again": ("rnic.cli.exec", "Restart the NIC process (used by the C libraries)."),
    "cdi-check": ("rnic.cli.cdi", "Refuse unsuitable images (hook of container engines)."),
}


class LazyGroup(click.Group):
    """A command group that imports each command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; ``None`` if there is none of this name."""
        entry = COMMANDS.get(cmd_name, HIDDEN.get(cmd_name))
        if entry is None:
            return None
        command: click.Command = getattr(
            importlib.import_module(entry[0]), "execute" if cmd_name == "exec" else cmd_name.replace("-", "_")
        )
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for the name of a program on this machine, explain how to run it."""
        if self.get_command(ctx, args[0]) is None and shutil.which(args[0]) is not None:
            raise click.UsageError(f"No such command {args[0]!r}. To run that program: rnic exec -- {args[0]}", ctx)
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib  # noqa: PLC0415 - needed for typos only

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            meant = f"did you mean {near[0]}?" if near else "rnic --help lists them"
            raise click.UsageError(f"No such command {args[0]!r}; {meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        width = max(map(len, COMMANDS)) + 2
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width - 2), text) for name, (_, text) in commands.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="rnic")
def group() -> None:
    """An RDMA NIC in Python: RoCEv2 without hardware, kernel module or root."""


def one_line(error: click.ClickException) -> str:
    """Format a click error as one line; return the help if a group is called without a command."""
    if type(error).__name__ == "NoArgsIsHelpError":  # since click 8.2
        return error.format_message()
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "rnic"
    said = " ".join(error.format_message().split())
    # click's message for a range of numbers is misleading
    said = said.replace("is not a valid integer range.", "is not a whole number.")
    said = said.replace("is not a valid float range.", "is not a number.")
    if isinstance(error, click.NoSuchOption) and not error.possibilities:
        said += f" {command} --help lists them."
    if said.startswith("No such command") and said.endswith("."):
        said = f"{said[:-1]}; {command} --help lists them"
    return f"{command}: {said}"


def run() -> None:
    """Run the command line; an rnic error or a wrong argument prints one line on stderr, with exit status 2."""
    try:
        # a command that ends early (--help, --version) returns its status
        sys.exit(group(sys.argv[1:] or ["--help"], prog_name="rnic", standalone_mode=False))
    except click.ClickException as error:
        print(one_line(error), file=sys.stderr)
        sys.exit(2)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # the reader of the output, such as head, has closed the pipe: flush into /dev/null
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
