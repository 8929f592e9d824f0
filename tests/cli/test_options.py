"""Options that several commands share: one name and one meaning each, and old spellings answer with the new one."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from rnic.cli.commands import COMMANDS, GROUPS, group
from rnic.cli.completion import PLACES, SHELLS, script
from rnic.cli.faults import fault_rules
from rnic.cli.options import QPN, qpn
from rnic.runtime.directory import ProcessError

MEANINGS = {
    "--port": "TCP port",
    "--udp-port": "UDP",
    "--connection": "Transport service",
    "--faults": "Faults",
    "--device": "device",
    "--nic-process": "NIC process",
    "--timeout": "seconds without a response",
    "--iters": "Messages Exchanges",
}
"""What the help of an option says in every command that has it: one of these words at least."""
SHORT = {"-c": "--connection", "-d": "--device", "-p": "--port", "-s": "--size", "-n": ("--iters", "--bursts")}


def commands() -> list[tuple[str, click.Command]]:
    context = click.Context(group)
    found = []
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        parts = getattr(command, "commands", {name: command})
        found += [(f"{name} {part}" if len(parts) > 1 else name, each) for part, each in parts.items()]
    return found


def test_an_option_means_the_same_in_every_command() -> None:
    for name, command in commands():
        for param in command.params:
            if not isinstance(param, click.Option):
                continue
            for spelling in param.opts:
                words = MEANINGS.get(spelling, "")
                if words and not param.hidden:
                    said = str(param.help)
                    whole = said if spelling not in ("--device", "--iters") else said.lower() + said
                    assert any(word in whole for word in ([words] if spelling != "--iters" else words.split())), name
                wanted = SHORT.get(spelling)
                if wanted is not None:
                    allowed = (wanted,) if isinstance(wanted, str) else wanted
                    assert set(allowed) & set(param.opts), f"{name} {spelling} is {param.opts}"


def test_the_help_lists_every_command_once_in_a_group() -> None:
    shown = CliRunner().invoke(group, ["--help"]).output
    for title, listed in GROUPS.items():
        assert f"{title}:" in shown
        for name in listed:
            assert sum(line.split()[:1] == [name] for line in shown.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["check", "--port", "70000", "x"], "rnic check: --port is now --udp-port"),
        (["perf", "write_bw", "--lose=50", "-m", "7"], "rnic perf: --lose is now --faults drop=1/50"),
        (["rclink", "--loss", "0.1", "--packet", "0"], "rnic rclink: --loss is now --faults"),
        (["pingpong", "--service", "XX"], "rnic pingpong: --service is now --connection"),
        (["pingpong", "-c", "--mtu", "7"], "rnic pingpong: -c is now --chk"),
        (["exec", "--no-hairpin", "--udp-port", "70000", "x"], "rnic exec: --no-hairpin is now --no-shm"),
        (["coyote", "--tcp-port", "0"], "rnic coyote: --tcp-port is now --port"),
    ],
)
def test_an_old_spelling_answers_with_the_new_one(words: list[str], note: str) -> None:
    result = CliRunner().invoke(group, words, prog_name="rnic")
    first, *rest = result.output.splitlines()
    assert first.startswith(note)
    assert first.endswith("; the next release no longer takes " + note.split(": ")[1].split(" ", maxsplit=1)[0])
    assert result.exit_code == 2, "the value is judged as that of the new one"
    assert rest


def test_words_of_the_program_are_left_alone() -> None:
    result = CliRunner().invoke(group, ["exec", "--no-such", "--", "x", "--port", "1"], prog_name="rnic")
    assert "is now" not in result.output
    result = CliRunner().invoke(group, ["exec", "--faults", "", "no-such-program-anywhere", "--port", "1"])
    assert "is now" not in result.output


def test_rates_are_rules() -> None:
    rules = json.loads(fault_rules("drop=2%, mark=1/50") or "")
    assert rules == [
        {"match": {"direction": "rx"}, "probability": 0.02, "action": "drop"},
        {"match": {"direction": "rx"}, "probability": 0.02, "action": "mark"},
    ]
    for bad in ("drop=0", "drop=150%", "drop=1/0"):
        with pytest.raises(ProcessError, match="is not above 0 and at most 1"):
            fault_rules(bad)


@pytest.mark.parametrize("text", ["17", "0x11", "0x000011"])
def test_a_queue_pair_is_named_as_it_is_printed(text: str) -> None:
    assert QPN.convert(text, None, None) == 17
    assert qpn(17) == "0x000011"


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_written_where_the_shell_looks(
    shell: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    result = CliRunner().invoke(group, ["completion", "--install"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / PLACES[shell]).read_text() == script(shell)  # type: ignore[operator]
    assert "_RNIC_COMPLETE" in script(shell)


def test_a_fault_script_that_is_nested_too_deeply_is_one_line() -> None:
    with pytest.raises(ProcessError, match=r"^fault script: it is nested too deeply$"):
        fault_rules("[" * 60_000)
