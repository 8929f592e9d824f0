"""The runtime directory: which one it is, and which ones are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rnic.runtime.directory import ProcessError, runtime_directory


@pytest.mark.parametrize(
    ("rnic", "xdg", "place"),
    [("own", "xdg", "own"), ("own", "", "own"), ("", "xdg", "xdg/rnic"), ("deep/own", "", "deep/own")],
)
def test_it_is_the_one_named_or_the_users_and_of_the_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rnic: str, xdg: str, place: str
) -> None:
    for name, value in (("RNIC_RUNTIME_DIR", rnic), ("XDG_RUNTIME_DIR", xdg)):
        monkeypatch.setenv(name, str(tmp_path / value) if value else "")
    assert runtime_directory() == runtime_directory() == tmp_path / place
    assert stat.S_IMODE((tmp_path / place).stat().st_mode) == 0o700


def test_without_a_name_it_lies_in_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.delenv("RNIC_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(Path, "mkdir", lambda path, **_: asked.append(path))
    monkeypatch.setattr(
        Path, "lstat", lambda _: os.stat_result((stat.S_IFDIR | 0o700, 0, 0, 0, os.geteuid(), 0, 0, 0, 0, 0))
    )
    assert runtime_directory() == Path(f"/tmp/rnic-{os.getuid()}")
    assert asked == [Path(f"/tmp/rnic-{os.getuid()}")]


def test_one_that_is_another_users_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(tmp_path / "own"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ProcessError, match=rf"is user {os.getuid()}'s: set RNIC_RUNTIME_DIR to one of your own"):
        runtime_directory()


def test_one_below_a_file_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(tmp_path / "file" / "own"))
    with pytest.raises(ProcessError, match="cannot be used"):
        runtime_directory()


def test_a_runtime_directory_open_to_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(ProcessError, match="open to other users"):
        runtime_directory()


def test_a_link_in_place_of_the_runtime_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(tmp_path / "link"))
    with pytest.raises(ProcessError, match="is a symbolic link"):
        runtime_directory()
