"""``rnic doctor``: check whether programs can run on this NIC, and what makes them slow."""

from __future__ import annotations

import dataclasses
import json
import sys

import click

from rnic.cli.doctor_machine import FAILS, NOTE, machine
from rnic.cli.doctor_program import program_findings


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def doctor(as_json: bool, program: tuple[str, ...]) -> None:
    """Check this machine, and PROGRAM if given, for anything that prevents a run under rnic exec.

    Each line is one finding: what is there, what follows, what to do. PROGRAM is not run; its arguments are ignored.
    Exit status 1 if a finding fails.
    """
    found = [*machine(), *(program_findings(program[0]) if program else ())]
    if as_json:
        print(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
    else:
        width = max(len(each.name) for each in found)
        print(*(each.line(width) for each in found), sep="\n")
    failed = sum(each.level == FAILS for each in found)
    if not as_json:
        noted = sum(each.level == NOTE for each in found)
        print(f"{len(found)} findings: {failed} fail, {noted} noted")
    if failed:
        sys.exit(1)
