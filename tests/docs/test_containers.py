"""The how-to on containers, by Podman under Docker's name: the image is built from this tree's commits, containers run.

Takes minutes and wants root, ``podman``, ``netavark``, ``aardvark-dns``, ``iptables`` (netavark calls it and does not
say so), ``mmdebstrap``, ``git``, Debian's mirror and a package index. No registry is asked: what stands for
``debian:12`` is made by ``mmdebstrap``. Storage, networks and images are of this test alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_examples import ROOT, blocks_of

PAGE = ROOT / "docs" / "howto.md"
ADDRESS = "git+https://your.git/rnic"
PROGRAMS = ("podman", "buildah", "mmdebstrap", "git", "runc", "iptables")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
ENGINE = """\
#!/bin/sh
[ "$1" = build ] && shift && set -- build --isolation chroot --layers=false --network host "$@"
exec {podman} --root {place}/root --runroot {place}/run --storage-driver {driver} --cgroup-manager cgroupfs "$@"
"""
MIRROR = 'Acquire::Retries "5";\nAcquire::http::Timeout "20";\nAcquire::https::Timeout "20";\n'
"""For apt in containers: a connection that brings nothing is given up, and made again."""
SECONDS = 300
"""Of a command that builds nothing: it is a hang that ends, and a machine that does much besides takes its time."""


def container_blocks() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return [block.code for block in blocks_of(PAGE.name, text) if block.note == "in containers"]


def shell(command: str, env: dict[str, str], place: Path, seconds: int) -> str:
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], env=env, cwd=place, stdin=subprocess.DEVNULL, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode(errors="replace")  # bytes, whatever ``text`` says
        pytest.fail(f"{command}\nnot over after {seconds} s:\n{said[-4000:]}")
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
    return done.stdout


def storage_driver(place: Path) -> str:
    """``vfs`` copies the whole image for each container, half a gigabyte: only where layers cannot be mounted."""
    for name in ("lower", "upper", "work", "seen"):
        (place / name).mkdir()
    layers = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
    mount = ["unshare", "--mount", "mount", "-t", "overlay", "overlay", "-o", layers, str(place / "seen")]
    return "vfs" if subprocess.run(mount, capture_output=True, check=False).returncode else "overlay"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a shell that has ``docker``, with ``debian:12`` in store."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    if os.geteuid() != 0:
        pytest.skip("not root, who alone makes networks for containers here")
    for name in ("bin", "base", "layers"):
        (tmp_path / name).mkdir()
    store = tempfile.mkdtemp(prefix="rnic-")  # Podman takes no path of more than 50 bytes
    driver = storage_driver(tmp_path / "layers")
    for name in ("docker", "podman"):
        (command := tmp_path / "bin" / name).write_text(
            ENGINE.format(place=store, driver=driver, podman=shutil.which("podman"))
        )
        command.chmod(0o755)
    # Podman would ask for limits above its own, which not every root may; and crun takes no hybrid control groups
    (tmp_path / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'
        '[engine]\nruntime = "runc"\nevents_logger = "file"\n'
    )
    env = {**os.environ, "CONTAINERS_CONF": str(tmp_path / "containers.conf")}
    env["PATH"] = f"{tmp_path / 'bin'}:{env['PATH']}"
    made = subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", str(tmp_path / "debian.tar")],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"no Debian 12 could be fetched: {made.stderr.strip()[-200:]}")
    shell(f"docker import {tmp_path}/debian.tar docker.io/library/debian:12", env, tmp_path, SECONDS)
    (tmp_path / "base" / "mirror").write_text(MIRROR)
    base = "FROM docker.io/library/debian:12\nCOPY mirror /etc/apt/apt.conf.d/99mirror\n"
    if CERTIFICATES.exists():  # an index may have a certificate that only this machine knows
        shutil.copy(CERTIFICATES, tmp_path / "base" / "known.crt")
        base += "COPY known.crt /etc/known.crt\nENV PIP_CERT=/etc/known.crt\n"
    (tmp_path / "base" / "Dockerfile").write_text(base)
    shell("docker build -q -t docker.io/library/debian:12 base", env, tmp_path, SECONDS)
    try:
        yield env
    finally:
        left = "docker rm --all --force; docker network prune --force; docker system prune --all --force"
        with contextlib.suppress(subprocess.TimeoutExpired):  # what is left goes with its folder
            subprocess.run(["bash", "-c", left], env=env, check=False, capture_output=True, timeout=SECONDS)
        shutil.rmtree(store, ignore_errors=True)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A Git address of this tree's last commit."""
    clone = ["git", "clone", "--quiet", "--bare", str(ROOT), str(tmp_path / "git" / "rnic")]
    if subprocess.run(clone, check=False, capture_output=True).returncode:
        pytest.skip("this tree is no Git checkout")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        "git",
        "daemon",
        "--export-all",
        f"--base-path={tmp_path / 'git'}",
        "--listen=127.0.0.1",
        f"--port={port}",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as daemon:
        try:
            for _ in range(300):  # waits: for the daemon to listen
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield f"git+git://127.0.0.1:{port}/rnic"
        finally:
            daemon.terminate()


def test_the_page_builds_runs_and_joins_containers() -> None:
    build, together, unchanged = container_blocks()
    assert ADDRESS in build
    assert "docker run" in build
    assert "docker network create" in together
    assert "rnic cdi" in unchanged


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_the_commands_of_the_page(engine: dict[str, str], address: str, tmp_path: Path) -> None:
    (place := tmp_path / "place").mkdir()
    for name in ("Dockerfile", "verbs-tests.sh"):
        shutil.copy(ROOT / "docs" / "ci" / name, place)
    build, together, _ = container_blocks()
    said = shell(build.replace(ADDRESS, address), engine, place, 2400)
    assert said.count("MsgRate") >= 4, "both ends of a run with losses, and of one without"
    looked = shell("docker run --rm verbs rnic/bin/rnic devinfo", engine, place, SECONDS)
    assert "rnic.engine" in looked, "the image has what its compiler builds"
    assert "MsgRate" in shell(together, engine, place, SECONDS)


OWN_ETC = """\
mkdir -p etc && mount -t tmpfs none etc && mkdir etc/new etc/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=$PWD/etc/new,workdir=$PWD/etc/work /etc
"""


def with_own_etc(script: str) -> str:
    """A command that runs a script in a mount namespace, where ``/etc/cdi`` is its own."""
    return shlex.join(["unshare", "--mount", "bash", "-euo", "pipefail", "-c", OWN_ETC + script])


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_images_that_nobody_changed(engine: dict[str, str], tmp_path: Path) -> None:
    """Two containers of Debian's perftest by CDI, with losses; then the same image by mounts, and one of musl."""
    (place := tmp_path / "place").mkdir()
    env = {**engine, "PATH": f"{Path(sys.executable).parent}:{engine['PATH']}"}
    unchanged = container_blocks()[2].replace("rnic cdi", f"rnic cdi --folder {tmp_path}/folder")
    said = shell(with_own_etc(unchanged), env, place, 900)
    assert said.count("MsgRate") >= 1
    assert said.count("no rule broken") >= 2, "a recording of each NIC"
    assert re.search(r"sequence NAKs [1-9]", said), "packets were lost"
    both = "ib_write_bw > server & until ib_write_bw 127.0.0.1; do sleep 1; done; wait"
    mounted = f"podman run --rm $(rnic cdi --options --folder {tmp_path}/folder) perftest sh -c '{both}'"
    assert "MsgRate" in shell(mounted, env, place, SECONDS)
    (place / "Dockerfile").write_text("FROM scratch\nCOPY ld-musl /lib/ld-musl-x86_64.so.1\nCMD /none\n")
    (place / "ld-musl").touch()
    musl = f"""
podman build -t musl .
rnic cdi --folder {tmp_path}/folder
! podman run --rm --device rnic.dev/nic=0 musl 2>&1
"""
    assert "rnic's libraries are made for glibc" in shell(with_own_etc(musl), env, place, SECONDS)
