"""An agent that answers nonsense: one line that says so, whatever it is."""

from __future__ import annotations

import contextlib

import pytest

from rnic.conform.bench import Bench, BenchError, SimAgent, SimWire
from rnic.conform.runner import NOT_APPLICABLE, run
from rnic.conform.script import OPTIONS, Script, scripts
from rnic.testing.net import SimNet

GREETING = "ok version=1 maker=rnic mtu=4096 gid=00000000000000000000ffff0a000001 port=4791"
HELLOS = (
    *("", "no", "ok", "ok version=1", "ok version=2 maker=rnic", GREETING.replace("4096", "0")),
    *(GREETING.replace("4096", "many"), GREETING.replace("0a000001", "0a"), GREETING.replace("gid=0", "gid=x")),
    *(GREETING.replace("4791", "65536"), GREETING.replace("4791", "0"), GREETING.replace("maker=rnic ", "")),
)
ANSWERS = (
    *("ok", "ok =", "ok a=b", "ok qpn=1", "ok none none", "ok kind=send", "ok kind=recv status=0x"),
    *("ok kind=send status=0 len=x", "ok 0g", "ok qpn=-1 M=0:0:8 S=0:0:8", "ok qpn=1 M=0:0 S=1", "ok \ufffd\0"),
)
OPENED = OPTIONS | {"qpn": 5, "theirs": 1, "ours": 1, "gid": "00000000000000000000ffff0a0000c8", "port": 4791}
"""Words that open an RC queue pair."""


class Agent:
    """The right agent, until ``wrong`` is said in place of what it answers to a word."""

    def __init__(self, net: SimNet) -> None:
        self._right = SimAgent(net)
        self.wrong: dict[str, str] = {}

    def ask(self, line: str) -> str:
        right = self._right.ask(line)
        return self.wrong.get(line.split(maxsplit=1)[0], right)

    def close(self) -> None:
        self._right.close()


@pytest.mark.parametrize("hello", HELLOS)
def test_a_greeting_that_is_none(hello: str) -> None:
    with SimNet(1) as net:
        agent = Agent(net)
        agent.wrong["hello"] = hello
        with pytest.raises(BenchError) as error:
            Bench(SimWire(net), agent)
    assert "\n" not in str(error.value)
    assert "agent" in str(error.value)


def chosen(word: str) -> list[Script]:
    """Return scripts that ask an agent for this word."""
    found = [script for script in scripts() if script.needs_agent and (word != "bytes" or "? bytes" in script.text)]
    return found[:: len(found) // 6]


@pytest.mark.parametrize("word", ["open", "poll", "bytes"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_is_none(word: str, answer: str) -> None:
    ended = 0
    for script in chosen(word):
        with SimNet(1) as net:
            agent = Agent(net)
            bench = Bench(SimWire(net), agent)
            bench.patience_ns = bench.quiet_ns = 1_000_000
            agent.wrong[word] = answer
            with contextlib.suppress(BenchError):
                run(bench, script)
                continue
            ended += 1
    assert ended or (word, answer) == ("bytes", "ok"), "no bytes are bytes"


@pytest.mark.parametrize(
    ("answer", "says"),
    [("error the device has no XRC", "open: the device has no XRC"), ("", "the agent knows no XRC")],
)
@pytest.mark.parametrize("name", ["xrc-send", "out-xrc-send"])
def test_a_peer_without_xrc_is_not_judged_by_its_scripts(name: str, answer: str, says: str) -> None:
    """A device that has none, and an agent that names no queues."""
    (script,) = [script for script in scripts() if script.name == name]
    with SimNet(1) as net:
        agent = Agent(net)
        bench = Bench(SimWire(net), agent)
        right = agent.ask("open " + " ".join(f"{name}={value}" for name, value in OPENED.items()))
        agent.wrong["open"] = answer or right
        result = run(bench, script)
    assert (result.verdict, result.detail) == (NOT_APPLICABLE, says)
