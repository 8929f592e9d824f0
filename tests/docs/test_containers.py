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

from tests.abi.test_ci_example import wheels
from tests.docs.test_examples import ROOT, blocks_of

__all__ = ["wheels"]
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


def storage_driver(place: Path, *namespaces: str) -> str:
    """``vfs`` copies the whole image for each container, half a gigabyte: only where layers cannot be mounted."""
    place.mkdir()
    for name in ("lower", "upper", "work", "seen"):
        (place / name).mkdir()
    layers = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
    mount = ["unshare", *namespaces, "--mount", "mount", "-t", "overlay", "overlay", "-o", layers, str(place / "seen")]
    return "vfs" if subprocess.run(mount, capture_output=True, check=False).returncode else "overlay"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a shell that has ``docker``, with ``debian:12`` in store."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    if os.geteuid() != 0:
        pytest.skip("not root, who alone makes networks for containers here")
    for name in ("bin", "base"):
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


ORDINARY = """\
set -euo pipefail
cd
python3 -m venv venv && venv/bin/pip install --quiet {wheel}
podman import debian.tar debian
podman build --quiet --isolation chroot --layers=false --network host -t perftest .
options=$(venv/bin/rnic cdi --options --faults drop=1% --capture captures)
podman network create lab
podman run -d --network lab --name server $options perftest ib_write_bw -n 500
for _ in $(seq 30); do
    podman run --rm --network lab $options perftest ib_write_bw -n 500 server && break
    sleep 1
done
podman rm server
podman run -d --pod new:pod --name server --env RNIC_ADDR=127.0.0.1 $options perftest ib_write_bw -n 500
for _ in $(seq 30); do
    podman run --rm --pod pod --env RNIC_ADDR=127.0.0.2 $options perftest ib_write_bw -n 500 127.0.0.1 && break
    sleep 1
done
venv/bin/rnic check captures/*.pcapng
"""


@pytest.fixture
def user(engine: dict[str, str], tmp_path: Path) -> Iterator[tuple[Path, list[str]]]:
    """The home of a new user, with the files of an image of perftest; and what runs a command as that user."""
    missing = [name for name in ("slirp4netns", "newuidmap", "catatonit") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)}: not installed")
    if Path(sys.executable).resolve() != Path("/usr/bin/python3").resolve():
        pytest.skip(f"{sys.executable} is not of the system's Python, which every user can run")
    home = Path(tempfile.mkdtemp(prefix="rnic-"))
    name = home.name.replace("_", "x")
    subprocess.run(["useradd", "--create-home", "--home-dir", str(home / "home"), name], check=True)
    place = home / "home"
    shutil.copytree(tmp_path / "base", place, dirs_exist_ok=True)
    shutil.copy(tmp_path / "debian.tar", place)
    text = (place / "Dockerfile").read_text().replace("docker.io/library/debian:12", "debian")
    (place / "Dockerfile").write_text(text + "RUN apt-get update && apt-get install -y perftest\n")
    shutil.copy(engine["CONTAINERS_CONF"], place / "containers.conf")
    (home / "run").mkdir(mode=0o700)
    for each in (home, *home.rglob("*")):
        shutil.chown(each, name, name)
    given = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "PIP_CERT", "PIP_INDEX_URL")
    env = {each: os.environ[each] for each in given if each in os.environ}
    env |= {"HOME": str(place), "XDG_RUNTIME_DIR": str(home / "run"), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    env |= {"CONTAINERS_CONF": f"{place}/containers.conf", "LANG": "C.UTF-8"}
    env["STORAGE_DRIVER"] = storage_driver(tmp_path / "own-layers", "--user", "--map-root-user")
    command = ["env", "-i", *(f"{key}={value}" for key, value in env.items())]
    command += ["setpriv", f"--reuid={name}", f"--regid={name}", "--init-groups"]
    try:
        yield place, command
    finally:
        clean = "cd; podman system reset --force; podman system migrate"
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([*command, "sh", "-c", clean], check=False, capture_output=True, timeout=SECONDS)
        subprocess.run(["userdel", name], check=False)
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_an_ordinary_user(user: tuple[Path, list[str]], wheels: Path) -> None:
    """Two containers on a network of the user's, and two in a pod; rnic is a wheel in the user's environment."""
    home, command = user
    for wheel in wheels.glob("*.whl"):
        shutil.copy(wheel, home)
    (wheel,) = home.glob("rnic-*.whl")
    script = home / "script"
    script.write_text(ORDINARY.format(wheel=f"--no-index --find-links . {wheel.name}"))
    said = shell(shlex.join([*command, "bash", str(script)]), dict(os.environ), home, 900)
    assert said.count("MsgRate") == 2, "a client on the network, and one in the pod"
    assert said.count("no rule broken") == 4
    assert re.search(r"sequence NAKs [1-9]", said), "packets were lost"
