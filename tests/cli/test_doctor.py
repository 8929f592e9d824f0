"""``rnic doctor``: each finding with its consequence and remedy, on made-up machines and made-up ELF files."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rnic.abi.library_paths import LIBRARIES
from rnic.cli import doctor_machine as machine
from rnic.cli import doctor_program as program
from rnic.cli.doctor import doctor
from rnic.cli.doctor_machine import FAILS, NOTE, OK, Finding
from rnic.cli.elf import Elf, looks_static, read_elf
from rnic.link.udp import UdpLink
from rnic.testing import own_network

NET = own_network()
GLIBC = "/lib64/ld-linux-x86-64.so.2"
MUSL = "/lib/ld-musl-x86_64.so.1"
HEAD = 64
PHDR = 56


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No NIC process runs; nothing of this session's own environment counts."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(tmp_path))
    for name in ("RNIC_DEVICE", "RNIC_LIBRARIES", "KUBERNETES_SERVICE_HOST", "container"):
        monkeypatch.delenv(name, raising=False)


def elf(
    path: Path,
    interpreter: str = "",
    tags: dict[int, str] | None = None,
    needed: tuple[str, ...] = (),
    go: bool = False,
    machine: int | None = None,
    bits: int = 2,
) -> Path:
    """Write an ELF file with a segment for each part that it has; ``tags`` are names of the dynamic section."""
    own = read_elf(sys.executable)
    assert own is not None
    strings = b"\0"
    entries = []
    for tag, name in [*(tags or {}).items(), *((1, each) for each in needed)]:
        entries.append((tag, len(strings)))
        strings += name.encode() + b"\0"
    parts = []
    if interpreter:
        parts.append((3, interpreter.encode() + b"\0"))
    if go:
        parts.append((4, struct.pack("<III", 4, 4, 4) + b"Go\0\0" + b"abcd"))
    if not parts and not entries:
        parts.append((1, b"code"))
    count = len(parts) + (2 if entries else 0)
    at = HEAD + PHDR * count
    headers, body = b"", b""
    base = 0x10000
    for kind, data in parts:
        headers += struct.pack("<IIQQQQQQ", kind, 0, at + len(body), 0, 0, len(data), len(data), 1)
        body += data
    if entries:
        place = at + len(body)
        dynamic = b"".join(struct.pack("<qQ", tag, value) for tag, value in [*entries, (5, base + place), (0, 0)])
        headers += struct.pack("<IIQQQQQQ", 1, 0, 0, base, base, place + len(strings), place + len(strings), 1)
        body += strings
        headers += struct.pack("<IIQQQQQQ", 2, 0, at + len(body), 0, 0, len(dynamic), len(dynamic), 1)
        body += dynamic
    kind = own.machine if machine is None else machine
    head = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, kind, 1, 0, HEAD, 0, 0, HEAD, PHDR, count, 0, 0, 0)
    path.write_bytes(head + headers + body)
    path.chmod(0o755)
    return path


def about(path: Path | str, libraries: Path = Path("/nowhere")) -> dict[str, Finding]:
    return {each.name: each for each in program.program_findings(str(path), libraries)}


def test_what_is_read_of_a_file(tmp_path: Path) -> None:
    file = elf(tmp_path / "a", GLIBC, {14: "me.so", 15: "/old", 29: "/new:$ORIGIN"}, ("libibverbs.so.1", "libc.so.6"))
    found = read_elf(str(file))
    assert found is not None
    assert (found.interpreter, found.needed) == (GLIBC, ("libibverbs.so.1", "libc.so.6"))
    assert (found.rpath, found.runpath, found.is_static) == ("", "/new:$ORIGIN", False)
    only_rpath = read_elf(str(elf(tmp_path / "b", GLIBC, {15: "/old"})))
    assert only_rpath is not None
    assert only_rpath.rpath == "/old"


def test_a_library_without_a_name_of_its_own_is_no_static_program(tmp_path: Path) -> None:
    assert not looks_static(str(elf(tmp_path / "module.so", needed=("libc.so.6",))))
    assert looks_static(str(elf(tmp_path / "program")))


def test_damaged_files_say_nothing(tmp_path: Path) -> None:
    whole = elf(tmp_path / "whole", GLIBC, {29: "/new"}, ("libc.so.6",)).read_bytes()
    for cut in range(0, len(whole), 13):
        (tmp_path / "cut").write_bytes(whole[:cut])
        found = read_elf(str(tmp_path / "cut"))
        assert found is None or isinstance(found, Elf)
    assert read_elf(str(tmp_path / "absent")) is None


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        ({}, "static", "linked statically"),
        ({"interpreter": MUSL}, "interpreter", "made for musl"),
        ({"interpreter": "/lib/ld.so"}, "interpreter", "another C library"),
        ({"interpreter": GLIBC, "machine": 0xF3}, "program", "machine 243"),
        ({"interpreter": GLIBC, "bits": 1}, "program", "32-bit"),
    ],
)
def test_programs_that_cannot(tmp_path: Path, make: dict[str, object], name: str, words: str) -> None:
    found = about(elf(tmp_path / "program", **make))  # type: ignore[arg-type]
    assert found[name].level == FAILS
    assert words in found[name].line(0)
    assert found[name].remedy


def test_a_program_of_go(tmp_path: Path) -> None:
    assert about(elf(tmp_path / "program", GLIBC, go=True))["Go"].level == NOTE


@pytest.mark.parametrize(("tag", "name", "level"), [(15, "RPATH", FAILS), (29, "RUNPATH", OK)])
def test_a_path_with_a_libibverbs(tmp_path: Path, tag: int, name: str, level: str) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib" / "libibverbs.so.1").touch()
    found = about(elf(tmp_path / "bin" / "program", GLIBC, {tag: "$ORIGIN/../lib"}))[name]
    assert found.level == level
    assert found.remedy == ("rnic exec --preload" if level == FAILS else "")
    assert about(elf(tmp_path / "bin" / "other", GLIBC, {tag: "/nowhere"}))[name].level == OK


def test_rights_that_a_program_gains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = elf(tmp_path / "program", GLIBC)
    assert "rights" not in about(file)
    file.chmod(0o6755)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    monkeypatch.setattr("os.getegid", lambda: 12345)
    found = about(file)["rights"]
    assert found.level == FAILS
    assert "setuid of user" in found.found
    assert "setgid of group" in found.found


def test_scripts_lead_to_their_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elf(tmp_path / "runs", MUSL)
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env runs\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = about(script)
    assert found["script"].consequence == "started by /usr/bin/env runs"
    assert found["interpreter"].level == FAILS
    script.write_text("#!/no/such\n")
    assert "was not found" in about(script)["interpreter"].found


def test_what_is_no_program(tmp_path: Path) -> None:
    assert "was not found" in about(tmp_path / "absent")["program"].found
    (tmp_path / "text").write_text("words\n")
    assert "no ELF program" in about(tmp_path / "text")["program"].found


@pytest.mark.parametrize(
    ("listed", "name", "level", "words"),
    [
        ({"libibverbs.so.1": "OURS/libibverbs.so.1"}, "loads", OK, "rnic's"),
        ({"libibverbs.so.1": "/usr/lib/libibverbs.so.1"}, "libibverbs.so.1", FAILS, "--preload"),
        ({"libibverbs-0123abcd.so.1": "/x/libibverbs-0123abcd.so.1"}, "loads", FAILS, "--preload"),
        ({"libc.so.6": "/lib/libc.so.6"}, "loads", OK, "no libibverbs when it starts"),
        ({"libx.so.1": "not found"}, "libraries", FAILS, "install them"),
        ({"libibverbs.so.1": "OURS/libibverbs.so.1", "libmlx5.so.1": "/x"}, "loads", OK, "libmlx5.so.1"),
    ],
)
def test_what_a_program_would_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listed: dict[str, str], name: str, level: str, words: str
) -> None:
    said = {each: place.replace("OURS", str(tmp_path)) for each, place in listed.items()}
    monkeypatch.setattr(program, "list_libraries", lambda *_: said)
    found = {each.name: each for each in program.loaded("/bin/x", GLIBC, tmp_path)}[name]
    assert found.level == level
    assert words in found.line(0)


@pytest.mark.slow
def test_the_dynamic_linker_lists_what_a_program_loads(libraries_there: Path) -> None:
    path = shutil.which("ibv_devinfo")
    if path is None:
        pytest.skip("ibv_devinfo is not installed")
    found = about(path, libraries_there)
    assert "libibverbs.so.1" in found["loads"].found or "libmlx" in found["loads"].found
    assert all(each.level == OK for each in found.values())


@pytest.fixture
def libraries_there() -> Path:
    if not (LIBRARIES / "libibverbs.so.1").exists():
        pytest.skip("the C libraries are not built")
    return LIBRARIES


def written(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("found", "level", "words"),
    [
        (machine.kernel("Darwin"), FAILS, "need Linux"),
        (machine.kernel("Linux"), OK, "Linux"),
        (machine.libc(""), FAILS, "glibc"),
        (machine.libc("glibc 2.36"), OK, "2.36"),
        (machine.libraries(Path("/nowhere")), FAILS, "rnic.abi.build"),
    ],
)
def test_the_machine(found: Finding, level: str, words: str) -> None:
    assert found.level == level
    assert words in found.line(0)


def test_a_plain_install_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnic.spec.twins.in_use", {"rnic.engine": False, "rnic.mem.order": True})
    found = machine.compiled()
    assert (found.level, found.found) == (NOTE, "plain Python for rnic.engine")
    monkeypatch.setattr("rnic.spec.twins.in_use", {"rnic.engine": True})
    assert machine.compiled().level == OK


def test_a_small_receive_buffer_is_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = written(tmp_path, proc__sys__net__core__rmem_max="212992\n", proc__sys__net__core__wmem_max="9\n")
    monkeypatch.setattr(machine, "in_flight", lambda *_: 37)
    receive, send = machine.buffers(root)
    assert receive.line(0).startswith("note  rmem_max  212992 bytes: a NIC has at most 37 packets in flight")
    assert "net.core.rmem_max=4194304" in receive.remedy
    assert send.found == "9 bytes"
    monkeypatch.setattr(machine, "in_flight", lambda *_: 372)
    assert next(iter(machine.buffers(root))).level == OK


def test_a_taken_port_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"{NET}.1"
    with contextlib.closing(UdpLink(address, 0)) as taken:
        monkeypatch.setattr(machine, "ROCE_UDP_PORT", taken.port)
        monkeypatch.setattr(machine, "get_device_list", lambda: [type("D", (), {"address": address})])
        (found,) = machine.ports()
        assert found.level == NOTE
        assert str(taken.port) in found.remedy
    (found,) = machine.ports()
    assert found.level == OK


@pytest.mark.parametrize("scope", ["", "0", "1", "2", "3"])
def test_yama(tmp_path: Path, scope: str) -> None:
    root = written(tmp_path, proc__sys__kernel__yama__ptrace_scope=scope)
    assert machine.yama(root).consequence == machine.YAMA.get(scope, "")


def test_a_filter_of_system_calls(tmp_path: Path) -> None:
    assert machine.seccomp(written(tmp_path, proc__self__status="Name:\tx\nSeccomp:\t2\n")).found == "mode 2"
    assert machine.seccomp(written(tmp_path, proc__self__status="Seccomp:\t0\n")).found == "no filter"


def test_memory_that_is_out_of_reach() -> None:
    maps, vm = machine.memory({"maps": errno.EACCES, "process_vm_readv": errno.EPERM})
    assert (maps.level, maps.found, vm.level, vm.found) == (NOTE, "EACCES", NOTE, "EPERM")
    assert [each.level for each in machine.memory({})] == [OK, OK]


@pytest.mark.slow
def test_one_program_tries_to_read_another() -> None:
    assert machine.probe().keys() <= {"maps", "process_vm_readv"}


@pytest.mark.slow
def test_a_program_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    hide = "import ctypes; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0);"  # PR_SET_DUMPABLE: as yama forbids it to others
    monkeypatch.setattr(machine, "TARGET", hide + machine.TARGET)
    user = "import ctypes, json, os; os.geteuid() == 0 and (os.setgid(65534), os.setuid(65534));"
    monkeypatch.setattr(machine, "READER", user + machine.READER)
    assert machine.probe() == {"maps": errno.EACCES, "process_vm_readv": errno.EPERM}


def test_limits() -> None:
    few, locked = machine.limits((256, 4096), 65536)
    assert (few.level, few.remedy, locked.found) == (NOTE, "ulimit -n 1024", "64 KiB")
    assert [each.level for each in machine.limits((1024, 4096), 0)] == [OK, OK]


def test_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.shared_memory().level == OK

    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.memfd_create", refuse)
    assert "seccomp" in machine.shared_memory().remedy


def test_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.container(tmp_path).found == "none seen"
    monkeypatch.setattr(machine, "get_device_list", lambda: [type("D", (), {"address": "192.0.2.7"})])
    (tmp_path / ".dockerenv").touch()
    assert machine.container(tmp_path).consequence.endswith("--addr 192.0.2.7")


def test_devices_of_the_kernel(tmp_path: Path) -> None:
    assert machine.adapters(tmp_path).found == "no device"
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert machine.adapters(tmp_path).found == "mlx5_0"


def test_a_runtime_directory_that_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert machine.directory().found == str(tmp_path)
    long = tmp_path / ("x" * 120)
    monkeypatch.setenv("RNIC_RUNTIME_DIR", str(long))
    assert "107" in machine.directory().consequence
    long.chmod(0o755)
    assert "open to other users" in machine.directory().found


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    file = elf(tmp_path / "program", MUSL)
    result = CliRunner().invoke(doctor, ["--json", "--", str(file), "--its-own", "option"])
    found = {each["name"]: each for each in json.loads(result.output)}
    assert result.exit_code == 1
    assert found["interpreter"]["level"] == FAILS
    assert found.keys() >= {"kernel", "rmem_max", "wmem_max", "yama", "seccomp", "nofile", "memlock", "container"}
    text = CliRunner().invoke(doctor, ["--", str(file)])
    assert f"findings: {sum(each['level'] == FAILS for each in found.values())} fail" in text.output.splitlines()[-1]
    assert all(line.split()[0] in (OK, NOTE, FAILS) for line in text.output.splitlines()[:-1])


@pytest.mark.slow
def test_it_ends_well_where_nothing_fails() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rnic.cli", "doctor", "--json"], capture_output=True, text=True, check=False, timeout=120
    )
    fails = any(each["level"] == FAILS for each in json.loads(done.stdout))
    assert (done.returncode, done.stderr) == (int(fails), "")
