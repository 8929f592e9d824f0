"""The how-to on containers, by Podman under Docker's name: the image is built from this tree's commits, containers run.

Takes minutes and wants root, ``podman``, ``netavark``, ``aardvark-dns``, ``iptables`` (netavark calls it and does not
say so), ``mmdebstrap``, ``git``, Debian's mirror and a package index. No registry is asked: what stands for
``debian:12`` is made by ``mmdebstrap``. Storage, networks and images are of this test alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
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
exec podman --root {place}/root --runroot {place}/run --storage-driver {driver} --cgroup-manager cgroupfs "$@"
"""
SECONDS = 300
"""Of a command that builds nothing: it is a hang that ends, and a machine that does much besides takes its time."""


def container_blocks() -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    return [block.code for block in blocks_of(PAGE.name, text) if block.note == "in containers"]


def shell(command: str, env: dict[str, str], place: Path, seconds: int) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], env=env, cwd=place, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, check=False,
    )  # fmt: skip
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
    (docker := tmp_path / "bin" / "docker").write_text(
        ENGINE.format(place=store, driver=storage_driver(tmp_path / "layers"))
    )
    docker.chmod(0o755)
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
    if CERTIFICATES.exists():  # an index may have a certificate that only this machine knows
        shutil.copy(CERTIFICATES, tmp_path / "base" / "known.crt")
        (tmp_path / "base" / "Dockerfile").write_text(
            "FROM docker.io/library/debian:12\nCOPY known.crt /etc/known.crt\nENV PIP_CERT=/etc/known.crt\n"
        )
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
            for _ in range(100):  # waits: for the daemon to listen
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield f"git+git://127.0.0.1:{port}/rnic"
        finally:
            daemon.terminate()


def test_the_page_builds_runs_and_joins_containers() -> None:
    build, together = container_blocks()
    assert ADDRESS in build
    assert "docker run" in build
    assert "docker network create" in together


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_the_commands_of_the_page(engine: dict[str, str], address: str, tmp_path: Path) -> None:
    (place := tmp_path / "place").mkdir()
    for name in ("Dockerfile", "verbs-tests.sh"):
        shutil.copy(ROOT / "docs" / "ci" / name, place)
    build, together = container_blocks()
    said = shell(build.replace(ADDRESS, address), engine, place, 2400)
    assert said.count("MsgRate") >= 4, "both ends of a run with losses, and of one without"
    looked = shell("docker run --rm verbs rnic/bin/rnic devinfo", engine, place, SECONDS)
    assert "rnic.engine" in looked, "the image has what its compiler builds"
    assert "MsgRate" in shell(together, engine, place, SECONDS)
