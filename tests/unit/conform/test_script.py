"""Packet scripts: what their lines mean."""

from __future__ import annotations

import random
import re
from importlib.resources import files

import pytest

from rnic.conform.frames import connection_of, differences, expected, frame_of
from rnic.conform.script import SUITES, ScriptError, evaluate, parse, pattern, scripts
from rnic.conform.vectors import as_object, example
from rnic.wire.packet import Packet
from rnic.wire.packet import parse as parse_packet

TEXT = """\
# a comment
test one | IBA 9.4 | A sentence
with mtu=256 start=0xFFFFFF
> WRITE_FIRST psn=0 at=M+8 len=mtu+4 ackreq [mtu a]
< NAK sequence psn=1 msn=2

test two | A17 | Another
~ 5ms
"""


def test_lines_become_steps() -> None:
    one, two = parse(TEXT, "responder")
    assert (one.name, one.clause, one.says, one.mtu) == ("one", "IBA 9.4", "A sentence", 256)
    assert one.set_options == {"mtu", "start"}
    first, second = one.steps
    assert (first.kind, first.name, first.words) == (">", "WRITE_FIRST", ("ackreq",))
    assert first.values == {"psn": "0", "at": "M+8", "len": "mtu+4"}
    assert (second.kind, second.words) == ("<", ("sequence",))
    assert two.steps[0].text == "~ 5ms"
    assert one.fatal, "it ends with a gap"
    assert not two.fatal


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("> SEND_ONLY", "stands in no test"),
        ("test a | b", "a test is NAME"),
        ("test a | b | c\nSEND_ONLY", "begins with none of"),
        ("test a | b | c\nwith colour=red", "'colour=red' sets nothing"),
        ("test a | b | c\n> [4 a]", "names nothing"),
        ("test a | b | c\n< NAK", "a NAK is of kind"),
    ],
)
def test_what_is_no_script_is_said_with_its_line(text: str, says: str) -> None:
    with pytest.raises(ScriptError, match=r"responder, line \d: .*" + says):
        list(parse(text, "responder"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("with service=XX\n~ 1ms", "service=XX mtu=1024: a service is one of RC, UC, UD"),
        ("with mtu=1000\n~ 1ms", "a path MTU one of 256"),
        ("with start=x\n~ 1ms", "start=x: 'x' is not a number"),
    ],
)
def test_a_test_that_cannot_be_played_is_none(options: str, says: str) -> None:
    with pytest.raises(ScriptError, match=f"responder: .*{says}"):
        list(parse(f"test a | b | c\n{options}", "responder"))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("> WRITE_ONLY psn=0 at=Q len=4 [4 a]", "is not a packet: 'Q'"),
        ("> WRITE_ONLY psn=x at=M len=4 [4 a]", "'x' is not a number, and none of mtu, qkey"),
        ("> WRITE_ONLY psn=0 at=M len=99999999999 [4 a]", "is not a packet"),
        ("> SEND_ONLY psn=0 [99999999 a]", "0 to 65536 bytes of a pattern can be named"),
        ("> SEND_ONLY psn=9*9999999999*9999999999*9999999999 [4 a]", "has more than 64 bits"),
    ],
)
def test_a_line_of_which_no_packet_can_be_made_is_said(line: str, says: str) -> None:
    (script,) = parse(f"test a | b | c\n{line}", "responder")
    with pytest.raises(ScriptError, match=says):
        frame_of(script.steps[0], example(script))


NUMBERS = ("-1", "0", "65537", str(1 << 64), "9" * 5_000, "0x", "1.5", "mtu*mtu*mtu", "size", "\u0663")


@pytest.mark.slow
def test_damaged_scripts_are_read_or_refused_and_nothing_else() -> None:
    """Bits, lines, words and numbers of the suites, changed by a seed."""
    rng = random.Random(39)
    whole = [files("rnic.conform").joinpath("scripts", f"{suite}.txt").read_text() for suite in SUITES]
    tests = [f"test {text}" for suite in whole for text in re.split(r"(?m)^test ", suite)[1:]]
    words = " ".join(tests).split()
    read, refused = 0, list[str]()
    for _ in range(2_000):
        text = damaged(rng.choice(tests), rng, words)
        try:
            for script in parse(text, "responder"):
                as_object(script)
                assert {script.fatal, script.needs_agent} <= {True, False}
                read += 1
        except ScriptError as error:
            refused.append(str(error))
    assert read > 300
    assert len(refused) > 300
    assert not any("\n" in words for words in refused)


def damaged(text: str, rng: random.Random, words: list[str]) -> str:
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text))
        parts = re.split(r"(\s+)", text)
        place = rng.randrange(len(parts))
        kind = rng.randrange(6)
        if kind == 0:
            text = text[:at] + chr(rng.choice((rng.randrange(1, 128), 0x2028, 0x1F600))) + text[at + 1 :]
        elif kind == 1:
            text = text[:at] + text[at + rng.randrange(1, 40) :] or "x"
        elif kind == 2:
            parts[place] = rng.choice(words)
            text = "".join(parts)
        elif kind == 3:
            parts[place] = ""
            text = "".join(parts) or "x"
        elif kind == 4:
            pieces = re.split(r"(\d+)", text)
            pieces[rng.randrange(len(pieces))] = rng.choice(NUMBERS)
            text = "".join(pieces)
        else:
            text = text[:at] + "\n" + text[at:]
    return text


def test_numbers() -> None:
    assert evaluate("2*mtu+10", {"mtu": 256}) == 522
    assert evaluate("size-mtu", {"mtu": 256, "size": 1024}) == 768
    assert evaluate("0x10", {}) == 16
    assert pattern("a", 256, 3) == pattern("a", 0, 259)[256:]


def test_a_line_becomes_a_frame() -> None:
    (one, _) = parse(TEXT, "responder")
    connection = example(one)
    packet = parse_packet(memoryview(frame_of(one.steps[0], connection)))
    assert isinstance(packet, Packet)
    assert (packet.row.name, packet.psn, packet.ackreq, packet.dma_length) == ("RC_WRITE_FIRST", 0xFFFFFF, True, 260)
    assert (packet.va, packet.rkey) == (connection.regions["M"].va + 8, connection.regions["M"].key)
    assert bytes(packet.payload) == pattern("a", 0, 256)
    nak = expected(one.steps[1], connection)
    assert (nak.psn, nak.syndrome, nak.msn, nak.dqpn) == (0, 0x60, 2, connection.qpn)


@pytest.mark.parametrize(
    ("wanted", "came", "wrong"),
    [
        ("< ACK psn=0", "< ACK psn=0 msn=7", []),
        ("< ACK psn=0 msn=1", "< ACK psn=0 msn=7", ["msn 7 and not 1"]),
        ("< ACK psn=0", "< ACK psn=1", ["psn 101 and not 100"]),
        ("< ACK psn=0", "< NAK access psn=0", ["syndrome 0x62 and not 0x1f"]),
        ("< NAK invalid|access psn=0", "< NAK access psn=0", []),
        ("< NAK invalid|access psn=0", "< NAK operation psn=0", ["syndrome 0x63 and not 0x61"]),
        ("< RNR psn=0", "< RNR psn=0 timer=3", ["syndrome 0x23 and not 0x2c"]),
        ("< READ_RESPONSE_ONLY psn=0 [4 a]", "< READ_RESPONSE_ONLY psn=0 [4 b]", ["other bytes from byte 0 on"]),
        ("< READ_RESPONSE_ONLY psn=0 [4]", "< READ_RESPONSE_ONLY psn=0 [4 b]", []),
        ("< READ_RESPONSE_ONLY psn=0 [4]", "< READ_RESPONSE_ONLY psn=0 [5 b]", ["5 bytes of payload and not 4"]),
        ("< READ_RESPONSE_ONLY psn=0 [4]", "< ACK psn=0", ["RC_ACKNOWLEDGE and not RC_READ_RESPONSE_ONLY"]),
    ],
)
def test_what_came_is_compared_where_the_line_binds_it(wanted: str, came: str, wrong: list[str]) -> None:
    (script,) = parse(f"test a | b | c\n{wanted}\n{came}", "responder")
    connection = example(script)
    assert differences(script.steps[0], connection, expected(script.steps[1], connection)) == wrong


def test_the_suites_are_whole() -> None:
    found = scripts()
    assert {script.suite for script in found} == set(SUITES)
    assert len({script.name for script in found}) == len(found) > 150
    text = "\n".join(script.text for script in found)
    for word in ("NAK sequence", "NAK invalid", "NAK access", "NAK operation", "RNR", "CNP", "icrc=bad", "cut=",
                 "ATOMIC_ACKNOWLEDGE", "READ_RESPONSE_MIDDLE", "WRITE_ONLY_IMM", "state ERR"):  # fmt: skip
        assert word in text
    assert {script.options["service"] for script in found} == {"RC", "UC", "UD", "XRC", "XRC_INI"}
    assert {script.mtu for script in found} == {256, 512, 1024, 2048, 4096}


@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.name)
def test_every_line_can_be_made(script: object) -> None:
    from rnic.conform.script import Script

    assert isinstance(script, Script)
    connection = example(script)
    assert (
        connection.psn == connection_of(script, qpn=1, peer_qpn=2, flow=connection.flow, regions=connection.regions).psn
    )
    for step in script.steps:
        if step.kind in (">", "<", "<?") and step.name != "nothing":
            assert len(frame_of(step, connection)) >= 16
    assert not script.says.endswith(".")
