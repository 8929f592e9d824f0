"""Device paths: the tree, and the library that turns a program's calls to it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rnic.abi.build import PATHS_SOURCES, find_compiler
from rnic.abi.library_paths import PATHS_LIBRARY
from rnic.cli.elf import looks_static
from rnic.cli.exec import environment
from rnic.testing import own_network

HERE = Path(__file__).parent
NET = own_network()
TEXT = "0000:0000:0000:0000:0000:ffff:7f00:0001"
FILE = "/sys/class/infiniband/rnic0/ports/1/gids/0"
ASKED = (FILE, "/sys/class/infiniband/rnic0/ports", "/sys/class/infiniband/rnic0", "/sys/class/infiniband/rn*")
RNIC = (sys.executable, "-m", "rnic.cli")


def _program(out: Path, *flags: str) -> Path:
    compiler = find_compiler()
    assert compiler is not None
    command = [compiler, "-std=gnu11", "-w", "-O1", *flags, str(HERE / "paths.c"), "-o", str(out / "paths")]
    subprocess.run(command, check=True)
    return out / "paths"


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calls every function that is turned."""
    return _program(tmp_path_factory.mktemp("paths"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A view in a directory whose name a pattern would take for something else."""
    whole = tmp_path / "a [b]*c" / "all"
    device = whole / "sys/devices/virtual/infiniband/rnic0"
    (device / "ports/1/gids").mkdir(parents=True)
    (device / "ports/1/gids/0").write_text(TEXT + "\n")
    view = whole.parent / "rnic0"
    (view / "sys/class/infiniband").mkdir(parents=True)
    (view / "sys/devices").symlink_to("../../all/sys/devices")
    (view / "sys/class/infiniband/rnic0").symlink_to("../../devices/virtual/infiniband/rnic0")
    return view


def _run(program: Path, env: dict[str, str], *asked: str) -> dict[str, str]:
    done = subprocess.run([program, *asked], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


EXPECTED = {
    **dict.fromkeys(("opendir", "scandir", "access", "eaccess", "euidaccess", "faccessat", "chdir"), "there"),
    **dict.fromkeys(("scandir64", "getxattr", "lgetxattr", "listxattr", "llistxattr"), "there"),
    **dict.fromkeys(("open", "open64", "openat", "openat64", "fopen", "fopen64", "freopen", "freopen64"), TEXT),
    **dict.fromkeys(("__open_2", "__open64_2", "__openat_2", "__openat64_2"), TEXT),
    **dict.fromkeys(("stat", "stat64", "lstat", "lstat64", "fstatat", "fstatat64", "statx"), str(len(TEXT) + 1)),
    **dict.fromkeys(("__xstat", "__xstat64", "__lxstat", "__lxstat64"), str(len(TEXT) + 1)),
    **dict.fromkeys(("__fxstatat", "__fxstatat64"), str(len(TEXT) + 1)),
    **dict.fromkeys(("readlink", "readlinkat", "__readlink_chk"), "../../devices/virtual/infiniband/rnic0"),
    "__readlinkat_chk": "../../devices/virtual/infiniband/rnic0",
    **dict.fromkeys(("realpath", "__realpath_chk"), "/sys/devices/virtual/infiniband/rnic0"),
    "canonicalize_file_name": "/sys/devices/virtual/infiniband/rnic0",
    **dict.fromkeys(("glob", "glob64", "glob_append"), "/sys/class/infiniband/rnic0"),
}
"""What each function finds behind :data:`ASKED`."""


def test_the_list_of_functions_is_whole() -> None:
    turned = set(re.findall(r"^(?:OURS|OPEN\w*|\w+)\((?:[^,()]+, )?our_\w+, (\w+)", PATHS_SOURCES[0].read_text(), re.M))
    assert turned | {"realpath", "glob_append"} == set(EXPECTED)


def test_every_function_of_libc_goes_to_the_tree(program: Path, tree: Path, libraries: Path) -> None:
    env = os.environ | {"RNIC_PATHS": str(tree), "LD_PRELOAD": str(libraries / PATHS_LIBRARY)}
    assert _run(program, env, *ASKED) == EXPECTED


def test_slashes_may_stand_doubled(program: Path, tree: Path, libraries: Path) -> None:
    env = os.environ | {"RNIC_PATHS": str(tree), "LD_PRELOAD": str(libraries / PATHS_LIBRARY)}
    asked = [path.replace("/sys/", "//sys///") for path in ASKED]
    named = {name: "//sys///class/infiniband/rnic0" for name in EXPECTED if name.startswith("glob")}
    assert _run(program, env, *asked) == EXPECTED | named


@pytest.mark.parametrize(
    "prefix", ["/sys/class/infinibandage", "/sys/class/net", "/dev/infinibands", "/sysx", "sys/class/infiniband"]
)
def test_no_other_path_is_touched(program: Path, tree: Path, libraries: Path, prefix: str, tmp_path: Path) -> None:
    asked = [path.replace("/sys/class/infiniband", prefix) for path in ASKED]
    plain = {name: value for name, value in os.environ.items() if name != "RNIC_PATHS"}
    env = plain | {"RNIC_PATHS": str(tree), "LD_PRELOAD": str(libraries / PATHS_LIBRARY)}
    assert _run(program, env, *asked) == _run(program, plain, *asked)


def test_without_a_tree_nothing_is_turned(program: Path, libraries: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "RNIC_PATHS"}
    asked = [path.replace("rnic0", "rnic-no-such") for path in ASKED[:3]] + ["/sys/class/infiniband/rnic-no*"]
    found = _run(program, env | {"LD_PRELOAD": str(libraries / PATHS_LIBRARY)}, *asked)
    assert found == _run(program, env, *asked)
    assert found["glob_append"] == "/sys/class/infiniband/rnic-no*"
    assert {value for name, value in found.items() if "glob" not in name} == {f"- {errno.ENOENT}"}


def test_a_program_under_address_sanitizer_runs_with_it(tree: Path, libraries: Path, tmp_path: Path) -> None:
    try:
        program = _program(tmp_path, "-fsanitize=address")
    except subprocess.CalledProcessError:
        pytest.skip("the compiler has no AddressSanitizer")
    env = environment(["rnic0"], tmp_path, libraries, preload=True, paths=tree)
    env["ASAN_OPTIONS"] += ":detect_leaks=0"
    assert _run(program, env, *ASKED) == EXPECTED


# ---------------------------------------------------------------------------------------- rnic exec


def test_what_is_preloaded_stands_behind_the_users_own(
    libraries: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/opt/mine.so theirs.so")
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    env = environment(["rnic0"], Path("/run/x"), libraries, preload=True, paths=tree)
    ours = ["libibverbs.so.1", "librdmacm.so.1", PATHS_LIBRARY]
    assert env["LD_PRELOAD"].split(":") == ["/opt/mine.so", "theirs.so", *(str(libraries / name) for name in ours)]
    assert env["ASAN_OPTIONS"] == "verify_asan_link_order=0:detect_leaks=0"
    assert env["RNIC_PATHS"] == str(tree)
    monkeypatch.setenv("LD_PRELOAD", env["LD_PRELOAD"])
    assert (
        environment(["rnic0"], Path("/run/x"), libraries, preload=True, paths=tree)["LD_PRELOAD"] == env["LD_PRELOAD"]
    )


def test_without_paths_the_library_keeps_descriptors_alone(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_PRELOAD", "ASAN_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RNIC_PATHS", "/of/another")
    env = environment(["rnic0"], Path("/run/x"), libraries)
    assert env["LD_PRELOAD"] == str(libraries / PATHS_LIBRARY)
    assert "RNIC_PATHS" not in env


def test_blanks_in_the_directory_do_no_harm(libraries: Path, tree: Path, program: Path, tmp_path: Path) -> None:
    place = tmp_path / "with a blank"
    place.mkdir()
    shutil.copy(libraries / PATHS_LIBRARY, place)
    assert _run(program, environment(["rnic0"], tmp_path, place, paths=tree), *ASKED) == EXPECTED


def _exec(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RNIC, "exec", *arguments], env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
def test_a_program_and_its_children_see_their_devices_alone(env: dict[str, str]) -> None:
    with subprocess.Popen(
        [*RNIC, "exec", "--addr", f"{NET}.91", "--", "cat"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(b"up\n")
        other.stdin.flush()
        assert other.stdout.readline() == b"up\n"
        script = (
            "ls /sys/class/infiniband /dev/infiniband; cat /sys/class/infiniband/*/ports/1/gids/0"
            " /sys/class/infiniband/*/ports/1/state; sh -c 'cat /sys/class/infiniband_verbs/uverbs*/ibdev'"
        )
        done = _exec(env, "--addr", f"{NET}.92", "--", "sh", "-c", script)
        part = f"{NET}.92".split(".")
        gid = f"0000:0000:0000:0000:0000:ffff:{int(part[0]):02x}{int(part[1]):02x}:{int(part[2]):02x}5c"
        assert done.stdout.splitlines() == [
            *("/dev/infiniband:", "umad1", "uverbs1", "", "/sys/class/infiniband:", "rnic1"),
            *(gid, "4: ACTIVE", "rnic1"),
        ]
        done = _exec(env, "--addr", f"{NET}.92", "--no-paths", "--", "ls", "/sys/class/infiniband/rnic1")
        assert done.returncode != 0
        other.stdin.close()


@pytest.mark.slow
def test_the_tree_is_printed_for_programs_that_take_it_themselves(env: dict[str, str]) -> None:
    env = {name: value for name, value in env.items() if name != "RNIC_ADDR"}  # inside, the device is known
    done = _exec(env, "--addr", f"{NET}.93", "--print-sysfs")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(Path(env["RNIC_RUNTIME_DIR"]) / "paths/rnic0/sys")
    assert (Path(done.stdout.strip()) / "class/infiniband/rnic0/ports/1/link_layer").read_text() == "Ethernet\n"
    inside = _exec(env, "--addr", f"{NET}.93", "--", *RNIC, "exec", "--print-sysfs")
    assert inside.stdout == done.stdout
    assert "--print-sysfs runs no program" in _exec(env, "--print-sysfs", "--", "ls").stderr
    assert "PROGRAM is missing" in _exec(env).stderr


def test_the_dynamic_linker_started_by_hand_is_no_static_program() -> None:
    """`ld-linux-x86-64.so.2 --library-path DIRECTORY PROGRAM`: how a program of another distribution is started."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    linker = next(path for path in re.findall(r"(/\S+)$", maps, re.MULTILINE) if Path(path).name.startswith("ld-"))
    assert not looks_static(linker)


def test_static_programs_are_told_from_others(libraries: Path, tmp_path: Path) -> None:
    compiler = find_compiler()
    assert compiler is not None
    source = tmp_path / "hello.c"
    source.write_text("int main(void) { return 0; }\n")
    made = tmp_path / "hello"
    if subprocess.run([compiler, "-static", source, "-o", made], check=False, capture_output=True).returncode:
        pytest.skip("there is no static C library")
    assert looks_static(str(made))
    if not subprocess.run([compiler, "-static-pie", source, "-o", made], check=False, capture_output=True).returncode:
        assert looks_static(str(made))
    subprocess.run([compiler, source, "-o", made], check=True)
    assert not looks_static(str(made))
    made.write_text("#!/bin/sh\n")
    assert not looks_static(str(made))
    assert not looks_static(str(tmp_path / "none"))
    for size in range(0, 200, 7):
        made.write_bytes((b"\x7fELF\2\1" + b"\xff" * 194)[:size])
        assert not looks_static(str(made))
