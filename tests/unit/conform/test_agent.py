"""The agent for rnic's devices: whatever a line says, its answer is one line, and it serves on."""

from __future__ import annotations

import random

import pytest

from rnic.conform.agent import VerbsAgent
from rnic.testing.net import SimNet

OPEN = (
    "open service=RC mtu=1024 qpn=17 theirs=1 ours=2 access=rwa rd=16 rnr_timer=12 timeout=14 retry=7 rnr_retry=7"
    " credits=0 gid=00000000000000000000ffff0a000001 port=4791"
)
LINES = (
    "hello", OPEN, OPEN.replace("RC", "UD"), OPEN.replace("RC", "UC"), OPEN.replace("RC", "XRC"),
    OPEN.replace("RC", "XRC_INI"), "recv 2 64 srqn=1", "recv 2 64", "post SEND len=8", "poll", "state",
    "post WRITE len=8 va=1 rkey=2", "post CMP_SWAP va=8 rkey=2 compare_add=1 swap=2", "bytes M 0 8", "bytes S 4 4",
    "close",
)  # fmt: skip
VALUES = (
    "",
    "-1",
    "0",
    "x",
    "\u0663",
    "0x10",
    str(1 << 63),
    str(1 << 64),
    "9" * 5_000,
    "RC",
    "M",
    "\ufffd",
    "1e9",
    "=",
)


@pytest.mark.slow
def test_garbage_is_answered_by_one_line() -> None:
    rng = random.Random(39)
    net = SimNet(1, seed=1)
    agent = VerbsAgent(net.nodes[0].ctx)
    answered = {"ok": 0, "error": 0}
    for _ in range(3_000):
        words = rng.choice(LINES).split(" ")
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(words))
            name, mark, _ = words[at].partition("=")
            kind = rng.randrange(4)
            if kind == 0:
                words[at] = f"{name}{mark}{rng.choice(VALUES)}" if mark else rng.choice(VALUES)
            elif kind == 1:
                words.insert(at, rng.choice(rng.choice(LINES).split(" ")))
            elif kind == 2 and len(words) > 1:
                del words[at]
            else:
                words[at] = words[at][: rng.randrange(len(words[at]) + 1)]
        answer = agent.ask(" ".join(words))
        assert "\n" not in answer
        answer.encode()
        answered[answer.split(" ", 1)[0]] += 1
    assert min(answered.values()) > 500
    assert agent.ask(OPEN).startswith("ok qpn=")
    assert agent.ask("state") == "ok RTS"
    assert agent.ask("close") == "ok"
    assert not net.nodes[0].nic.qps
    net.close()
