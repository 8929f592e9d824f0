"""What the libraries export beside a source tree of rdma-core, the newest if possible: ``RNIC_RDMA_CORE=DIRECTORY``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from rnic.abi.exports import PRIVATE_VERSIONS, RDMACM, UMAD, VERBS, VERBS_BEFORE_2008, VERBS_PRIVATE

TREE = Path(os.environ.get("RNIC_RDMA_CORE", ""))

pytestmark = pytest.mark.skipif(
    not (TREE / "libibverbs" / "libibverbs.map.in").exists(),
    reason="RNIC_RDMA_CORE names no source tree of rdma-core",
)


def versions(path: Path) -> dict[str, set[str]]:
    """Names of each version of a linker's version script."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = {}
    for version, body in re.findall(r"(\S+) \{(.*?)\}", text, re.DOTALL):
        listed = body.partition("global:")[2].partition("local:")[0]
        found[version] = set(re.findall(r"\w+", listed))
    return found


def private_number() -> str:
    """Number of the private version."""
    text = (TREE / "CMakeLists.txt").read_text(encoding="utf-8")
    return str(re.findall(r'set\(IBVERBS_PABI_VERSION "(\d+)"\)', text)[0])


def missing(tree: dict[str, set[str]], prefix: str, ours: Mapping[str, tuple[str, ...]]) -> dict[str, set[str]]:
    """What versions of the tree have beyond ours."""
    public = {name: names for name, names in tree.items() if name.startswith(prefix) and "PRIVATE" not in name}
    gone = {name: names - set(ours.get(name.removeprefix(prefix), ())) for name, names in public.items()}
    return {name: names for name, names in gone.items() if names}


def test_every_public_name_is_exported_in_its_version() -> None:
    ours = VERBS | {"1.0": VERBS["1.0"] + VERBS_BEFORE_2008}
    assert missing(versions(TREE / "libibverbs" / "libibverbs.map.in"), "IBVERBS_", ours) == {}
    assert missing(versions(TREE / "librdmacm" / "librdmacm.map"), "RDMACM_", RDMACM) == {}
    assert missing(versions(TREE / "libibumad" / "libibumad.map"), "IBUMAD_", UMAD) == {}


def test_the_private_version_is_there() -> None:
    number = private_number()
    assert number in PRIVATE_VERSIONS, f"rdma-core's private version is {number}: add it to PRIVATE_VERSIONS"
    tree = versions(TREE / "libibverbs" / "libibverbs.map.in")
    wanted = {name.replace("@IBVERBS_PABI_VERSION@", number) for name in tree["IBVERBS_PRIVATE_@IBVERBS_PABI_VERSION@"]}
    # the name with the number in it is split by the search for words
    wanted -= {"IBVERBS_PABI_VERSION", "verbs_register_driver_"}
    assert wanted <= {*VERBS_PRIVATE, *PRIVATE_VERSIONS[number]}


@pytest.mark.parametrize(
    ("header", "prefix", "ours"),
    [
        ("libibverbs/verbs.h", "ibv", VERBS),
        ("librdmacm/rdma_cma.h", "rdma", RDMACM),
        ("librdmacm/rsocket.h", "r", RDMACM),
    ],
)
def test_every_function_that_a_header_declares_is_exported(
    header: str, prefix: str, ours: Mapping[str, tuple[str, ...]]
) -> None:
    text = re.sub(r"/\*.*?\*/", "", (TREE / header).read_text(encoding="utf-8"), flags=re.DOTALL)
    declared = set(re.findall(rf"^(?!static|#|\t)[\w ]+?[ *]+({prefix}\w+)\([^{{}};]*\);", text, re.MULTILINE))
    assert len(declared) > 10
    # of the private version, and of static builds alone
    declared -= {"ibv_wr_opcode_str", "ibv_static_providers"}
    assert declared <= {name for names in ours.values() for name in names}
