"""``rnic cdi``: the specification, the folder, which images are refused, and the devices of a container."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rnic.abi.library_paths import LIBRARIES
from rnic.cli import cdi as module
from rnic.cli import cdi_folder
from rnic.cli.cdi import cdi, cdi_check, container_devices, new_capture, own_address
from rnic.cli.cdi_folder import Folder, make_folder, oldest_glibc, why_not
from rnic.cli.elf import list_libraries, patch_interpreter, read_elf
from rnic.runtime.directory import ProcessError

NAMES = ("RNIC_ADDR", "RNIC_PORT", "RNIC_FAULTS", "RNIC_CAPTURE", "RNIC_CAPTURE_POLICY", "RNIC_CONGESTION")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_folder(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Nothing is copied; what settings the folder would get."""
    got: dict[str, str] = {}

    def make(path: Path, settings: dict[str, str]) -> Folder:
        got.update(settings)
        return Folder(path, 3, 5_000_000, 34)

    monkeypatch.setattr(module, "make_folder", make)
    return got


def test_the_specification(tmp_path: Path, no_folder: dict[str, str]) -> None:
    out, captures = tmp_path / "cdi" / "rnic.json", tmp_path / "captures"
    folder = tmp_path / "folder"
    words = ["--out", str(out), "--folder", str(folder), "--faults", "drop=1%", "--capture", str(captures)]
    result = CliRunner().invoke(cdi, words)
    assert result.exit_code == 0, result.output
    assert "5.0 MB" in result.output
    assert f"--cdi-spec-dir {out.parent}" in result.output
    assert "podman run $(rnic cdi --options) IMAGE" in result.output, "for an engine that lacks that option"
    said = json.loads(out.read_text())
    (device,) = said["devices"]
    edits = device["containerEdits"]
    assert (said["cdiVersion"], said["kind"], device["name"]) == ("0.5.0", "rnic.dev/nic", "0")
    assert {each["containerPath"]: each["hostPath"] for each in edits["mounts"]} == {
        "/opt/rnic": str(folder),
        "/etc/ld.so.preload": str(folder / "ld.so.preload"),
        "/run/rnic-captures": str(captures),
    }
    assert [each["options"][1] for each in edits["mounts"]] == ["ro", "ro", "rw"]
    assert edits["hooks"][0]["args"][-2:] == ["cdi-check", "34"]
    assert json.loads(no_folder["RNIC_FAULTS"])[0]["probability"] == 0.01
    assert no_folder["RNIC_CAPTURE"] == "/run/rnic-captures"
    assert captures.stat().st_mode & 0o7777 == 0o1777


@pytest.mark.usefixtures("no_folder")
def test_options_for_engines_without_cdi(tmp_path: Path) -> None:
    result = CliRunner().invoke(cdi, ["--options", "--folder", str(tmp_path / "with blank")])
    assert result.output.startswith(f"'--volume={tmp_path}/with blank:/opt/rnic:ro' ")
    assert result.output.endswith("/ld.so.preload:/etc/ld.so.preload:ro'\n")


@pytest.mark.parametrize(("uid", "out"), [(0, "/etc/cdi/rnic.json"), (1000, "/config/cdi/rnic.json")])
def test_places(monkeypatch: pytest.MonkeyPatch, uid: int, out: str) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert str(module.default_out()) == out
    assert str(module.default_folder()) == ("/data/rnic/cdi" if uid else "/var/lib/rnic/cdi")


def image(root: Path, libc: str = "", musl: bool = False) -> Path:
    (root / "lib" / "x86_64-linux-gnu").mkdir(parents=True)
    if libc:
        text = f"\0GNU C Library (Debian GLIBC {libc}) stable release version {libc}.\n\0"
        (root / "lib" / "x86_64-linux-gnu" / "libc.so.6").write_text(text)
    if musl:
        (root / "lib" / "ld-musl-x86_64.so.1").touch()
    return root


@pytest.mark.parametrize(
    ("libc", "musl", "words"),
    [
        ("2.36", False, ""),
        ("2.34", True, ""),
        ("2.31", False, "glibc 2.31, and rnic's libraries need 2.34"),
        ("", True, "musl"),
        ("", False, ""),
    ],
)
def test_images_that_are_refused(tmp_path: Path, libc: str, musl: bool, words: str) -> None:
    why = why_not(image(tmp_path / "rootfs", libc, musl), 34)
    assert words in why
    assert bool(why) == bool(words)


def test_the_hook(tmp_path: Path) -> None:
    image(tmp_path / "rootfs", musl=True)
    (tmp_path / "config.json").write_text('{"root": {"path": "rootfs"}}')
    result = CliRunner().invoke(cdi_check, ["34"], input=json.dumps({"bundle": str(tmp_path)}))
    assert isinstance(result.exception, ProcessError)
    assert "musl" in str(result.exception)
    assert CliRunner().invoke(cdi_check, ["34"], input="{}").exit_code == 1
    (tmp_path / "config.json").write_text('{"root": {"path": "/nowhere"}}')
    assert CliRunner().invoke(cdi_check, ["34"], input=json.dumps({"bundle": str(tmp_path)})).exit_code == 0


@pytest.mark.parametrize(
    ("addresses", "own"),
    [
        (["127.0.0.1", "::1", "fd00::2", "10.88.0.5"], "10.88.0.5"),
        (["127.0.0.1", "::1", "fe80::1%eth0", "fd00::2"], "fd00::2"),
        (["127.0.0.1", "::1"], "127.0.0.1"),
        ([], "127.0.0.1"),
    ],
)
def test_the_address_that_others_reach(addresses: list[str], own: str) -> None:
    assert own_address(addresses) == own


def test_devices_of_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "local_addresses", lambda: ["127.0.0.1", "192.0.2.7"])
    (only,) = container_devices()
    assert only["address"] == "192.0.2.7"
    assert {value for name, value in only.items() if name != "address"} == {None}
    monkeypatch.setenv("RNIC_ADDR", "192.0.2.8 192.0.2.9")
    monkeypatch.setenv("RNIC_PORT", "4792")
    monkeypatch.setenv("RNIC_FAULTS", "drop=1/50")
    monkeypatch.setenv("RNIC_CAPTURE", str(tmp_path))
    first, second = container_devices()
    assert (first["address"], second["address"], first["port"]) == ("192.0.2.8", "192.0.2.9", 4792)
    assert json.loads(str(first["faults"]))[0]["probability"] == 0.02
    assert first["capture"] == str(tmp_path / f"{socket.gethostname()}-0.pcapng")
    monkeypatch.setenv("RNIC_PORT", "roce")
    with pytest.raises(ProcessError, match="RNIC_PORT is 'roce'"):
        container_devices()


def test_each_nic_has_a_recording_of_its_own(tmp_path: Path) -> None:
    first, second = new_capture(tmp_path), new_capture(tmp_path)
    assert first != second
    assert Path(second).exists()
    with pytest.raises(ProcessError, match="let this user write there"):
        new_capture(tmp_path / "absent")


def test_the_linker_of_a_program_is_replaced(tmp_path: Path) -> None:
    python = Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()
    (tmp_path / "python").write_bytes(python.read_bytes())
    patch_interpreter(tmp_path / "python", "/opt/rnic/lib/ld.so")
    found = read_elf(str(tmp_path / "python"))
    assert found is not None
    assert found.interpreter == "/opt/rnic/lib/ld.so"
    with pytest.raises(ValueError, match="no room"):
        patch_interpreter(tmp_path / "python", "/a/path/that/is/much/longer/than/the/old/one/was")


def test_the_oldest_glibc(tmp_path: Path) -> None:
    (tmp_path / "lib").write_bytes(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0GLIBC_PRIVATE\0")
    assert oldest_glibc(tmp_path / "lib") == 34


def test_a_python_for_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi_folder, "library_directory", lambda: tmp_path)
    monkeypatch.setattr(cdi_folder, "read_elf", lambda _: None)
    with pytest.raises(ProcessError, match="no Python for glibc"):
        make_folder(tmp_path / "folder", {})


@pytest.mark.slow
def test_the_folder_is_whole(tmp_path: Path) -> None:
    """What is in it needs nothing beside it: run from here, with its own linker, libraries and modules."""
    if not (LIBRARIES / "libibverbs.so.1").exists():
        pytest.skip("the C libraries are not built")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    made = make_folder(tmp_path / "folder", {"RNIC_FAULTS": "[]"})
    folder = made.path
    assert not (folder / "old").exists()
    assert made.bytes < 100e6
    assert (folder / "ld.so.preload").read_text().startswith("/opt/rnic/libraries/libibverbs.so.1\n")
    lines = (folder / "libraries" / "environment").read_text().splitlines()
    assert "?RNIC_FAULTS=[]" in lines
    assert "RNIC_PYTHON=/opt/rnic/bin/python3" in lines
    linker = str(folder / "lib" / "ld.so")
    own = (line.partition("=") for line in lines if not line.startswith("?"))
    env = {name: value.replace("/opt/rnic", str(folder)) for name, _, value in own}
    code = "import sys, rnic.cli.serve, rnic.cli.exec\nfor m in sys.modules.values(): print(getattr(m, '__file__', ''))"
    command = [linker, "--library-path", str(folder / "lib"), str(folder / "bin" / "python3"), "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    inside = {each for each in done.stdout.split() if each.startswith((str(folder), "/opt/rnic"))}
    assert len(inside) > 100
    assert set(done.stdout.split()) == inside
    libraries = list_libraries(linker, str(folder / "bin" / "python3"), env)
    assert all(Path(place).is_relative_to(folder) for name, place in libraries.items() if "ld-linux" not in name)
    assert os.access(folder / "bin" / "python3", os.X_OK)
