"""``rnic web``: each path's answer, who is refused, and what is bounded."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from rnic.cli import metrics
from rnic.cli import web as web_module
from rnic.cli.commands import group
from rnic.cli.web import (
    HISTORY,
    MAX_CONNECTIONS,
    MAX_COUNTERS,
    MAX_PAIRS,
    Site,
    Watcher,
    WebServer,
    ladder_svg,
    owner_of,
)
from rnic.device.inspect import look
from rnic.nic_process.inspect import TAP, devices
from rnic.runtime.directory import ProcessError
from rnic.runtime.tap import MAX_ANSWER
from rnic.testing import QpPair
from rnic.verbs import enums as e

TOKEN = "right"


class Nics:
    """A NIC process's answers, from the two NICs of a pair; it may be gone."""

    def __init__(self, pair: QpPair) -> None:
        self.pair = pair
        self.runtimes = {f"rnic{n}": side.node.ctx.runtime for n, side in enumerate((pair.a, pair.b))}
        self.gone = False

    def fetch(self, name: str, what: str) -> Any:
        if self.gone:
            raise ProcessError("no NIC process runs in /x: start one with rnic serve")
        if what == "devices":
            seen: Any = devices(self.runtimes, [])
        elif what.startswith(TAP):
            seen = self.runtimes[name].tap().answer(what.removeprefix(TAP))
        else:
            seen = look(self.runtimes[name].nic, what)
        return json.loads(json.dumps(seen))

    def write(self, size: int = 3000) -> None:
        self.pair.a.post_send(e.IBV_WR_RDMA_WRITE, size)
        self.pair.a.wait()
        self.pair.net.run()


@pytest.fixture
def nics() -> Iterator[Nics]:
    with QpPair("RC") as pair:
        yield Nics(pair)


@pytest.fixture
def server(nics: Nics) -> Iterator[WebServer]:
    watcher = Watcher(nics.fetch, 1.0)
    watcher.look(10.0)
    with WebServer("127.0.0.1", 0, Site(watcher), TOKEN) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server: WebServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def tree(server: WebServer, path: str) -> Any:
    status, body, headers = get(server, f"/{TOKEN}/api/{path}")
    assert (status, headers["content-type"]) == (200, "application/json"), body
    return json.loads(body)


def test_state_and_history(server: WebServer, nics: Nics) -> None:
    nics.write()
    server.site.watcher.look(12.0)
    state = tree(server, "state")
    assert (state["error"], [device["name"] for device in state["devices"]]) == ("", ["rnic0", "rnic1"])
    (pair,) = state["devices"][0]["qps"]
    assert (pair["state"], pair["next_send_psn"], pair["backlog"], pair["peer"]) == ("RTS", 3, 0, "10.0.0.2")
    assert state["devices"][0]["cqs"][0]["entries"] > 0
    looks = tree(server, "history?device=rnic0")["looks"]
    assert [entry["t"] for entry in looks] == [10.0, 12.0]
    assert looks[1]["rates"]["tx_packets"] == 1.5
    assert tree(server, "history?device=rnic1")["looks"][1]["rates"]["rx_packets"] == 1.5


def test_one_queue_pair_and_one_cq(server: WebServer, nics: Nics) -> None:
    qpn = nics.pair.a.qp.qp_num
    seen = tree(server, f"qp?device=rnic0&n={qpn}")
    assert seen["qpn"] == qpn
    assert {"field", "host", "cache", "differs"} == set(seen["fields"][0])
    assert tree(server, f"cq?n={seen['send_cq']}")["cqn"] == seen["send_cq"]


def test_packets_and_their_ladder(server: WebServer, nics: Nics) -> None:
    assert tree(server, "packets?device=rnic0")["events"] == []
    nics.write()
    answer = tree(server, "packets?device=rnic0&since=0")
    assert next(event[4]["opcode"] for event in answer["events"] if event[2] == "sent") == "RC_WRITE_FIRST"
    assert tree(server, f"packets?device=rnic0&since={answer['next']}")["events"] == []
    for query in ("", f"&qp={nics.pair.a.qp.qp_num}"):
        status, body, headers = get(server, f"/{TOKEN}/api/ladder.svg?device=rnic0{query}")
        assert (status, headers["content-type"]) == (200, "image/svg+xml")
        assert b"RC_WRITE_LAST psn 2" in body
        assert b"RC_ACKNOWLEDGE" in body
    _, body, _ = get(server, f"/{TOKEN}/api/ladder.svg?device=rnic0&qp=4000")
    assert b"RC_WRITE" not in body


def test_metrics_are_prometheus_text(server: WebServer, nics: Nics) -> None:
    nics.write()
    server.site.watcher.look(12.0)
    status, body, headers = get(server, f"/{TOKEN}/metrics")
    assert (status, headers["content-type"]) == (200, metrics.CONTENT_TYPE)
    text = body.decode()
    assert 'rnic_tx_packets_total{device="rnic0"} 3' in text
    assert f'rnic_qp_next_send_psn{{device="rnic0",qpn="{nics.pair.a.qp.qp_num}"}} 3' in text
    assert 'rnic_qp_states{device="rnic1",state="RTS"} 1' in text
    assert 'rnic_port_active{device="rnic0"} 1' in text
    sample = re.compile(r'[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? -?[0-9.]+')
    family = ""
    seen = set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
            assert family not in seen, "a metric's series stand together"
            seen.add(family)
        elif not line.startswith(f"# TYPE {family} "):
            assert sample.fullmatch(line), line
            assert line.startswith(family)
    # Prometheus itself keeps its token in a header
    assert get(server, "/metrics", Authorization=f"Bearer {TOKEN}")[1] == body
    assert get(server, "/metrics", Authorization="Bearer wrong")[0] == 403
    assert get(server, "/metrics")[0] == 403


def test_labels_are_quoted() -> None:
    assert metrics.label('a"b\\c\nd') == r'"a\"b\\c\nd"'


def test_a_nic_process_that_is_gone_and_comes_back(server: WebServer, nics: Nics) -> None:
    nics.gone = True
    server.site.watcher.look(11.0)
    assert "start one with rnic serve" in tree(server, "state")["error"]
    assert get(server, f"/{TOKEN}/metrics")[1] == metrics.DOWN.encode()
    status, body, _ = get(server, f"/{TOKEN}/api/history")
    assert (status, b"rnic serve" in body) == (404, True)
    nics.gone = False
    server.site.watcher.look(12.0)
    assert tree(server, "state")["error"] == ""
    nics.gone = True  # between two looks
    assert get(server, f"/{TOKEN}/api/qp?n=16")[0] == 503


def test_the_page_holds_nothing_from_outside(server: WebServer) -> None:
    status, body, headers = get(server, f"/{TOKEN}/")
    assert status == 200
    page = body.decode()
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|@import|url\(", page.replace("http://www.w3.org/2000/svg", ""))
    policy = headers["content-security-policy"]
    (nonce,) = set(re.findall(r'nonce="([^"]+)"', page))
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'nonce-{nonce}'" in policy
    assert "unsafe" not in policy
    assert (headers["referrer-policy"], headers["cache-control"]) == ("no-referrer", "no-store")
    assert "innerHTML" not in page, "what programs call themselves is text"
    again = get(server, f"/{TOKEN}/")[1].decode()
    assert nonce not in again


@pytest.mark.parametrize(
    ("path", "headers", "words"),
    [
        ("/", {}, "lacks its token"),
        ("/api/state", {}, "lacks its token"),
        ("/wrong/api/state", {}, "lacks its token"),
        (f"/{TOKEN}", {}, "lacks its token"),
        (f"/{TOKEN}x/", {}, "lacks its token"),
        (f"/{TOKEN}/", {"Host": "evil.example"}, "another host"),
        (f"/{TOKEN}/", {"Host": "127.0.0.1"}, "another host"),
        (f"/{TOKEN}/api/state", {"Host": "rnic.example:80"}, "another host"),
        (f"/{TOKEN}/api/state", {"Sec_Fetch_Site": "cross-site"}, "another page"),
    ],
)
def test_who_is_refused(server: WebServer, path: str, headers: dict[str, str], words: str) -> None:
    status, body, _ = get(server, path, **headers)
    assert status == 403
    assert words in body.decode()


def test_another_user_is_refused(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get(server, f"/{TOKEN}/")[0] == 200
    monkeypatch.setattr(web_module, "owner_of", lambda *ends: os.geteuid() + 1)
    status, body, _ = get(server, f"/{TOKEN}/")
    assert (status, b"this page belongs to user" in body) == (403, True)
    monkeypatch.setattr(web_module, "owner_of", lambda *ends: None)
    assert get(server, f"/{TOKEN}/")[0] == 200, "where the kernel does not say, the token decides"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_kernel_says_whose_connection_it_is(address: str) -> None:
    if not Path("/proc/net/tcp").exists():
        pytest.skip("this system has no /proc/net/tcp")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        try:
            listening.bind((address, 0))
        except OSError as error:
            pytest.skip(f"no {address} here: {error.strerror}")
        listening.listen()
        with socket.create_connection(listening.getsockname()[:2]) as client, listening.accept()[0]:
            assert owner_of(client.getsockname(), listening.getsockname()) == os.geteuid()
    table = "sl\n 0: 0100007F:1000 0100007F:2000 01 00000000:00000000 00:00000000 00000000  1234 0 1\n"
    assert owner_of(("127.0.0.1", 0x1000), ("127.0.0.1", 0x2000), table) == 1234
    assert owner_of(("127.0.0.1", 0x2000), ("127.0.0.1", 0x1000), table) is None


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("api/nothing", 404),
        ("../etc/passwd", 404),
        ("api/state/", 404),
        ("api/qp", 400),
        ("api/qp?n=-1", 400),
        ("api/qp?n=16777216", 400),
        ("api/qp?n=%C2%B2", 400),
        ("api/qp?n=999", 404),
        ("api/cq?n=999", 404),
        ("api/history?device=rnic9", 404),
        ("api/packets?since=9999999999999999999", 400),
        ("api/state?" + "a=1&" * 9, 400),
        ("api/state?x=" + "y" * 600, 414),
    ],
)
def test_paths_and_queries_that_mean_nothing(server: WebServer, path: str, status: int) -> None:
    assert get(server, f"/{TOKEN}/{path}")[0] == status


def test_nothing_changes_a_nic(server: WebServer) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert get(server, f"/{TOKEN}/api/state", method)[0] == 501
    status, body, headers = get(server, f"/{TOKEN}/api/state", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


def test_connections_without_the_token_do_not_lock_its_owner_out(server: WebServer) -> None:
    port = server.server_address[1]
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 * MAX_CONNECTIONS)]
    try:
        for each in held:
            each.sendall(b"G")  # half a request, for as long as it likes
        for _ in range(3):
            assert get(server, f"/{TOKEN}/api/state")[0] == 200
        for each in held[:MAX_CONNECTIONS]:
            each.settimeout(10)
            assert each.recv(1) == b"", "the oldest gave way"
    finally:
        for each in held:
            each.close()


def test_a_connection_that_sends_slowly_is_cut_off(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_module, "CONNECTION_S", 0.05)
    with socket.create_connection(server.server_address[:2]) as slow:  # type: ignore[arg-type] # an IPv4 address
        slow.settimeout(10)
        slow.sendall(b"GET")
        assert slow.recv(100) == b""


@pytest.mark.parametrize("target", ["http://[::1/x"])
def test_a_malformed_address_is_a_bad_request(server: WebServer, target: str) -> None:
    status, body, _ = get(server, target, Host=f"127.0.0.1:{server.server_address[1]}")
    assert status == 400
    assert b"is not an address" in body


@pytest.mark.slow
def test_what_is_kept_and_listed_is_bounded(nics: Nics) -> None:
    many = MAX_PAIRS + 7
    canned = {what: nics.fetch("rnic0", what) for what in ("devices", "top")}
    moving = {f"c{n}": 0 for n in range(2 * MAX_COUNTERS)}

    def fetch(name: str, what: str) -> Any:
        for counter in moving:
            moving[counter] += 1
        return canned[what] if what == "devices" else {**canned["top"], "counters": dict(moving)}

    watcher = Watcher(fetch, 1.0)
    for second in range(HISTORY + 5):
        watcher.look(float(second))
    assert len(watcher.past("rnic0")) == HISTORY
    assert {len(look["rates"]) for look in watcher.past("rnic0")} == {MAX_COUNTERS}
    watcher.views["rnic0"]["qps"] = canned["top"]["qps"] * many
    state = watcher.state()["devices"][0]
    assert (len(state["qps"]), state["qps_left_out"]) == (MAX_PAIRS, 7)
    text = metrics.exposition(watcher.devices, {"rnic0": watcher.views["rnic0"]})
    assert text.count("rnic_qp_sq_backlog{") == metrics.MAX_QPS
    fields = {"opcode": "RC_WRITE_ONLY", "psn": 1, "bytes": 8, "dqpn": 1, "src": "a", "dst": "<b>"}
    drawn = ladder_svg([[n, n, "sent", 16, {**fields, "psn": n // 2}] for n in range(MAX_ANSWER)], "a")
    assert drawn.count("<line") == web_module.MAX_RUNGS
    assert "(again)" in drawn
    assert "<b>" not in drawn


@pytest.mark.parametrize("address", ["0.0.0.0", "192.0.2.1", "::", "localhost", "x"])
def test_no_address_but_loopback(nics: Nics, address: str) -> None:
    with pytest.raises(click.ClickException, match=r"is not a loopback address: give 127\.0\.0\.1 or ::1"):
        WebServer(address, 0, Site(Watcher(nics.fetch, 1.0)))


def test_a_port_that_is_taken_is_one_line(server: WebServer) -> None:
    with pytest.raises(
        click.ClickException, match=r"port \d+ on 127.0.0.1: Address already in use: give another --port"
    ):
        WebServer("127.0.0.1", server.server_address[1], server.site)


def test_the_command_prints_its_address_and_writes_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nics: Nics
) -> None:
    def interrupted(self: WebServer, poll: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WebServer, "serve_forever", interrupted)
    monkeypatch.setattr(web_module, "ask", lambda directory, name, what: nics.fetch(name, what))
    path = tmp_path / "token"
    shown = CliRunner().invoke(group, ["web", "--token-file", str(path), "--json"])
    assert shown.exit_code == 0, shown.output
    said = json.loads(shown.output)
    assert path.read_text() == said["token"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert said["url"] == f"http://127.0.0.1:{said['port']}/{said['token']}/"
    assert len(said["token"]) >= 32
    plain = CliRunner().invoke(group, ["web"])
    assert plain.output.startswith("rnic web: http://127.0.0.1:")


NODE = """
const made = name => { const it = { name, children: [], className: "", hidden: false, value: "", textContent: "",
  dataset: {}, setAttribute() {}, appendChild(child) { it.children.push(child); return child; },
  replaceChildren(...all) { it.children = all; } }; return it; };
const places = {};
globalThis.document = { getElementById: id => places[id] ??= made(id), createElement: made,
  createElementNS: (space, name) => made(name) };
const answers = JSON.parse(require("fs").readFileSync(process.argv[2], "utf8"));
globalThis.fetch = async path => ({ ok: true, json: async () => answers[path.split("?")[0]] });
globalThis.setTimeout = () => {};
const text = it => [it.textContent, ...it.children.map(text)].join("|");
"""
NODE_END = """
(async () => {
  places.watch.onclick();
  chosen.qp = answers["api/qp"].qpn;
  await refresh();
  console.log(JSON.stringify(Object.fromEntries(Object.entries(places).map(([id, it]) => [id, text(it)]))));
})();
"""


@pytest.mark.slow
def test_the_script_of_the_page_shows_the_answers(server: WebServer, nics: Nics, tmp_path: Path) -> None:
    """Run in Node with a document that only remembers; how it looks is for a browser."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on PATH to run the page's script in")
    tree(server, "packets?device=rnic0")
    nics.write()
    server.site.watcher.look(12.0)
    answers = {
        f"api/{name.partition('?')[0]}": tree(server, name) for name in ("state", "history", "qp?n=16", "packets")
    }
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    page = get(server, f"/{TOKEN}/")[1].decode()
    script = page.partition('">\n"use strict";')[2].partition("</script>")[0]
    (tmp_path / "page.cjs").write_text(NODE + script.replace("\nloop();\n", "\n") + NODE_END)
    command = [node, str(tmp_path / "page.cjs"), str(tmp_path / "answers.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["error"] == ""
    assert "10.0.0.2 QP 16" in shown["qps"]
    assert "tx_packets" in shown["counters"]
    assert "RC_WRITE_FIRST" in shown["packets"]
    assert shown["pair"].startswith("Queue pair 16: RTS")
    assert "next_send_psn" in shown["memory"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
    import browser as module

    if module.find() is None:
        pytest.skip(module.MISSING)
    opened: Any
    with module.Browser() as opened:
        opened.cut_off = module.CUT_OFF
        opened.scrolls = module.SCROLLS
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 390])
def test_a_browser_shows_all_of_it(server: WebServer, nics: Nics, browser: Any, width: int) -> None:
    """As a user would: look, open a queue pair, watch packets; nothing is cut off, no script fails."""
    nics.write()
    server.site.watcher.look(12.0)
    browser.resize(width)
    browser.open(f"http://127.0.0.1:{server.server_address[1]}/{TOKEN}/")
    browser.wait("document.querySelectorAll('#qps tr').length > 1")
    assert browser.ask("document.querySelector('#qps .pick').textContent").startswith(str(nics.pair.a.qp.qp_num))
    assert browser.ask("document.querySelectorAll('#counters svg.graph').length") > 0
    browser.ask("document.querySelector('#qps .pick').click()")
    browser.wait("!document.getElementById('detail').hidden && document.querySelectorAll('#memory tr').length > 20")
    assert "RTS" in browser.ask("document.getElementById('pair').textContent")
    browser.ask("document.getElementById('watch').click()")
    browser.wait("document.getElementById('ladder').naturalWidth > 0")
    nics.write()
    browser.wait("document.querySelectorAll('#packets tr').length > 3")
    assert "RC_WRITE_FIRST" in browser.ask("document.getElementById('packets').textContent")
    assert browser.ask(browser.cut_off) + browser.problems() == []
    browser.ask("document.getElementById('ladder').remove()")  # which a phone scrolls, so that it can be read
    assert browser.ask(browser.scrolls) == []
