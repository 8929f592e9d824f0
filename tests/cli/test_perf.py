"""``rnic perf`` as a user runs it: two processes on loopback, the data verified."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rnic.cli import demo
from rnic.cli.demo import with_unit
from rnic.cli.peer import PeerError
from rnic.cli.perf import BW_COLUMNS, LAT_COLUMNS, TESTS, header_line, iterations_for, measure, own_peer, row_line
from rnic.cli.perf_peer import Endpoint
from rnic.cli.perf_tests import Peak
from rnic.verbs import Context


def perf(*args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run ``rnic perf`` to its end."""
    command = [sys.executable, "-m", "rnic.cli", "perf", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def rows(*args: str) -> list[dict[str, Any]]:
    """The rows of a run that must succeed."""
    done = perf(*args, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("test", TESTS)
def test_each_test_verifies_its_data_with_a_peer_of_its_own(test: str) -> None:
    (row,) = rows(test, "-s", "3000", "-n", "40")
    assert row["verified"] is True
    assert row["iterations"] == 40
    assert row["bytes"] == (8 if test.startswith("atomic") else 3000)
    columns = BW_COLUMNS if test.endswith("_bw") else LAT_COLUMNS
    assert all(key in row for key, _, _ in columns)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "service", "size"),
    [("send_bw", "UC", 5000), ("write_bw", "UC", 5000), ("send_bw", "UD", 1000), ("send_lat", "UD", 64)],
)
def test_unreliable_services_deliver_what_arrives(test: str, service: str, size: int) -> None:
    (row,) = rows(test, "-c", service, "-s", str(size), "-n", "30", "-t", "4")
    assert row["verified"] is True


@pytest.mark.slow
def test_ipv6_and_a_small_mtu() -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    (row,) = rows("write_bw", "--addr", "::1", "-m", "256", "-s", "10000", "-n", "20")
    assert row["verified"] is True


@pytest.mark.slow
def test_with_losses_the_data_arrives_all_the_same() -> None:
    (row,) = rows("write_bw", "-m", "1024", "-s", "100000", "-n", "20", "--faults", "drop=1/50")
    assert row["verified"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("write_bw",),
        ("read_bw",),
        ("send_bw",),
        ("atomic_bw",),
        ("send_bw", "-c", "UD", "-s", "256"),
        ("write_bw", "-a"),
    ],
    ids=" ".join,
)
def test_several_queue_pairs_share_a_buffer_and_each_has_its_messages(args: tuple[str, ...]) -> None:
    found = rows(*args, "-q", "3", "-t", "5", "-n", "32")
    assert len(found) == (23 if "-a" in args else 1)
    assert {(row["iterations"], row["verified"]) for row in found} == {(96, True)}


@pytest.mark.slow
def test_client_and_server_table_and_plot(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "rnic.cli", "perf", "read_bw", "--listen", "--udp-port", "0", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().split()[-1]
        picture = tmp_path / "read.png"
        client = perf("read_bw", "127.0.0.1", "--port", port, "--udp-port", "0", "-n", "20", "--plot", str(picture))
        assert client.returncode == 0, client.stderr
        heading, line = client.stdout.splitlines()
        assert heading.split()[0] == "#bytes"
        assert line.split()[:2] == ["65536", "20"]
        assert line.split()[-1] == "verified"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert server.wait(timeout=120) == 0
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("write_bw", "-m", "1500"), ("1500", "--mtu", "4096")),
        (("write_bw", "-s", "0"), ("0", "--size")),
        (("fly_bw",), ("fly_bw", "write_bw")),
        (("read_bw", "-c", "UC"), ("read", "UC", "--connection RC")),
        (("send_bw", "-c", "UD", "-s", "100000"), ("100000", "path MTU")),
        (("write_bw", "127.0.0.1", "--udp-port", "0", "--port", "1"), ("127.0.0.1", "port 1")),
        (("write_bw", "--addr", "203.0.113.77"), ("203.0.113.77",)),
        (("write_bw", "--nic-process", "--faults", "drop=1%"), ("--faults", "rnic serve")),
        (("send_lat", "-q", "2"), ("--qps", "2", "use send_bw")),
    ],
)
def test_bad_input_is_one_line_and_status_2(args: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = perf(*args)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert all(word in last for word in words), done.stderr
    assert "Traceback" not in done.stderr


def test_a_path_mtu_that_the_port_has_not_is_refused_with_one_that_it_has() -> None:
    with pytest.raises(PeerError, match=r"^mtu=3000: this port takes 256, .*: give -m (1024|4096)$"):
        Endpoint("127.0.0.1", 0, "RC", 64, 1, 3000)


def test_rows_line_up_with_their_heading() -> None:
    row: dict[str, float | int | bool | str] = {key: 1 for key, _, _ in BW_COLUMNS}
    heading, line = header_line("write_bw"), row_line("write_bw", row)
    assert line.index("verified") == heading.index("data")
    row["verified"] = False
    assert "WRONG" in row_line("write_bw", row)


def test_default_iterations_shrink_with_the_message() -> None:
    assert iterations_for("write_bw", 8) == 5_000
    assert iterations_for("write_bw", 1 << 23) == 32
    assert iterations_for("write_lat", 1 << 20) == 100


@pytest.mark.slow
def test_capture_holds_every_packet_with_a_right_icrc(tmp_path: Path) -> None:
    file = tmp_path / "traffic.pcapng"
    measured = perf("write_bw", "-s", "5000", "-n", "10", "-m", "1024", "--json", "--capture", str(file))
    assert json.loads(measured.stdout)[0]["verified"] is True
    hint = measured.stderr.split("rnic decode ")[1].split()
    command = [sys.executable, "-m", "rnic.cli", "decode", "--json", "--summary", *hint]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])["summary"]
    assert summary["icrc_wrong"] == 0
    opcodes = summary["opcodes"]
    # a probe may repeat a packet
    assert opcodes["RC_WRITE_FIRST"] >= 10
    assert opcodes["RC_WRITE_LAST"] >= 10
    assert opcodes["RC_WRITE_MIDDLE"] >= 30
    assert opcodes["RC_ACKNOWLEDGE"] >= 1


def test_the_peak_is_of_a_whole_run_in_flight() -> None:
    """A burst of completions that are read together is no rate of its own."""
    peak = Peak(4)
    for second in range(8):
        peak.posted(float(second))
    peak.completed(3, 10.0)
    assert peak.rate == 0.0, "no run has ended"
    peak.completed(1, 10.0)
    assert peak.rate == 4 / 10
    peak.completed(4, 10.001)
    assert peak.rate == pytest.approx(4 / (10.001 - 4))


@pytest.mark.slow
def test_several_clients_one_after_another() -> None:
    with own_peer("127.0.0.1", clients=2) as (host, port):
        for test in ("write_bw", "send_bw"):
            (row,) = measure(test, [64], host, port, addr="127.0.0.1", udp_port=0, iterations=20)
            assert row["verified"] is True
            assert float(row["bw_peak_MBps"]) >= float(row["bw_average_MBps"])


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.07, "MB/s", "70 KB/s"),
        (145.2, "MB/s", "145 MB/s"),
        (2_800.0, "MB/s", "2.8 GB/s"),
        (0.5, "us", "500 ns"),
        (28.4, "us", "28.4 µs"),
        (1_500.0, "us", "1.5 ms"),
    ],
)
def test_figures_of_the_demo_have_units_for_people(value: float, unit: str, text: str) -> None:
    assert with_unit(value, unit) == text


@pytest.mark.slow
def test_the_picture_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install '.[plot]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "TESTS", [("write_bw", demo.SIZES, 4), ("write_lat", demo.LATENCY_SIZES, 4)])
    monkeypatch.setattr(demo, "OPERATIONS", ("write",))
    assert demo.main([]) == 0
    shown = capsys.readouterr().out
    assert "[1 of 2, " in shown
    assert "7 of 7 rows verified" in shown
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("here", "there"), [(True, True), (True, False), (False, True)])
def test_what_comes_beyond_a_gap_is_kept_where_both_ends_can(
    monkeypatch: pytest.MonkeyPatch, here: bool, there: bool
) -> None:
    """An end that counted on the other alone would have it keep nothing, and send too little again."""
    monkeypatch.setattr(Context, "selective_repeat", property(lambda _: here))
    end = Endpoint("127.0.0.1", 0, "RC", 8, 1, 0)
    try:
        end.connect(end.describe() | {"keeps": there})
        assert end.qp.query(0)[0].selective_repeat is (here and there)
    finally:
        end.close()
