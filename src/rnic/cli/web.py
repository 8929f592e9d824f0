"""``rnic web``: a local page about this user's NIC process, its JSON, and Prometheus metrics.

It shows what ``rnic top``, ``rnic qp`` and ``rnic trace --attach`` show. Only this user reaches it: the server binds a
loopback address, asks the kernel for the user of each connection, and requires its own Host and an unguessable token in
the path. No request can change a NIC. All stored data is bounded.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import click

from rnic.cli import metrics
from rnic.cli.inspect import LookError, counted
from rnic.cli.ladder import Ladder, Rung, as_svg
from rnic.cli.options import interval
from rnic.cli.options import qpn as shown_qpn
from rnic.cli.top import rates
from rnic.runtime.attach import ask
from rnic.runtime.directory import ProcessError, runtime_directory
from rnic.runtime.tap import MAX_ANSWER, MAX_EVENTS

HISTORY = 300
"""Samples that are kept for the graphs."""
MAX_COUNTERS = 200
"""Most counters of a device whose history is kept."""
MAX_PAIRS = 1_000
"""Most queue pairs and CQs of a device in an answer; the rest is only counted."""
MAX_PACKETS = 400
"""Most events in one answer about packets."""
MAX_RUNGS = 120
"""Most packets in the ladder."""
MAX_DEVICES = 64
MAX_CONNECTIONS = 16
MAX_NUMBER = 0xFF_FFFF
TOKEN_BYTES = 24
CONNECTION_S = 10.0
_MAX_QUERY = 512
_PAGE = "web_page.html"

Answer = tuple[str, bytes]
"""Content type and body."""


class RefusalError(Exception):
    """A refused request, with HTTP status and one line of text."""

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.status = status


class Watcher:
    """Samples the NIC process repeatedly, and keeps the last samples.

    Args:
        fetch: asks the NIC process: device and question (:func:`rnic.runtime.attach.ask`).
        interval: seconds between samples.
    """

    def __init__(self, fetch: Callable[[str, str], Any], interval: float) -> None:
        self.fetch = fetch
        self.interval = interval
        self.error = "not looked yet"
        self.devices: list[dict[str, Any]] = []
        self.views: dict[str, dict[str, Any]] = {}
        self.history: dict[str, deque[dict[str, Any]]] = {}
        self._then: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def look(self, now: float) -> None:
        """Take one sample, at a time in seconds."""
        try:
            devices = self.fetch("", "devices")[:MAX_DEVICES]
            views = {device["name"]: self.fetch(device["name"], "top") for device in devices}
        except (ProcessError, LookError) as error:
            with self._lock:
                self.error, self.devices, self.views, self._then = str(error), [], {}, {}
            return
        with self._lock:
            for name, view in views.items():
                seconds = now - self._then.get(name, now)
                before = self.views[name]["counters"] if name in self.views else view["counters"]
                moved = rates(before, view["counters"], seconds)
                view["rates"] = dict(sorted(moved.items())[:MAX_COUNTERS])
                kept = self.history.setdefault(name, deque(maxlen=HISTORY))
                kept.append({"t": round(now, 3), "rates": view["rates"], "qps": view["objects"]["qps"]})
                for pair in view["qps"]:
                    pair["backlog"] = metrics.backlog(pair)
            self.history = {name: self.history[name] for name in views}
            self.error, self.devices, self.views = "", devices, views
            self._then = dict.fromkeys(views, now)

    def run(self) -> None:
        """Take samples until :meth:`stop`; runs in a thread."""
        while True:
            self.look(time.monotonic())
            if self._stop.wait(self.interval):
                return

    def stop(self) -> None:
        """Make :meth:`run` return."""
        self._stop.set()

    def state(self) -> dict[str, Any]:
        """Return the last sample, reduced to what a page shows."""
        with self._lock:
            devices = []
            for device in self.devices:
                view = self.views[device["name"]]
                programs = {program["pid"]: program["command"] for program in device["programs"]}
                devices.append(
                    {
                        **{key: value for key, value in device.items() if key != "qps"},
                        "objects": view["objects"],
                        "counted": counted(view["objects"]),
                        "counters": view["counters"],
                        "rates": view["rates"],
                        "qps": [
                            {**pair, "command": programs.get(pair["program"], "")} for pair in view["qps"][:MAX_PAIRS]
                        ],
                        "qps_left_out": max(0, len(view["qps"]) - MAX_PAIRS),
                        "cqs": view["cqs"][:MAX_PAIRS],
                        "cqs_left_out": max(0, len(view["cqs"]) - MAX_PAIRS),
                    }
                )
            return {"error": self.error, "interval": self.interval, "devices": devices}

    def past(self, name: str) -> list[dict[str, Any]]:
        """Return the stored samples of a device, oldest first."""
        with self._lock:
            return list(self.history.get(name, ()))

    def prometheus(self) -> str:
        """Return the last sample as metrics."""
        with self._lock:
            return metrics.DOWN if self.error else metrics.exposition(self.devices, self.views)

    def device(self, name: str) -> dict[str, Any]:
        """Return a device of the last sample, the first for an empty name; :class:`RefusalError` if there is none."""
        with self._lock:
            for device in self.devices:
                if name in ("", device["name"]):
                    return device
        raise RefusalError(HTTPStatus.NOT_FOUND, self.error or f"device {name!r} is not there")


def owner_of(client: tuple[Any, ...], server: tuple[Any, ...], table: str | None = None) -> int | None:
    """Return the owner (UID) of the socket ``client``, from the kernel's table of TCP sockets; ``None`` if it is not
    listed.

    Args:
        client: address and port of the peer.
        server: our own.
        table: the text of ``/proc/net/tcp`` or ``tcp6``; by default it is read.
    """
    ends = f"{_hexadecimal(client)} {_hexadecimal(server)}"
    if table is None:
        name = "tcp6" if ":" in client[0] else "tcp"
        try:
            table = Path(f"/proc/net/{name}").read_text()
        except OSError:
            return None
    for line in table.splitlines():
        fields = line.split()
        if len(fields) > 7 and f"{fields[1]} {fields[2]}" == ends:
            return int(fields[7])
    return None


def _hexadecimal(end: tuple[Any, ...]) -> str:
    """Return an address and port as ``/proc/net/tcp`` writes them: words in the machine's byte order."""
    packed = ipaddress.ip_address(end[0].partition("%")[0]).packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{end[1]:04X}"


def ladder_svg(events: list[Any], address: str) -> str:
    """Return the packets of a tap's answer as a ladder: this device on the left, its peer on the right."""
    packets = [event for event in events if event[2] in ("sent", "received")][-MAX_RUNGS:]
    ladder = Ladder(address, "peer")
    seen: set[tuple[str, int]] = set()
    began = packets[0][1] if packets else 0
    for number, time_ns, stage, qpn, fields in packets:
        sent = stage == "sent"
        peer = fields["dst"] if sent else fields["src"]
        way = "to" if sent else "from"
        text = f"{fields['opcode']} psn {fields['psn']} QP {shown_qpn(qpn)} {way} {peer}, {fields['bytes']} B"
        key = f"{stage} {qpn} {fields['opcode']}", fields["psn"]
        mark = "again" if key in seen else ""
        seen.add(key)
        ladder.add(Rung(number, time_ns - began, sent, text, mark))
    return as_svg(ladder)


class Site:
    """Answers of the paths below the token."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self._session = f"web{secrets.randbits(32):08x}"
        self._page = resources.files("rnic.cli").joinpath(_PAGE).read_text(encoding="utf-8")
        self._routes: dict[str, Callable[[dict[str, str]], Answer]] = {
            "api/state": lambda said: _json(self.watcher.state()),
            "api/history": self._history,
            "api/qp": lambda said: self._look("qp", said),
            "api/cq": lambda said: self._look("cq", said),
            "api/packets": self._packets,
            "api/ladder.svg": self._ladder,
            "metrics": lambda said: (metrics.CONTENT_TYPE, self.watcher.prometheus().encode()),
        }

    def page(self, nonce: str) -> Answer:
        """Return the page; its script and style carry the nonce."""
        return "text/html; charset=utf-8", self._page.replace("NONCE", nonce).encode()

    def answer(self, path: str, query: str) -> Answer:
        """Return the answer of a path; :class:`RefusalError` for an unknown one, or an invalid query."""
        route = self._routes.get(path)
        if route is None:
            raise RefusalError(HTTPStatus.NOT_FOUND, f"there is no page {path[:80]!r}: give {', '.join(self._routes)}")
        if len(query) > _MAX_QUERY:
            raise RefusalError(HTTPStatus.REQUEST_URI_TOO_LONG, "the query is too long")
        try:
            return route({key: values[0] for key, values in parse_qs(query, max_num_fields=8).items()})
        except ValueError as error:
            raise RefusalError(HTTPStatus.BAD_REQUEST, str(error)) from None
        except (ProcessError, LookError) as error:
            raise RefusalError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None

    def _history(self, said: dict[str, str]) -> Answer:
        name = self.watcher.device(said.get("device", ""))["name"]
        return _json({"device": name, "interval": self.watcher.interval, "looks": self.watcher.past(name)})

    def _look(self, kind: str, said: dict[str, str]) -> Answer:
        name = self.watcher.device(said.get("device", ""))["name"]
        number = _number(said, "n")
        seen = self.watcher.fetch(name, f"{kind} {number}")
        if seen is None:
            raise RefusalError(HTTPStatus.NOT_FOUND, f"device {name} has no {kind} {number}")
        return _json(seen)

    def _tap(self, device: dict[str, Any], since: int) -> dict[str, Any]:
        answer: dict[str, Any] = self.watcher.fetch(device["name"], f"tap {self._session} {since} 1")
        return answer

    def _packets(self, said: dict[str, str]) -> Answer:
        device = self.watcher.device(said.get("device", ""))
        answer = self._tap(device, _number(said, "since", (1 << 62) - 1, 0))
        left = answer["events"][:-MAX_PACKETS]
        return _json({**answer, "events": answer["events"][-MAX_PACKETS:], "lost": answer["lost"] + len(left)})

    def _ladder(self, said: dict[str, str]) -> Answer:
        device = self.watcher.device(said.get("device", ""))
        answer = self._tap(device, 0)
        for _ in range(MAX_EVENTS // MAX_ANSWER):  # the newest events, without following a busy NIC forever
            more = self._tap(device, answer["next"])
            if more["events"]:
                answer = more
        events = [event for event in answer["events"] if "qp" not in said or event[3] == _number(said, "qp")]
        return "image/svg+xml", ladder_svg(events, device["address"]).encode()


def _number(said: dict[str, str], name: str, most: int = MAX_NUMBER, usual: int | None = None) -> int:
    text = said.get(name, "" if usual is None else str(usual))
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= most):
        raise ValueError(f"{name}={text[:40]!r} is not a number from 0 to {most}")
    return int(text)


def _json(tree: object) -> Answer:
    return "application/json", json.dumps(tree).encode()


class WebServer(ThreadingHTTPServer):
    """The page's HTTP server: a limited number of connections at once, each for a short time.

    A connection that has not shown the token gives way to a newer one, so that its owner always gets an answer.

    Args:
        address: a loopback address.
        port: TCP port, 0 for any free one.
        site: answers requests.
        token: first part of each path; by default a new one.

    Raises:
        click.ClickException: the address is not a loopback address, or the port is not available.
    """

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: str, port: int, site: Site, token: str | None = None) -> None:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            parsed = None
        if parsed is None or not parsed.is_loopback:
            raise click.ClickException(f"--addr {address} is not a loopback address: give 127.0.0.1 or ::1")
        self.address_family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
        self.site = site
        self.token = secrets.token_urlsafe(TOKEN_BYTES) if token is None else token
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}
        """Deadlines of open connections without the token, oldest first; the next attribute has those with it."""
        self._admitted: dict[socket.socket, float] = {}
        try:
            super().__init__((address, port), Handler)
        except OSError as error:
            raise click.ClickException(f"port {port} on {address}: {error.strerror}: give another --port") from None
        number = self.server_address[1]
        host = f"[{address}]" if parsed.version == 6 else address
        self.hosts = frozenset({f"{host}:{number}", f"localhost:{number}"})
        self.url = f"http://{host}:{number}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Accept a connection; if there are too many, drop the oldest without the token, or else this one."""
        with self._lock:
            full = len(self._deadlines) + len(self._admitted) >= MAX_CONNECTIONS
            refused = full and not self._deadlines
            if full and not refused:
                self._cut(next(iter(self._deadlines)))
            if not refused:
                self._deadlines[request] = time.monotonic() + CONNECTION_S
        if refused:
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def admit(self, request: socket.socket) -> None:
        """Keep a connection that has shown the token, until its deadline."""
        with self._lock:
            if request in self._deadlines:
                self._admitted[request] = self._deadlines.pop(request)

    def service_actions(self) -> None:
        """Cut off connections past their deadline, however slowly they send."""
        now = time.monotonic()
        with self._lock:
            late = [each for held in (self._deadlines, self._admitted) for each, end in held.items() if end < now]
            for each in late:
                self._cut(each)

    def _cut(self, request: socket.socket) -> None:
        """Shut a connection down; its thread then closes it. The caller holds the lock."""
        self._forget(request)
        with contextlib.suppress(OSError):  # it may be closed already
            request.shutdown(socket.SHUT_RDWR)

    def _forget(self, request: socket.socket) -> None:
        self._deadlines.pop(request, None)
        self._admitted.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection, then forget it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._forget(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away; report a bug in rnic."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection with one request, GET or HEAD only."""

    server: WebServer
    timeout = CONNECTION_S
    server_version = "rnic"
    sys_version = ""
    _headers: ClassVar[dict[str, str]] = {
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Resource-Policy": "same-origin",
    }

    def do_GET(self) -> None:
        """Answer a GET request."""
        nonce = secrets.token_urlsafe(16)
        try:
            path, query = self._admitted()
            kind, body = self.server.site.page(nonce) if not path else self.server.site.answer(path, query)
        except RefusalError as refusal:
            self._say(refusal.status, "text/plain; charset=utf-8", f"{refusal}\n".encode(), nonce)
            return
        self._say(HTTPStatus.OK, kind, body, nonce)

    do_HEAD = do_GET  # noqa: N815 - http.server's name

    def _admitted(self) -> tuple[str, str]:
        """Return the path below the token, and the query; raise :class:`RefusalError` for a client without access."""
        owner = owner_of(self.client_address, self.server.socket.getsockname())
        if owner is not None and owner != os.geteuid():
            raise RefusalError(HTTPStatus.FORBIDDEN, f"this page belongs to user {os.geteuid()}")
        if self.headers.get("Host", "") not in self.server.hosts:
            raise RefusalError(HTTPStatus.FORBIDDEN, "the request names another host")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise RefusalError(HTTPStatus.FORBIDDEN, "the request comes from another page")
        try:
            parts = urlsplit(self.path)
        except ValueError as error:
            raise RefusalError(HTTPStatus.BAD_REQUEST, f"{self.path[:80]!r} is not an address: {error}") from None
        token, slash, path = parts.path.removeprefix("/").partition("/")
        bearer = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if parts.path == "/metrics" and _equal(bearer, self.server.token):
            self.server.admit(self.request)
            return "metrics", ""
        if not slash or not _equal(token, self.server.token):
            raise RefusalError(HTTPStatus.FORBIDDEN, "the address lacks its token: take it as rnic web printed it")
        self.server.admit(self.request)
        return path, parts.query

    def _say(self, status: HTTPStatus, kind: str, body: bytes, nonce: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if kind.startswith("image/svg"):
            allowed = "style-src 'unsafe-inline'"
        else:
            own = "connect-src 'self'; img-src 'self'"
            allowed = f"{own}; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'"
        limits = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        self.send_header("Content-Security-Policy", f"default-src 'none'; {allowed}; {limits}")
        for name, value in self._headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log nothing: a page that polls each second would fill the terminal, and the lines contain the token."""


def _equal(said: str, token: str) -> bool:
    return hmac.compare_digest(said.encode(), token.encode())


@click.command()
@click.option("--addr", default="127.0.0.1", show_default=True, help="Loopback address to listen on.")
@click.option("-p", "--port", type=click.IntRange(0, 65535), default=0, help="TCP port; by default a free one.")
@interval(1.0, 0.1)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False),
    help="Write the token to this file, readable only by you, for Prometheus.",
)
@click.option("--json", "as_json", is_flag=True, help="Print address and token as JSON.")
def web(addr: str, port: int, interval: float, token_file: str | None, as_json: bool) -> None:
    """Show this user's NIC process on a local page, with JSON and Prometheus metrics; Ctrl-C ends it."""
    watcher = Watcher(lambda device, what: ask(runtime_directory(), device, what), interval)
    with WebServer(addr, port, Site(watcher)) as server:
        if token_file is not None:
            descriptor = os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            os.fchmod(descriptor, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(server.token)
        if as_json:
            print(json.dumps({"url": server.url, "token": server.token, "port": server.server_address[1]}), flush=True)
        else:
            print(f"rnic web: {server.url} (keep it to yourself; metrics/ behind it; Ctrl-C ends it)", flush=True)
        thread = threading.Thread(target=watcher.run, name="rnic web", daemon=True)
        thread.start()
        try:
            server.serve_forever(0.2)
        except KeyboardInterrupt:
            pass
        finally:
            watcher.stop()
            thread.join(5)


__all__ = ["Site", "Watcher", "WebServer", "ladder_svg", "owner_of", "web"]
