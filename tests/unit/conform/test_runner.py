"""What the runner says of a peer: pass, fail, deviation, not applicable; and what it lets pass."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest

from rnic.conform.agent import VerbsAgent
from rnic.conform.bench import Arrived, Bench, BenchError, HandBench, RemoteAgent, SimAgent, SimWire, simulated
from rnic.conform.builders import DEVIATIONS, RXE
from rnic.conform.frames import Region, frame_of
from rnic.conform.runner import DEVIATION, FAIL, NOT_APPLICABLE, PASS, known_deviation, run
from rnic.conform.script import Script, parse, scripts
from rnic.conform.vectors import example
from rnic.link.base import parse_address
from rnic.testing.net import SimNet

BY_NAME = {script.name: script for script in scripts()}


def script(text: str) -> Script:
    (found,) = parse(f"test x | IBA | says\n{text}", "responder")
    return found


class Puppet:
    """A wire on which a peer answers as told, and its agent."""

    crossing_ns = 1_000_000

    def __init__(self, played: Script, *answers: str) -> None:
        (answer,) = parse("test a | b | c\n" + "\n".join(answers), "responder")
        connection = example(played)
        self.address = connection.flow.src
        self.port = 49_152
        self.connection = connection
        self.now = 0
        self.inbox = deque(Arrived(0, frame_of(step, connection), True) for step in answer.steps)

    def now_ns(self) -> int:
        return self.now

    def send(self, flow: object, payload: bytes) -> None:
        pass

    def receive(self, until_ns: int) -> Arrived | None:
        if self.inbox:
            return self.inbox.popleft()
        self.now = until_ns
        return None

    def give_back(self, packets: list[Arrived]) -> None:
        self.inbox.extendleft(reversed(packets))

    def ask(self, line: str) -> str:
        if line == "hello":
            return "ok version=1 maker=rxe mtu=4096 gid=00000000000000000000ffffc0000202"
        c = self.connection
        regions = " ".join(f"{name}={r.va}:{r.key}:{r.size}" for name, r in c.regions.items())
        return f"ok qpn={c.peer_qpn} {regions}" if line.startswith("open") else "ok"

    def bench(self) -> Bench:
        bench = Bench(self, self)  # type: ignore[arg-type]
        bench._qpn = self.connection.qpn - 1
        return bench


ONE = "> WRITE_ONLY psn=1 ackreq at=M len=4 [4 a]\n< ACK psn=1 msn=2"


@pytest.mark.parametrize(
    ("answers", "verdict", "says"),
    [
        (("< ACK psn=1 msn=2",), PASS, ""),
        (("< ACK psn=0 msn=1", "< ACK psn=1 msn=2"), PASS, ""),
        ((), FAIL, "nothing came where this must: ACK psn=1 msn=2"),
        (("< ACK psn=2 msn=2",), FAIL, "(psn 102 and not 101)"),
        (("< NAK access psn=1",), FAIL, "NAK remote access error"),
        (("< ACK psn=1 msn=1",), FAIL, "(msn 1 and not 2)"),
    ],
)
def test_a_script_passes_or_says_what_is_wrong(answers: tuple[str, ...], verdict: str, says: str) -> None:
    played = script(ONE)
    result = run(Puppet(played, *answers).bench(), played)
    assert (result.verdict, says in result.detail) == (verdict, True), result.detail
    assert any(" > " in line for line in result.log)


def test_silence_is_held_to() -> None:
    played = script("> WRITE_ONLY psn=0 at=M len=4 [4 a]\n< nothing")
    assert run(Puppet(played).bench(), played).verdict == PASS
    result = run(Puppet(played, "< ACK psn=0").bench(), played)
    assert result.verdict == FAIL
    assert "came where nothing may" in result.detail


def test_what_may_come_may_stay_away() -> None:
    played = script("<? ACK psn=0\n< CNP [16]")
    for answers in (("< CNP [16]",), ("< ACK psn=0", "< CNP [16]")):
        assert run(Puppet(played, *answers).bench(), played).verdict == PASS


def test_a_wrong_icrc_and_other_queue_pairs() -> None:
    played = script(ONE)
    puppet = Puppet(played, "< ACK psn=1 msn=2")
    puppet.inbox[0] = puppet.inbox[0]._replace(icrc_ok=False)
    assert "is wrong" in run(puppet.bench(), played).detail
    puppet = Puppet(played, "< ACK psn=1 msn=2")
    other = bytearray(puppet.inbox[0].payload)
    other[7] ^= 1
    puppet.inbox.appendleft(Arrived(0, bytes(other), True))
    assert run(puppet.bench(), played).verdict == PASS, "what is for another queue pair is passed over"


def test_repetitions_may_come_but_not_from_before_a_sequence_nak() -> None:
    text = "< SEND_ONLY psn=0 [4 m]\n> {}\n< SEND_ONLY psn=1 [8 m]"
    answers = ("< SEND_ONLY psn=0 [4 m]", "< SEND_ONLY psn=0 [4 m]", "< SEND_ONLY psn=1 [8 m]")
    played = script(text.format("ACK psn=0"))
    assert run(Puppet(played, *answers).bench(), played).verdict == PASS
    played = script(text.format("NAK sequence psn=1"))
    assert run(Puppet(played, *answers).bench(), played).verdict == FAIL


@pytest.mark.parametrize(
    ("times_us", "verdict"),
    [
        ([4000], PASS),
        ([500, 4000], PASS),
        ([500, 700, 4000], PASS),
        ([3000], FAIL),
        ([500, 60_000], FAIL),
        ([500], FAIL),
    ],
)
def test_a_repetition_that_crossed_an_rnr_nak_is_no_answer_to_it(times_us: list[int], verdict: str) -> None:
    """What comes at once may have left before; but then the due one is to come when its timer has run out."""
    played = script("< SEND_ONLY psn=0 [4 m]\n> RNR psn=0 timer=18 msn=0\n< SEND_ONLY psn=0 after=3840us [4 m]")
    puppet = Puppet(played, *["< SEND_ONLY psn=0 [4 m]"] * (1 + len(times_us)))
    for at, time_us in enumerate(times_us, 1):
        puppet.inbox[at] = puppet.inbox[at]._replace(time_ns=time_us * 1000)
    result = run(puppet.bench(), played)
    assert result.verdict == verdict, result.detail


def test_only_a_known_deviation_gets_its_name() -> None:
    marked = BY_NAME["marked"]
    found = known_deviation("rxe", marked, "nothing came where this must: CNP [16]")
    assert found is not None
    assert found.says == "it sends no congestion notifications"
    assert known_deviation("rxe", marked, "RC_ACKNOWLEDGE came where this must: CNP [16]") is None
    assert known_deviation("rnic", marked, "nothing came where this must: CNP [16]") is None
    puppet = Puppet(marked)
    result = run(puppet.bench(), marked)
    assert (result.verdict, result.detail) == (DEVIATION, found.says)


def test_deviations_are_of_tests_that_exist() -> None:
    for deviations in DEVIATIONS.values():
        for deviation in deviations:
            assert set(deviation.shows) <= set(BY_NAME)
    assert len(RXE) == len({deviation.says for deviation in RXE})


def test_a_path_mtu_that_the_peer_has_not_is_not_applicable() -> None:
    bench = simulated()
    bench.mtu = 1024
    result = run(bench, BY_NAME["write-several@4096"])
    assert (result.verdict, result.detail) == (NOT_APPLICABLE, "the peer's path MTU is 1024")


@pytest.mark.slow
def test_by_hand() -> None:
    with SimNet(1) as net:
        agents = [SimAgent(net) for _ in range(2)]
        wire = SimWire(net)
        psn, qpn = 0xFFFFF8, 0x123
        pairs, region = [], Region(0, 0, 0)
        gid = (bytes(10) + b"\xff\xff" + wire.address).hex()
        for index, agent in enumerate(agents):
            answer = agent.ask(
                f"open service=RC qpn={qpn} gid={gid} port=4791 theirs={psn}"
                f" ours=7 mtu=1024 access=rwa rd=16 rnr_timer=12 timeout=14 retry=7 rnr_retry=7 credits=0"
            )
            values = dict(word.split("=", 1) for word in answer.split()[1:])
            pairs.append((int(values["qpn"]), psn))
            if index == 0:
                region = Region(*(int(part, 0) for part in values["M"].split(":")))
        bench = HandBench(wire, net.nodes[0].nic.config.address, pairs[:1], region, 1024, "unknown", qpn)
        results = {s.name: run(bench, s) for s in scripts()}
    verdicts = {name: result.verdict for name, result in results.items()}
    assert FAIL not in verdicts.values(), [(n, r.detail) for n, r in results.items() if r.verdict == FAIL]
    for name in ("write-read-back", "gap", "duplicate-atomic", "icrc", "read-two-packets"):
        assert verdicts[name] == PASS, results[name].detail
    assert any("not looked at" in line for line in results["gap"].log)
    assert results["send-only"].detail == "it needs an agent"
    assert verdicts["key-unknown"] == NOT_APPLICABLE, "the last queue pair is kept"


def test_an_agent_that_is_not_there() -> None:
    with pytest.raises(
        BenchError, match=r"start an agent there: rnic conform --agent --addr 127\.0\.0\.1 --agent-port 9, or"
    ):
        RemoteAgent("127.0.0.1", 9)


def test_an_agent_of_another_version() -> None:
    agent = SimpleNamespace(ask=lambda line: "ok version=9 maker=x mtu=1024 gid=" + "0" * 32)
    wire = SimpleNamespace(address=parse_address("127.0.0.1"), port=1)
    with pytest.raises(BenchError, match="speaks version 9"):
        Bench(wire, agent)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "poll",
        "post SEND len=8",
        "open",
        "open service=RC",
        "open service=XX qpn=5",
        "recv x 8",
        "bytes Q 0 8",
        "bytes M 0",
        "post SEND len=99999999999999999999",
        "post SEND len=8 imm=99999999999",
        "nonsense",
        "do__close",
    ],
)
@pytest.mark.parametrize("opened", [False, True])
def test_an_agent_answers_whatever_it_is_asked(line: str, opened: bool) -> None:
    with SimNet(1) as net:
        bench = simulated(net)
        if opened:
            bench.open(next(iter(scripts())))
        answer = VerbsAgent(net.nodes[0].ctx).ask(line) if not opened else bench._software.ask(line)
        words = answer.splitlines()
        assert len(words) == 1
        assert words[0].startswith("error ") or (opened and words[0] in ("ok", "ok none"))
        bench.close()
        bench.hang_up()
