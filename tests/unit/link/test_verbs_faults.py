"""Rules for verbs: the grammar, what they count, and the records that libraries read."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from rnic.device.commands import CommandResult
from rnic.link.fault_events import FaultEvent
from rnic.link.fault_script import parse_script
from rnic.link.verbs_faults import (
    SHARED_QUEUES,
    LibraryFaults,
    VerbsFaults,
    VerbsRule,
    for_packets,
    from_records,
    parse_verbs_rules,
)
from rnic.mem.mpt import MPT_ENTRY
from rnic.spec import commands as cmd
from rnic.spec import opcodes as op
from rnic.spec import verbs_faults as spec
from rnic.spec.states import RTR


class Program:
    """What rules ask of a driver context."""

    def __init__(self, program: int = 1) -> None:
        self.program = program


def judge(faults: VerbsFaults, op_: int, modifier: int = 0, inbox: bytes = b"", program: int = 1) -> int:
    """The errno that a command fails with; 0 where it goes on."""
    uar: Any = Program(program)
    result: CommandResult | None = faults.judge_command(uar, op_, modifier, 0, inbox)
    return 0 if result is None else result.status - cmd.ST_ERRNO


def library(*rules: dict[str, object], seed: int = 0) -> LibraryFaults:
    return LibraryFaults([rule for rule in parse_verbs_rules(rules, seed) if rule.library])


def test_the_nth_call_fails() -> None:
    faults = VerbsFaults(parse_verbs_rules([{"verb": "create_qp", "nth": 3, "action": "fail", "errno": "EAGAIN"}]))
    seen = [judge(faults, cmd.ALLOC_RES, cmd.RES_QP) for _ in range(5)]
    assert seen == [0, 0, errno.EAGAIN, 0, 0]
    assert judge(faults, cmd.ALLOC_RES, cmd.RES_CQ) == 0, "another verb"


def test_programs_are_counted_apart() -> None:
    faults = VerbsFaults(parse_verbs_rules([{"verb": "alloc_pd", "every": 2, "times": 1, "action": "fail"}]))
    seen = [[judge(faults, cmd.ALLOC_RES, cmd.RES_PD, program=program) for program in (1, 2)] for _ in range(5)]
    assert seen == [[0, 0], [errno.ENOMEM] * 2, [0, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("script", [5, None, True, "drop", {"verb": "alloc_pd"}], ids=str)
def test_a_script_is_a_list(script: Any) -> None:
    with pytest.raises(ValueError, match=r"^a fault script is a list of rules, not "):
        parse_verbs_rules(script)


def test_a_region_by_its_length() -> None:
    gib = 1 << 30
    rules = [{"verb": "reg_mr", "match": {"length": [gib + 1, None]}, "action": "fail", "errno": "ENOMEM"}]
    faults = VerbsFaults(parse_verbs_rules(rules))
    for length, code in ((4096, 0), (gib, 0), (gib + 1, errno.ENOMEM), ((1 << 64) - 1, errno.ENOMEM)):
        assert judge(faults, cmd.SW2HW_MPT, inbox=MPT_ENTRY.pack({"length": length})) == code
    assert judge(faults, cmd.SW2HW_MPT, inbox=b"short") == 0, "the device refuses that itself"


def test_a_transition_by_its_target() -> None:
    rules = [{"verb": "modify_qp", "match": {"state": "RTR"}, "action": "fail", "errno": "ETIMEDOUT"}]
    faults = VerbsFaults(parse_verbs_rules(rules))
    assert faults.rules[0].state == RTR
    seen = [judge(faults, each) for each in (cmd.RST2INIT, cmd.INIT2RTR, cmd.RTR2RTS, cmd.ERR2RST)]
    assert seen == [0, errno.ETIMEDOUT, 0, 0]


def test_our_own_step_to_the_error_state_is_no_verb() -> None:
    faults = VerbsFaults(parse_verbs_rules([{"verb": "modify_qp", "action": "fail"}]))
    uar: Any = Program()
    assert faults.judge_command(uar, cmd.TOERR, 5, cmd.TOERR_ON_COMMAND, b"") is None
    assert faults.judge_command(uar, cmd.TOERR, 5, 0, b"") is not None


def test_an_event_is_told_and_the_verb_goes_on() -> None:
    faults = VerbsFaults(parse_verbs_rules([{"verb": "create_qp", "nth": 2, "action": "fatal", "for": "1s"}]))
    told: list[FaultEvent] = []
    faults.struck = told.append
    assert [judge(faults, cmd.ALLOC_RES, cmd.RES_QP) for _ in range(3)] == [0, 0, 0]
    assert [(event.name, event.for_ns) for event in told] == [("fatal", 10**9)]


def test_opening_is_judged_by_itself() -> None:
    faults = VerbsFaults(parse_verbs_rules([{"verb": "open_device", "nth": 2, "action": "fail", "errno": "ENODEV"}]))
    assert [rule and rule.value for rule in (faults.open_device(7) for _ in range(3))] == [None, errno.ENODEV, None]


def test_posts_are_counted_by_queue_pair() -> None:
    faults = library({"verb": "post_send", "match": {"opcode": "RDMA_WRITE*"}, "nth": 2, "action": "fail"})
    first, second = 0x800001, 0x800002
    posts = [(first, op.WR_SEND), (first, op.WR_WRITE), (second, op.WR_WRITE), (first, op.WR_WRITE_IMM)]
    assert [faults.post(spec.VERB_POST_SEND, *post) is not None for post in posts] == [False, False, False, True]
    faults.forget(second)
    assert [faults.post(spec.VERB_POST_SEND, second, op.WR_WRITE) is not None for _ in range(2)] == [False, True]
    assert faults.post(spec.VERB_POST_RECV, SHARED_QUEUES) is None


def test_completions_by_kind_and_queue_pair() -> None:
    faults = library(
        {"verb": "poll_cq", "match": {"opcode": "RECV*", "qp": 9}, "action": "status", "status": "LOC_LEN_ERR"},
        {"verb": "poll_cq", "match": {"opcode": "RDMA_READ"}, "action": "late", "delay": "2ms"},
    )
    assert faults.completion(8, None) is None
    status, late = faults.completion(9, None), faults.completion(9, op.WR_READ)
    assert status is not None
    assert late is not None
    assert (status.action, status.value) == (spec.FAULT_STATUS, 1)
    assert (late.action, late.value) == (spec.FAULT_LATE, 2_000_000)
    assert faults.completion(9, op.WR_WRITE) is None


def test_the_same_seed_gives_the_same_losses() -> None:
    def struck(seed: int) -> list[int]:
        faults = library({"verb": "post_recv", "probability": 0.3, "seed": seed, "action": "fail"})
        return [at for at in range(1000) if faults.post(spec.VERB_POST_RECV, 0x800001) is not None]

    assert struck(7) == struck(7) != struck(8)
    assert 250 < len(struck(7)) < 350


def test_the_first_of_several_acts_and_all_count() -> None:
    faults = library(
        {"verb": "post_recv", "nth": 2, "action": "fail", "errno": "EAGAIN"},
        {"verb": "post_recv", "every": 2, "action": "fail", "errno": "EIO"},
    )
    found = [faults.post(spec.VERB_POST_RECV, 1) for _ in range(4)]
    assert [rule and rule.value for rule in found] == [None, errno.EAGAIN, None, errno.EIO]


def test_a_limit_holds_for_each_poll() -> None:
    assert library({"verb": "poll_cq", "action": "limit"}).limit == 1
    assert library({"verb": "poll_cq", "action": "limit", "entries": 5}).limit == 5
    assert library({"verb": "poll_cq", "action": "late", "delay": 1}).limit == 0


def test_records_hold_what_a_library_needs() -> None:
    rules = parse_verbs_rules(
        [
            {"verb": "post_send", "match": {"opcode": "SEND*", "qp": 17}, "nth": 3, "every": 4, "action": "fail"},
            {"verb": "create_qp", "action": "fail"},
            {"verb": "poll_cq", "probability": 0.5, "seed": 99, "times": 6, "action": "status", "status": "FATAL_ERR"},
        ]
    )
    records = VerbsFaults(rules).records()
    assert len(records) == 2 * spec.VERBS_RULE.size
    assert from_records(records) == [rules[0], rules[2]]
    assert rules[2].threshold == 1 << 63


def test_a_script_may_hold_both_kinds() -> None:
    script: list[dict[str, object]] = [
        {"verb": "create_qp", "action": "fail"},
        {"match": {"opcode": "RC_*"}, "nth": 1, "action": "drop"},
    ]
    assert len(parse_script(script).rules) == 1
    assert [rule.rule for rule in parse_verbs_rules(script)] == [1]
    assert for_packets(script)
    assert not for_packets(script[:1])
    assert for_packets([])


def test_a_verb_has_its_full_name_or_the_short_one() -> None:
    full, short = ([{"verb": name, "action": "fail", "errno": "ENOMEM"}] for name in ("ibv_create_qp", "create_qp"))
    assert parse_verbs_rules(full, 1) == parse_verbs_rules(short, 1)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"verb": "destroy_world", "action": "fail"}, "verb is 'destroy_world'; allowed: one of open_device"),
        ({"verb": "create_qp"}, "action is None; allowed: for create_qp one of fail, port-down"),
        ({"verb": "create_qp", "action": "late", "delay": 1}, "action is 'late'"),
        ({"verb": "poll_cq", "action": "fail"}, "allowed: for poll_cq one of status, late, limit"),
        ({"verb": "post_send", "action": "fatal"}, "allowed: for post_send one of fail"),
        ({"verb": "create_qp", "action": "fail", "errno": "EWRONG"}, "errno is 'EWRONG'; allowed: a name such as"),
        ({"verb": "create_qp", "action": "fail", "errno": 128}, "errno is 128"),
        ({"verb": "create_qp", "action": "fail", "status": "X"}, "unknown key 'status'; allowed: verb, match"),
        ({"verb": "create_qp", "action": "fail", "match": {"length": 1}}, "create_qp matches by nothing"),
        ({"verb": "reg_mr", "action": "fail", "match": {"length": [5, 4]}}, "match: length is 4"),
        ({"verb": "reg_mr", "action": "fail", "match": {"length": [5]}}, "a number or [low, high]"),
        ({"verb": "modify_qp", "action": "fail", "match": {"state": "RESET"}}, "one of INIT, RTR, RTS, SQD, ERR"),
        ({"verb": "poll_cq", "action": "status", "status": "BAD"}, "status is 'BAD'; allowed: one of LOC_LEN_ERR"),
        ({"verb": "poll_cq", "action": "status", "status": "SUCCESS"}, "status is 'SUCCESS'"),
        ({"verb": "poll_cq", "action": "late", "delay": "soon"}, "delay: 'soon' is not a duration"),
        ({"verb": "poll_cq", "action": "limit", "nth": 1}, "limit holds for every poll: leave nth out"),
        ({"verb": "poll_cq", "action": "limit", "entries": 0}, "entries is 0"),
        ({"verb": "post_send", "action": "fail", "match": {"opcode": "RECV"}}, "a pattern of names such as SEND"),
        ({"verb": "post_send", "action": "fail", "probability": 2}, "above 0 and at most 1"),
        ({"verb": "post_send", "action": "fail", "probability": 0.5, "nth": 1}, "goes with neither nth nor every"),
        ({"verb": "post_send", "action": "fail", "seed": 1}, "seed goes with probability alone"),
        ({"verb": "create_qp", "action": "port-down", "nonsense": 1}, "port-down: unknown value 'nonsense'"),
    ],
)
def test_what_is_wrong_is_said(rule: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=r"^fault rule 2: ") as raised:
        parse_verbs_rules([{"match": {}, "action": "drop"}, rule])
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_rules_are_bounded() -> None:
    one = {"verb": "create_qp", "action": "fail"}
    assert len(parse_verbs_rules([one] * spec.MAX_VERBS_RULES)) == spec.MAX_VERBS_RULES
    with pytest.raises(ValueError, match="at most 256 rules for verbs"):
        parse_verbs_rules([one] * (spec.MAX_VERBS_RULES + 1))


def test_rules_may_come_later() -> None:
    faults = VerbsFaults([])
    assert judge(faults, cmd.ALLOC_RES, cmd.RES_QP) == 0
    faults.add([VerbsRule(spec.VERB_CREATE_QP, spec.FAULT_FAIL, 1, value=errno.EPERM)])
    assert judge(faults, cmd.ALLOC_RES, cmd.RES_QP) == errno.EPERM
