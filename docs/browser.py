"""A headless Chromium over its debugging pipe: pages are opened at a width, asked, and photographed.

Needs nothing but the browser itself. No other program can reach it: no port is opened.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
MISSING = f"no browser here: install one of {', '.join(NAMES)}"
SECONDS = 30.0


def find() -> str | None:
    """Return the browser's path, or None if none of :data:`NAMES` is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserError(RuntimeError):
    """The browser ended, did not answer in time, or a page's script failed."""


class Browser:
    """One browser with one page.

    Raises:
        BrowserError: from every method.
    """

    def __init__(self, path: str | None = None) -> None:
        found = path or find()
        if found is None:
            raise BrowserError(MISSING)
        self._profile = tempfile.TemporaryDirectory(prefix="rnic-browser-", ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # the browser reads descriptor 3 and writes 4, whatever the numbers are here
        script = f'exec 3<&{to_read} 4>&{to_write} "$@"'
        command = [found, "--remote-debugging-pipe", "--headless", "--no-sandbox", "--disable-gpu"]
        command += ["--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={self._profile.name}"]
        self._process = subprocess.Popen(
            ["bash", "-c", script, "browser", *command, "about:blank"],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def _message(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise BrowserError(f"the browser did not answer within {SECONDS:g} s")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise BrowserError("the browser ended")
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Run a command of the DevTools protocol; return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while True:
            answer = self._message(until)
            if answer.get("id") == self._number:
                break
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def resize(self, width: int, height: int = 900) -> None:
        """Set the size of the window in CSS pixels; narrow ones are a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def open(self, url: str) -> None:
        """Go there, and wait until everything has come."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        until = time.monotonic() + SECONDS
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message(until))

    def ask(self, script: str) -> Any:
        """Return the value of an expression on the page; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = SECONDS) -> None:
        """Wait until the expression is true."""
        until = time.monotonic() + seconds
        while not self.ask(script):
            if time.monotonic() > until:
                raise BrowserError(f"never became true: {script}")
            time.sleep(0.05)

    def problems(self) -> list[str]:
        """Return uncaught errors of the page's scripts and errors on the console since it was opened."""
        self.ask("0")  # what was reported until now has come
        found = [e["params"] for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        said = [e["params"] for e in self.events if e.get("method") == "Runtime.consoleAPICalled"]
        return [str(one["exceptionDetails"].get("exception", one)) for one in found] + [
            str(one["args"]) for one in said if one["type"] == "error"
        ]

    def picture(self, path: Path, whole: bool = False) -> None:
        """Return the window as PNG, or the whole page, at most 8,000 pixels high."""
        options: dict[str, Any] = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 8000), "scale": 1}
            options = {"clip": clip, "captureBeyondViewport": True}
        answer = self.call("Page.captureScreenshot", format="png", **options)
        path.write_bytes(base64.b64decode(answer["data"]))


CUT_OFF = """
(() => {
  const found = [], wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide + 1)
    found.push(`the page is ${document.documentElement.scrollWidth} pixels wide`);
  const name = node => `${node.tagName.toLowerCase()}${node.id ? "#" + node.id : ""} "` +
    (node.getAttribute("alt") || node.textContent || "").trim().slice(0, 40) + '"';
  const scrolls = node => {
    for (; node && node !== document.body; node = node.parentElement)
      if (/auto|scroll/.test(getComputedStyle(node).overflowX)) return true;
    return false;
  };
  for (const node of document.querySelectorAll("body *")) {
    const box = node.getBoundingClientRect(), style = getComputedStyle(node);
    if (!box.width || !box.height || style.visibility === "hidden" || style.position === "fixed") continue;
    if (node.closest("svg") && node.tagName !== "svg") continue;
    const clips = /hidden|clip/.test(style.overflowX) && style.textOverflow !== "ellipsis";
    if (clips && node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 2)
      found.push(`${name(node)} hides ${node.scrollWidth - node.clientWidth} pixels`);
    if (/IMG|svg|TABLE|PRE|P|H[1-6]/.test(node.tagName) && box.right > wide + 1 && box.left < wide && !scrolls(node))
      found.push(`${name(node)} ends at ${Math.round(box.right)} of ${wide}`);
  }
  return found;
})()
"""
"""Text that a reader cannot see at this width, a text each. What scrolls inside its own frame can be seen."""

BROKEN = """
[...document.querySelectorAll("td code .pre, th code .pre")].filter(node => node.getClientRects().length > 1)
  .map(node => `"${node.textContent.slice(0, 40)}" is broken in its cell`)
"""
"""Words of code in tables that stand on more than one line, a text each."""
SCROLLS = """
[...document.querySelectorAll("body *")].filter(node =>
  /auto|scroll/.test(getComputedStyle(node).overflowX) && node.clientWidth > 50 &&
  node.scrollWidth > node.clientWidth + 1
).map(node => `${node.tagName.toLowerCase()} "${node.textContent.trim().slice(0, 40)}" must be scrolled`)
"""
"""Frames that a reader has to scroll sideways, a text each."""
