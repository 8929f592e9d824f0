"""``rnic trace --attach``: whom it means, and the trace that comes of what the NICs saw."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from rnic.cli import trace_attach
from rnic.cli.commands import group
from rnic.cli.inspect import LookError
from rnic.cli.trace_attach import MAX_KEPT, Followed, chosen
from rnic.nic_process.inspect import TAP, devices
from rnic.runtime.tap import MAX_QPS
from rnic.testing import QpPair
from rnic.verbs import enums as e


def device(name: str, address: str, *pairs: tuple[int, int, int, str], pids: tuple[int, ...] = ()) -> dict[str, Any]:
    names = ("qpn", "pid", "remote_qpn", "remote_address")
    programs = [{"pid": pid, "command": f"prog{pid}"} for pid in pids]
    return {
        "name": name,
        "address": address,
        "programs": programs,
        "qps": [dict(zip(names, pair, strict=True)) for pair in pairs],
    }


THERE = [
    device(
        "rnic0", "10.0.0.1", (16, 500, 17, "10.0.0.2"), (18, 500, 5, "10.9.9.9"), (19, 501, 0, ""), pids=(500, 501, 19)
    ),
    device("rnic1", "10.0.0.2", (17, 600, 16, "10.0.0.1"), pids=(600,)),
]


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("500", {"rnic0": [16, 18], "rnic1": [17]}),
        ("pid:600", {"rnic0": [16], "rnic1": [17]}),
        ("17", {"rnic0": [16], "rnic1": [17]}),
        ("qp:19", {"rnic0": [19]}),
        ("pid:19", {}),
    ],
)
def test_a_program_or_queue_pair_and_its_other_ends(target: str, wanted: dict[str, list[int]]) -> None:
    assert chosen(target, THERE) == wanted


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("19", "is both a program and a queue pair: give pid:19 or qp:19"),
        ("77", r"no such program or queue pair; attached programs: 19 \(prog19\), 500"),
        ("qp:500", "no such program or queue pair"),
        ("pid:17", "no such program or queue pair"),
        ("port:1", "give a PID or a queue pair's number"),
        ("²", "give a PID"),
        ("", "give a PID"),
    ],
)
def test_what_means_nothing_is_one_line(target: str, words: str) -> None:
    with pytest.raises(LookError, match=words):
        chosen(target, THERE)


def test_no_more_queue_pairs_than_a_tap_takes() -> None:
    many = [device("rnic0", "10.0.0.1", *((qpn, 7, 0, "") for qpn in range(16, 16 + 2 * MAX_QPS)), pids=(7,))]
    assert len(chosen("7", many)["rnic0"]) == MAX_QPS


def test_no_more_events_than_a_viewer_takes() -> None:
    followed = Followed(1.0, 1)
    event = [0, 0, "step", 0, {}]
    followed.take("rnic0", {"lost": 3, "events": [event] * (MAX_KEPT + 10)})
    assert (len(followed.events), followed.lost) == (MAX_KEPT, 13)


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[QpPair]:
    """A NIC process's answers from two NICs in virtual time; whenever it is asked, some more was written and read."""
    with QpPair("RC") as pair:
        runtimes = {f"rnic{n}": side.node.ctx.runtime for n, side in enumerate((pair.a, pair.b))}

        def ask(directory: Path, name: str, what: str) -> Any:
            if what == "devices":
                return json.loads(json.dumps(devices(runtimes, [SimpleNamespace(pid=0, device="rnic0", slot=None)])))  # type: ignore[list-item]
            answer = runtimes[name].tap().answer(what.removeprefix(TAP))
            if name == "rnic1" and not answer["next"]:
                for opcode in (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ):
                    pair.a.post_send(opcode, 3000)
                    pair.a.wait()
                pair.net.run()
            return json.loads(json.dumps(answer))

        monkeypatch.setattr(trace_attach, "ask", ask)
        yield pair


def test_operations_packets_and_arrows(live: QpPair, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    shown = CliRunner().invoke(
        group, ["trace", "--attach", f"qp:{live.a.qp.qp_num}", "--seconds", "0.1", "-o", str(out)]
    )
    assert shown.exit_code == 0, shown.output
    assert "2 operations, 16 packets, 8 arrows on 2 devices; open it at ui.perfetto.dev" in shown.output
    document = json.loads(out.read_text())
    rows = document["traceEvents"]
    titles = {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}
    assert titles == {1: "rnic0 at 10.0.0.1", 2: "rnic1 at 10.0.0.2"}
    assert not {row["tid"] for row in rows if row["name"] == "thread_name"} & titles.keys(), "no lane is a main thread"
    begun = [row for row in rows if row["ph"] == "b"]
    assert [row["name"] for row in begun] == ["WRITE 3000 B (cold start)", "READ 3000 B"]
    for row in begun:
        (end,) = (each for each in rows if each["ph"] == "e" and each["id2"] == row["id2"])
        assert end["ts"] > row["ts"]
        assert set(row["id2"]) == {"local"}  # so that Perfetto shows it with its NIC
        assert "args" not in end
    arrows: dict[int, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["ph"] in "sf":
            arrows.setdefault(row["id"], {})[row["ph"]] = row
    for arrow in arrows.values():
        assert arrow["s"]["pid"] != arrow["f"]["pid"]
        assert arrow["s"]["ts"] <= arrow["f"]["ts"]
    # a viewer binds an arrow's end to the slice that is there at its time: there is one, and one alone
    slices = [row for row in rows if row["ph"] == "X" and row["cat"] == "packet"]
    for end in (end for arrow in arrows.values() for end in arrow.values()):
        (bound,) = (
            each
            for each in slices
            if (each["pid"], each["tid"]) == (end["pid"], end["tid"])
            and each["ts"] - 1e-6 <= end["ts"] < each["ts"] + each["dur"] - 1e-6
        )
        assert bound["name"] == end["name"]
    assert sum(row["name"].startswith("attached") for row in rows) == 2
    times = [row["ts"] for row in rows if row["ph"] in "Xbesf"]
    assert times == sorted(times)


def test_an_operation_that_did_not_end_is_said_to_be_unfinished() -> None:
    followed = Followed(1.0, 1)
    followed.titles["rnic0"] = "rnic0"
    fields = {"opcode": "WRITE", "bytes": 8, "index": 3, "psn": 1}
    followed.take("rnic0", {"lost": 0, "events": [[0, 100, "fetched", 16, fields], [1, 900, "doorbell", 16, {}]]})
    (end,) = (row for row in followed.document()["traceEvents"] if row["ph"] == "e")
    assert end["args"] == {"unfinished": True}
    assert end["ts"] == 0.8
    assert "1 operations" in followed.summary()
