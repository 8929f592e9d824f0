"""``rnic regs``, ``qp``, ``cq``, ``counters``, ``top`` and ``trace``."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rnic.cli.commands import group
from rnic.cli.inspect import counted
from rnic.cli.latency import KEPT, Latencies
from rnic.cli.top import MOST_PAIRS, View, rates, sparkline
from rnic.cli.trace import LANES, record
from rnic.device import Nic
from rnic.device.inspect import look
from rnic.nic_process.process import NicProcess
from rnic.runtime.attach import ask
from rnic.runtime.directory import ProcessError
from rnic.spec import attach
from rnic.spec.registers import GLOBAL_REGISTERS
from rnic.testing.pair import QpPair
from rnic.verbs import enums as e
from rnic.verbs.devices import runtime_on


def tree_of(nic: Nic, what: str) -> dict[str, Any]:
    tree = look(nic, what)
    assert tree is not None
    return tree


@pytest.fixture
def pair() -> Iterator[QpPair]:
    with QpPair("RC") as pair:
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 100)
        pair.a.wait()
        yield pair


def test_views_are_plain_json(pair: QpPair) -> None:
    nic = pair.a.node.nic
    qpn, cqn = pair.a.qp.qp_num, nic.qps[pair.a.qp.qp_num].cqs[0].number
    for what in ("regs", "counters", "top", f"qp {qpn}", f"cq {cqn}"):
        tree = look(nic, what)
        assert tree is not None
        assert json.loads(json.dumps(tree)) == tree
    for what in ("", "qp", "qp 999", "cq 999", "qp x", "qp -1", "cq ²", "nothing", "eq 1"):
        assert look(nic, what) is None


def test_registers_show_every_block(pair: QpPair) -> None:
    tree = tree_of(pair.a.node.nic, "regs")
    assert [row["name"] for row in tree["global"]] == [register.name for register in GLOBAL_REGISTERS]
    assert tree["global"][0]["fields"]["ENABLE"] == 1
    kinds = [part["kind"] for part in tree["blocks"]]
    assert {"QP", "CQ", "EQ"} <= set(kinds)
    block = next(part for part in tree["blocks"] if part["kind"] == "QP")
    assert {row["name"]: row["value"] for row in block["registers"]}["SQ_TAIL"] == 1


def test_queue_pair_shows_ring_and_context(pair: QpPair) -> None:
    qp = tree_of(pair.a.node.nic, f"qp {pair.a.qp.qp_num}")
    assert qp["state"] == "RTS"
    assert qp["send_ring"]["head"] == qp["send_ring"]["tail"] == qp["send_ring"]["fetched"] == 1
    assert qp["context"]["remote_qpn"] == pair.b.qp.qp_num
    behind = {row["field"]: (row["host"], row["cache"]) for row in qp["fields"] if row["differs"]}
    assert behind["next_send_psn"] == (0, 1)
    pair.a.node.nic.flush_contexts()
    assert not any(row["differs"] for row in tree_of(pair.a.node.nic, f"qp {pair.a.qp.qp_num}")["fields"])
    assert tree_of(pair.a.node.nic, f"cq {qp['send_cq']}")["ring"]["tail"] == 1


def test_fields_of_host_memory_and_cache(pair: QpPair, monkeypatch: pytest.MonkeyPatch) -> None:
    nic, qpn = pair.a.node.nic, pair.a.qp.qp_num
    nic.flush_contexts()
    place = nic.contexts.ctxmdata.tables["qp"].locate(qpn)
    assert place is not None
    assert place.port.write(place.addr + 0x98, (0xABC).to_bytes(4, "big"))
    rows = {row["field"]: row for row in tree_of(nic, f"qp {qpn}")["fields"]}
    assert rows["qkey"] == {"field": "qkey", "host": 0xABC, "cache": 0, "differs": True}
    assert [name for name, row in rows.items() if row["differs"]] == ["qkey"]
    cqn = nic.qps[qpn].cqs[0].number
    rows = {row["field"]: row for row in tree_of(nic, f"cq {cqn}")["fields"]}
    assert rows["logsize"]["host"] == rows["logsize"]["cache"] > 0
    assert (rows["cqn"]["cache"], rows["cqn"]["differs"]) == (cqn, False)
    # as people see it
    monkeypatch.setattr("rnic.cli.inspect.fetch", lambda device, what: look(nic, what))
    shown = CliRunner().invoke(group, ["qp", str(qpn)]).output.splitlines()
    assert [line.split() for line in shown if "*" in line[1:]][-1] == ["qkey", "0xabc", "0", "*"]
    assert any(
        line.split()[:2] == ["ci_db", "0"] for line in CliRunner().invoke(group, ["cq", str(cqn)]).output.splitlines()
    )


def test_looking_changes_nothing(pair: QpPair) -> None:
    nic = pair.a.node.nic
    first = [look(nic, what) for what in ("regs", "top", f"qp {pair.a.qp.qp_num}")]
    assert [look(nic, what) for what in ("regs", "top", f"qp {pair.a.qp.qp_num}")] == first


def test_rates() -> None:
    assert rates({"a": 1, "b": 5}, {"a": 11, "b": 5, "c": 4}, 2.0) == {"a": 5.0, "c": 2.0}
    assert rates({}, {"a": 1}, 0.0) == {}


@pytest.mark.slow
def test_on_a_running_process(pair: QpPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    with pytest.raises(ProcessError, match="no NIC process runs"):
        ask(tmp_path, "", "regs")
    process = NicProcess(tmp_path, lambda address, port, options: runtime_on(pair.net.outsider(b"\x0a\0\0\x09")))
    process.devices.add("10.0.0.9", None, {})
    thread = threading.Thread(target=process.serve, args=(0.1,))
    keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # it ends when this one, too, is gone
    keeper.connect(str(tmp_path / attach.SOCKET_NAME))
    thread.start()
    try:
        run = CliRunner().invoke
        for command in (["regs"], ["counters"], ["top", "--latency", "--once", "--interval", "0.05"]):
            shown = run(group, [*command, "--json"])
            assert shown.exit_code == 0, shown.output
            assert isinstance(json.loads(shown.output), dict)
            assert run(group, command).exit_code == 0
        assert "CONTROL" in run(group, ["regs"]).output
        with pytest.raises(ProcessError, match="device 'x' is not there"):
            ask(tmp_path, "x", "regs")
        assert "the NIC has none" in str(run(group, ["qp", "16"]).exception)
        assert "the NIC has none" in str(run(group, ["cq", "16"]).exception)
    finally:
        keeper.close()
        thread.join(10)
        process.close()
    assert not thread.is_alive()


@pytest.mark.parametrize("operation", ["write", "send", "read", "fetch-add"])
def test_trace_has_every_stage_in_its_lane(operation: str) -> None:
    document = record(operation, 8 if operation == "fetch-add" else 3000)
    rows = document["traceEvents"]
    lanes = {(row["pid"], row["tid"]): row["args"]["name"] for row in rows if row["name"] == "thread_name"}
    assert list(lanes.values()) == list(LANES) * 2
    assert len({tid for _, tid in lanes}) == 12
    assert not any(row["pid"] == 0 or row.get("tid") == 0 for row in rows), "0 is the idle process"
    steps = [(row["pid"] - 1, lanes[row["pid"], row["tid"]], row["name"]) for row in rows if row["ph"] == "X"]
    wanted = [
        (0, "software", "descriptor written, doorbell stored"),
        (0, "register interface", "doorbell taken"),
        (0, "transmit path", "descriptor fetched"),
        (0, "receive path", "CQ entry written"),
        (0, "software", "completion polled"),
    ]
    assert [step for step in steps if step in wanted] == wanted
    arrived = [name for pid, lane, name in steps if (pid, lane) == (1, "receive path") and "received" in name]
    answered = [name for pid, lane, name in steps if (pid, lane) == (1, "wire")]
    assert len(arrived) == {"write": 3, "send": 3, "read": 1, "fetch-add": 1}[operation]
    assert answered
    asked = [{name for pid, lane, name in steps if (pid, lane) == (side, "context manager")} for side in range(2)]
    requester = {"RD_QP_SST", "RD_QP_STATE", "RD_QP_NPST", "WR_QP_NPST", "RD_ENCAP", "RD_CQ_CST", "WR_QP_UAPST"}
    assert asked[0] == requester
    assert asked[1] - {"RD_QP_SST"} == {"RD_QP_RST", "WR_QP_EPST", "RD_ENCAP"}
    (doorbell,) = (row["args"] for row in rows if row["name"] == "RD_QP_SST" and row["pid"] == 1)
    assert (doorbell["source"], doorbell["pmtu_msgmax"] >> 5) == ("doorbell_processing", 3)
    times = [row["ts"] for row in rows if row["ph"] == "X"]
    assert times == sorted(times)


def test_trace_command_writes_a_file(tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    shown = CliRunner().invoke(group, ["trace", "--out", str(out), "--size", "8"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(out.read_text())["displayTimeUnit"] == "ns"


def test_sparklines_have_the_highest_value_as_the_full_block() -> None:
    assert sparkline([0, 1, 2, 4]) == "▁▃▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def looked(head: int, tail: int, **counters: int) -> dict[str, object]:
    pairs = [
        {
            "qpn": 17,
            "state": "RTS",
            "program": 4242,
            "peer": "192.0.2.1",
            "remote_qpn": 3,
            "ssn": head,
            "rtt_ns": 12_345,
            "next_send_psn": 2 * head,
            "expected_psn": 5,
            "sent_bytes": 1_000_000 * head,
            "came_bytes": 500_000 * head,
            "sq_head": head,
            "sq_tail": tail,
            "sq_entries": 64,
        },
        {
            "qpn": 18,
            "state": "RTS",
            "program": 0,
            "peer": "",
            "remote_qpn": 4,
            "ssn": 0,
            "rtt_ns": 0,
            "next_send_psn": 0,
            "expected_psn": 0,
            "sent_bytes": 0,
            "came_bytes": 0,
            "sq_head": 0,
            "sq_tail": 9,
            "sq_entries": 64,
        },
    ]
    return {"name": "rnic0", "objects": {"contexts": 1, "qps": 2}, "qps": pairs, "counters": counters}


DEVICES = [
    {
        "name": "rnic0",
        "address": "127.0.0.1",
        "udp_port": 4791,
        "port_state": 4,
        "programs": [{"pid": 4242, "command": "ib_write_bw"}],
    },
    {"name": "rnic1", "address": "127.0.0.2", "udp_port": 4791, "port_state": 4, "programs": []},
]


def shown(view: View) -> list[list[str]]:
    """What a terminal shows, in words."""
    from rich.console import Console

    console = Console(width=160, record=True, file=io.StringIO())
    console.print(view)
    return [line.split() for line in console.export_text().splitlines()]


def test_the_live_view_says_who_talks_to_whom_how_fast() -> None:
    view = View()
    view.take(looked(0, 0), 0.0, DEVICES)
    view.take(looked(20, 22), 2.0, DEVICES)
    lines = shown(view)
    assert " ".join(lines[0]) == "rnic0 at 127.0.0.1 port 4791 1 context, 2 QPs"
    assert " ".join(lines[1]) == "beside it (-d): rnic1 at 127.0.0.2"
    first, second = (next(line for line in lines if line[:1] == [number]) for number in ("0x000011", "0x000012"))
    assert first[:9] == ["0x000011", "RTS", "ib_write_bw", "(4242)", "192.0.2.1", "QP", "0x000003", "10", "20"]
    assert first[9:] == ["15.00", "▁▁█", "2", "64", "12"]
    assert second == ["0x000012", "RTS", "-", "-", "0", "0", "0.00", "▁▁▁", "9", "64", "-"]
    view.tree["qps"][0]["latency_us"] = {"p50": 20.2, "p90": 31.0, "p99": 1234.5}
    lines = shown(view)
    assert next(line for line in lines if line[:1] == ["0x000011"])[-4:] == ["12", "20", "31", "1,234"]
    assert next(line for line in lines if line[:1] == ["0x000012"])[-4:] == ["-"] * 4
    view.take(looked(20, 22), 2.0, [{**DEVICES[0], "port_state": 1}])
    assert "port down" in " ".join(shown(view)[0])


def test_more_queue_pairs_than_a_terminal_has_lines() -> None:
    tree = looked(0, 0)
    first = tree["qps"][0]  # type: ignore[index]
    tree["qps"] = [{**first, "qpn": number} for number in range(1000, 1000 + MOST_PAIRS + 1500)]
    view = View()
    view.take(tree, 0.0)
    assert ["and", "1,500", "more"] in shown(view)


def test_a_key_shows_latencies() -> None:
    view = View()
    assert view.key("l")
    assert view.latency
    assert view.key("l")
    assert not view.latency


def test_percentiles_are_of_what_has_ended() -> None:
    asked: list[str] = []

    def events(*latencies: int) -> dict[str, object]:
        rows = []
        for number, latency in enumerate(latencies):
            rows.append([0, 1_000 * number, "fetched", 17, {"index": number, "psn": number, "opcode": "WRITE"}])
            rows.append([0, 0, "sent", 17, {}])
            rows.append([0, 1_000 * number + latency, "completed", 17, {"index": number, "psn": number}])
        return {"next": 7, "lost": 0, "events": rows}

    answers = [events(*range(1_000, 101_000, 1_000)), events(1), events()]

    def fetch(what: str) -> dict[str, object]:
        asked.append(what)
        return answers.pop(0)

    latencies = Latencies(fetch)
    assert latencies.of(17) == {}
    latencies.look(0.0)
    assert latencies.of(17) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert latencies.of(18) == {}
    latencies.look(250_000.0)
    latencies.look(1e9)
    assert [words.split()[2:] for words in asked] == [["0", "1"], ["7", "250"], ["7", "1000"]]


def test_what_is_kept_of_latencies_is_bounded() -> None:
    rows = [[0, 0, "fetched", 17, {"index": n, "psn": n}] for n in range(3)]
    ends = [[0, 5, "completed", 17, {"index": n, "psn": n}] for n in range(3)]
    answers = [{"next": 0, "lost": 9, "events": rows}, {"next": 0, "lost": 0, "events": ends}]
    latencies = Latencies(lambda what: answers.pop(0))
    latencies.look(0.0)
    latencies.look(0.0)
    assert latencies.of(17) == {}, "what ended among the lost has no beginning"
    many = KEPT + 10
    both = [[0, 0, "fetched", 17, {"index": 0, "psn": 0}], [0, 5, "completed", 17, {"index": 0, "psn": 0}]]
    latencies = Latencies(lambda what: {"next": 0, "lost": 0, "events": both * many})
    latencies.look(0.0)
    assert len(latencies._kept[17]) == KEPT


def test_latencies_of_a_running_nic(pair: QpPair) -> None:
    """Two operations, taken from its tap; times are those of the virtual clock."""
    tap = pair.a.node.ctx.runtime.tap()
    latencies = Latencies(lambda what: tap.answer(what.removeprefix("tap ")))
    latencies.look(0.0)
    for _ in range(2):
        began = pair.clock()
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 3000)
        pair.a.wait()
        took = (pair.clock() - began) / 1000
        latencies.look(0.0)
        assert 0 < latencies.of(pair.a.qp.qp_num)["p50"] <= took


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ({"contexts": 1, "qps": 1, "srqs": 1, "keys": 1}, "1 context, 1 QP, 1 SRQ, 1 key"),
        ({"contexts": 2, "cqs": 0, "eqs": 3}, "2 contexts, 0 CQs, 3 EQs"),
    ],
)
def test_objects_are_counted_in_words(objects: dict[str, int], words: str) -> None:
    assert counted(objects) == words


def test_the_live_view_counts_between_looks_and_obeys_keys() -> None:
    from rich.console import Console

    view = View()
    view.take(looked(0, 0, tx_packets=5), 0.0)
    view.take(looked(20, 22, tx_packets=25, rnr_naks_sent=4), 2.0)
    assert view.tree["rates"] == {"tx_packets": 10.0, "rnr_naks_sent": 2.0}
    assert [(pair["rate"], pair["backlog"]) for pair in view.tree["qps"]] == [(20.0, 2), (0.0, 9)]
    assert [pair["qpn"] for pair in view.pairs()] == [17, 18]
    assert view.key("b")
    assert [pair["qpn"] for pair in view.pairs()] == [18, 17]
    for key in "11":
        assert view.key(key)
    view.detail = {"qpn": 17, "send_ring": {"head": 20}}
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(view)
    text = console.export_text()
    assert "queue pair 0x000011" in text
    assert "send_ring.head" in text
    assert "10.0" in text
    assert view.key("\r")
    assert view.open_qp == ""
    assert not view.key("x")
