"""The page to drop a capture on, in a headless browser: the same report as on the command line, and nothing is sent."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from rnic.cli.check import check
from rnic.cli.check_html import page_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BUILT = DOCS / "_build" / "html" / "judge"
RECORDING = ROOT / "tests" / "vectors" / "rxe" / "loss_write.pcap"
PACKAGE = os.environ.get("RNIC_PYODIDE", "")
"""Pyodide's package from npm, where the page is to be built from it."""


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_of_a_capture_in_memory_is_that_of_the_command_line(tmp_path: Path) -> None:
    name, page = "x.pcap", tmp_path / "x.html"
    data = bytearray(RECORDING.read_bytes())
    data[-6] ^= 1
    (tmp_path / name).write_bytes(data)
    assert CliRunner().invoke(check, ["--html", str(page), str(tmp_path / name)]).exit_code == 1
    assert page.read_text(encoding="utf-8").replace(str(tmp_path / name), name) == page_of(name, bytes(data))


@pytest.mark.parametrize("npm", ["exit 1", "exec sleep 60", "exit 0"], ids=["fails", "does not end", "brings nothing"])
def test_without_the_package_the_page_is_left_out(
    npm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = tmp_path / "bin" / "npm"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\n{npm}\n", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=os.pathsep)
    page = _module("gen_judge_page")
    monkeypatch.setattr(page, "NPM_S", 0.05 if "sleep" in npm else 10)
    assert page.main([str(tmp_path / "judge")]) == page.LEFT_OUT
    assert capsys.readouterr().out.startswith("docs: the page to drop a capture on is left out: npm does not bring ")


def test_what_is_no_capture_is_said_on_the_page() -> None:
    assert "not a capture file" in page_of("x.pcap", b"hello")
    assert "Compressed file ended" in page_of("x.gz", b"\x1f\x8bhello")


@pytest.mark.slow
def test_the_page_brings_every_module_that_a_report_needs(tmp_path: Path) -> None:
    maker = _module("gen_judge_page")
    package = tmp_path / "pyodide.tgz"
    with tarfile.open(package, "w:gz") as archive:
        for part in maker.PARTS:
            archive.addfile(tarfile.TarInfo(f"package/{part}"), io.BytesIO())
    maker.build(tmp_path / "site", package)
    lines = (
        "import sys; sys.path.insert(0, sys.argv[1])",
        "from rnic.cli.check_html import page_of",
        "assert 'no rule broken' in page_of('x', open(sys.argv[2], 'rb').read())",
    )
    command = [sys.executable, "-I", "-S", "-c", "\n".join(lines), str(tmp_path / "site" / "rnic.zip"), str(RECORDING)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")


class _Handler(http.server.SimpleHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012  # of one test

    def log_message(self, *_: object) -> None:
        """Note what was asked for."""
        self.asked.append(f"{self.command} {self.path}")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A server of the built page."""
    if PACKAGE:
        site = tmp_path / "judge"
        _module("gen_judge_page").build(site, Path(PACKAGE))
    elif (BUILT / "index.html").is_file():
        site = Path(shutil.copytree(BUILT, tmp_path / "judge"))
    else:
        pytest.skip("the page is not built: ./dev docs, or RNIC_PYODIDE=pyodide-VERSION.tgz")
    shutil.copy(RECORDING, site / "x.pcap")
    handler = functools.partial(_Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_in_a_browser(address: str) -> None:
    browser = _module("browser")
    if browser.find() is None:
        pytest.skip(browser.MISSING)
    with browser.Browser() as page:
        page.open(f"{address}/index.html")
        page.wait("['ready', 'failed'].includes(document.body.dataset.state)", 120)
        assert page.ask("document.getElementById('state').textContent") == "Drop a file here, or choose one:"
        _Handler.asked.clear()
        page.ask(
            "(async () => judge(new File([await (await fetch('x.pcap')).arrayBuffer()], 'x.pcap')))()",
        )
        assert page.ask("document.body.dataset.state") == "judged"
        shown = page.ask("document.getElementById('report').srcdoc")
        assert page.ask("document.getElementById('save').hidden") is False
        assert page.problems() == []
    assert shown == page_of("x.pcap", RECORDING.read_bytes())
    assert _Handler.asked == ["GET /x.pcap"]  # and nothing was sent
