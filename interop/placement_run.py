#!/usr/bin/env python3
"""FLUSH and ATOMIC WRITE against Soft-RoCE of a newer kernel, each side as requester (`./dev interop --placement`).

The same program (`placement.c`) runs in a guest with Linux 6.12 and here under `rnic exec`. Soft-RoCE's library has
FLUSH from rdma-core 45 on. So the guest's program runs on Debian 13's libraries, which mmdebstrap fetches; without them
it asks itself for ATOMIC WRITE alone. Between the two no FLUSH is sent: Linux 6.12 sends the same packet with another
ICRC each time, and answers none whose ICRC is right. Exit status: 0 all right, 1 a run failed, 77 this machine cannot.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from matrix_peer import choose_kernel
from rig import Rig, UnavailableError, booted

HERE = Path(__file__).resolve().parent
KERNEL = "6.12"
SUITE, PACKAGES = "trixie", "libibverbs1,ibverbs-providers,libc6,libnl-3-200,libnl-route-3-200"
PORT, GID_INDEX, SECONDS = 7_466, 1, 60
UNAVAILABLE = 77
_NEWER = """mkdir -p /newer && cd /newer && tar xf /newer.tar && mkdir -p dev sys proc tmp etc/libibverbs.d &&
ln -sfn usr/lib64 lib64 && ln -sfn usr/lib lib &&
cp /bin/placement . && echo driver rxe > etc/libibverbs.d/rxe.driver &&
for each in dev sys proc; do mount --bind /$each $each; done"""


def fetch_newer(folder: Path) -> Path | None:
    """Return an archive of Debian 13's libibverbs and what it needs; ``None`` if it cannot be fetched."""
    if shutil.which("mmdebstrap") is None:
        return None
    tree, archive = folder / "newer", folder / "newer.tar"
    command: list[str | Path] = ["mmdebstrap", "--quiet", "--variant=extract", f"--include={PACKAGES}", SUITE, tree]
    if subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
        return None
    where = "usr/lib/x86_64-linux-gnu"
    wanted = [f"{where}/{name}" for name in ("libibverbs/librxe-rdmav34.so", "ld-linux-x86-64.so.2", "libc.so.6")]
    found = (each for name in ("ibverbs", "nl") for each in (tree / where).glob(f"lib{name}*.so*"))
    wanted += [str(each.relative_to(tree)) for each in found]
    subprocess.run(["tar", "cf", archive, "-C", tree, "usr/lib64", *wanted], check=True)
    return archive


def run(rig: Rig, program: Path, runtime: str, archive: Path | None) -> dict[str, str]:
    """Run both ways; return what each requester said at its end."""
    rig.put(program, "/bin/placement")
    guest = "/bin/placement"
    if archive is not None:
        rig.put(archive, "/newer.tar")
        if not rig.ask_guest(f"{_NEWER} && echo done", SECONDS).endswith("done\n"):
            raise RuntimeError("Debian 13's libraries could not be unpacked in the guest")
        guest = "chroot /newer /placement"

    def own(way: str) -> list[str | Path]:
        """Return the command for the program here, with a NIC process of its own: the last one's may be ending."""
        place = Path(runtime, way)
        place.mkdir(mode=0o700)
        under: list[str | Path] = ["env", f"RNIC_RUNTIME_DIR={place}", sys.executable, "-m", "rnic.cli", "exec"]
        return [*under, "--addr", rig.host[4], "--", program, "rnic0", "0", str(PORT)]

    both = f"({guest} rxe0 {GID_INDEX} {PORT} & sleep 2; {guest} rxe0 {GID_INDEX} {PORT} 127.0.0.1) 2>&1"
    said = {"Soft-RoCE asks itself": rig.ask_guest(both, SECONDS)}
    responder = rig.in_guest(f"{guest} rxe0 {GID_INDEX} {PORT}", SECONDS)
    if not rig.wait_listening("guest", PORT):
        raise RuntimeError(f"the guest's program does not listen: {responder.communicate()[0]}")
    said["rnic asks Soft-RoCE"] = rig.beside(*own("asks"), rig.guest[4], "without-flush").communicate(timeout=SECONDS)[
        0
    ]
    responder.communicate()
    rig.wait_free(4791)
    responder = rig.beside(*own("answers"))
    if not rig.wait_listening("host", PORT):
        raise RuntimeError(f"the program here does not listen: {responder.communicate()[0]}")
    asking = rig.in_guest(f"{guest} rxe0 {GID_INDEX} {PORT} {rig.host[4]} without-flush", SECONDS)
    said["Soft-RoCE asks rnic"] = asking.communicate()[0]
    responder.communicate(timeout=SECONDS)
    return said


def main() -> int:
    """Build the program, boot the guest, and print a line for each way."""
    why_not = choose_kernel(KERNEL)
    if why_not:
        print(f"placement: {why_not}", file=sys.stderr)
        return UNAVAILABLE
    with tempfile.TemporaryDirectory(prefix="rnic-placement-") as name:
        folder = Path(name)
        program = folder / "placement"
        subprocess.run(["cc", "-O1", HERE / "placement.c", "-o", program, "-libverbs"], check=True)
        try:
            with booted() as rig:
                kernel = rig.ask_guest("uname -r").strip()
                said = run(rig, program, name, fetch_newer(folder))
        except UnavailableError as error:
            print(f"placement: {error}", file=sys.stderr)
            return UNAVAILABLE
    for way, text in said.items():
        print(f"{way} (Linux {kernel}): {text.strip()}")
    return 0 if all("placement: ok" in text for text in said.values()) else 1


if __name__ == "__main__":
    os.chdir(HERE.parent)
    sys.exit(main())
