"""The tree of device paths: what stands in it, what moves, and what becomes of it."""

from __future__ import annotations

import logging
import os
import random
from functools import partial
from pathlib import Path

import pytest

from rnic.device.config import NicConfig
from rnic.device.faults import set_gid, set_pkey
from rnic.device.nic import Nic
from rnic.nic_process.sysfs_tree import (
    HW_COUNTERS,
    REFRESH_NS,
    SysfsTree,
    counter_files,
    device_files,
    format_gid,
    table_files,
    verbs_files,
)
from rnic.nic_process.sysfs_view import make_view
from rnic.spec.appearance import Appearance
from rnic.state.counters import PORT_COUNTERS


def _nic(name: str = "rnic0", address: bytes = b"\x7f\0\0\1", look: Appearance | None = None) -> Nic:
    config = NicConfig(address, name=name, log_max_qps=4, pkeys=(0xFFFF, 0x8001), appearance=look or Appearance())
    return Nic(config, rng=random.Random(1))


def test_what_stands_still_is_spelled_as_the_kernel_spells_it() -> None:
    files = device_files(_nic())
    assert files["node_guid"] == "0200:007f:0000:01b7"
    assert files["ports/1/cap_mask"] == "0x04010000"
    assert files["fw_ver"] == "0.1.0"
    assert files["device/local_cpus"].replace(",", "").lstrip("0") == f"{(1 << (os.cpu_count() or 1)) - 1:x}"
    assert verbs_files(_nic("rnic12")) == {"ibdev": "rnic12", "abi_version": "1", "dev": "231:204"}
    assert format_gid(bytes(range(16))) == "0001:0203:0405:0607:0809:0a0b:0c0d:0e0f"


@pytest.mark.skipif(os.name != "posix" or not Path("/proc/net").exists(), reason="interfaces are known on Linux alone")
def test_the_interface_of_the_address_is_named() -> None:
    files = device_files(_nic())
    assert table_files(_nic())["ports/1/gid_attrs/ndevs/0"] == files["parent"] == "lo"
    assert "device/net/lo/dev_port" in files
    nobodys = _nic(address=b"\xc0\0\2\7")
    assert not [path for path in device_files(nobodys) | table_files(nobodys) if "ndevs" in path or "net/" in path]


def test_the_tables_are_spelled_as_the_kernel_spells_them() -> None:
    files = table_files(_nic())
    assert files["ports/1/gids/0"] == "0000:0000:0000:0000:0000:ffff:7f00:0001"
    assert files["ports/1/gid_attrs/types/0"] == "RoCE v2"
    assert (files["ports/1/pkeys/0"], files["ports/1/pkeys/1"]) == ("0xffff", "0x8001")


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    tree, nic = SysfsTree(tmp_path), _nic()
    tree.add(nic)
    port = tree.root / "all/sys/class/infiniband/rnic0/ports/1"
    for name in ("counters/port_xmit_packets", "counters/symbol_error", "state"):
        (port / name).write_text("x")
    tree.refresh([nic], 0, lambda _: {"tx_packets": 7})
    assert (port / "counters/port_xmit_packets").read_text().strip() == "7"
    assert (port / "counters/symbol_error").read_text() == "x"
    assert (port / "state").read_text() == "x"


def test_the_tables_follow_events(tmp_path: Path) -> None:
    """Whoever looks under ``/sys`` sees the entries that ``ibv_query_gid`` and ``ibv_query_pkey`` tell."""
    tree, nic = SysfsTree(tmp_path), _nic()
    tree.add(nic)
    port = tree.root / "all/sys/class/infiniband/rnic0/ports/1"

    def seen(table: str) -> list[str]:
        return [(port / table / name).read_text().strip() for name in sorted(os.listdir(port / table))]

    was = format_gid(nic.config.gid_table[0])
    moved = bytes(10) + b"\xff\xff\x0a\0\0\7"
    set_gid(nic, 2, moved)
    set_pkey(nic, 1, 0x8765)
    tree.refresh([nic], 0)
    assert seen("gids") == [was, format_gid(bytes(16)), format_gid(moved)]
    assert os.listdir(port / "gid_attrs/types") in (["0", "2"], ["2", "0"])
    assert seen("pkeys") == ["0xffff", "0x8765"]
    set_gid(nic, 2, bytes(16))
    set_pkey(nic, 0, 0)
    tree.refresh([nic], 0)
    assert seen("gids") == [was, format_gid(bytes(16)), format_gid(bytes(16))]
    assert os.listdir(port / "gid_attrs/types") == os.listdir(port / "gid_attrs/ndevs") == ["0"]
    assert seen("pkeys") == ["0x0000", "0x8765"]


def test_counters_are_sums_of_ours() -> None:
    counted = {"tx_packets": 7, "rx_packets": 5, "tx_bytes": 4001, "rx_bytes": 8, "drop_bad_icrc": 2, "drop_bad_ip": 1}
    files = counter_files(counted)
    base = "ports/1/counters/"
    assert files[base + "port_xmit_packets"] == "7"
    assert files[base + "port_rcv_packets"] == "5"
    assert (files[base + "port_xmit_data"], files[base + "port_rcv_data"]) == ("1000", "2")
    assert files[base + "port_rcv_errors"] == "3"
    assert files["ports/1/hw_counters/drop_bad_icrc"] == "2"
    assert files["ports/1/hw_counters/rx_icrc_encapsulated"] == "2"
    wanted = {base + name for name in PORT_COUNTERS} | {"ports/1/hw_counters/" + name for name in HW_COUNTERS}
    assert wanted < set(files)
    assert all(files[path].isdigit() for path in wanted)
    assert counter_files(counted, ["rx_packets", "gone"]) == {
        path: text
        for path, text in files.items()
        if path.endswith(("/rx_packets", "_rcv_packets", "/rcvd_pkts")) and text != "0"
    }


def test_files_of_counters_hold_one_line(tmp_path: Path) -> None:
    """Whatever was there: a counter of a slot that went is one of another program when it comes again."""
    tree, nic = SysfsTree(tmp_path), _nic()
    tree.add(nic)
    port = tree.root / "all/sys/class/infiniband/rnic0/ports/1"

    def counters(count: int, _: object) -> dict[str, int]:
        return {"tx_packets": count, "slot_1_tx_packets": count + 1}

    for count in (9, 1000, 20, 3, 44):
        tree.refresh([nic], 0, partial(counters, count))
        assert (port / "counters/port_xmit_packets").read_text() == f"{count}\n"
        assert (port / "hw_counters/slot_1_tx_packets").read_text() == f"{count + 1}\n"
    tree.refresh([nic], 0, lambda _: {"tx_packets": 50})
    assert not (port / "hw_counters/slot_1_tx_packets").exists()
    tree.refresh([nic], 0, lambda _: {"tx_packets": 50, "slot_1_tx_packets": 7})
    assert (port / "hw_counters/slot_1_tx_packets").read_text() == "7\n"


def test_tree_shows_devices_and_what_they_count(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    nics = [_nic("rnic0"), _nic("rnic1", b"\x7f\0\0\2")]
    for nic in nics:
        tree.add(nic)
    root = tree.root / "all"
    assert sorted(os.listdir(root / "sys/class/infiniband")) == ["rnic0", "rnic1"]
    assert (root / "sys/class/infiniband/rnic1/ports/1/gids/0").read_text().endswith(":7f00:0002\n")
    assert (root / "sys/class/infiniband_verbs/uverbs1/ibdev").read_text() == "rnic1\n"
    assert (root / "sys/class/infiniband_verbs/uverbs1/device/vendor").read_text() == "0xffff\n"
    assert (root / "sys/class/infiniband_verbs/abi_version").read_text() == "6\n"
    assert (root / "dev/infiniband/uverbs0").is_char_device()
    sent = root / "sys/class/infiniband/rnic0/ports/1/counters/port_xmit_packets"
    assert sent.read_text() == "0\n"
    nics[0].counters.bump("tx_packets", 41)
    tree.refresh(nics, 10)
    assert sent.read_text() == "41\n"
    assert tree.due_ns == 10 + REFRESH_NS
    tree.remove("rnic0")
    assert os.listdir(root / "sys/class/infiniband") == ["rnic1"]
    assert sorted(os.listdir(root / "dev/infiniband")) == ["umad1", "uverbs1"]
    assert not (root / "sys/devices/virtual/infiniband/rnic0").exists()
    tree.remove("rnic0")
    tree.refresh(nics, 20)
    tree.close()
    assert not tree.root.exists()


def test_a_view_shows_its_devices_alone_and_real_paths_are_the_trees(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    for index in range(3):
        tree.add(_nic(f"rnic{index}", bytes((127, 0, 0, index + 1))))
    seen = make_view(tmp_path, ["rnic2", "rnic0"])
    assert make_view(tmp_path, ["rnic0", "rnic2"]) == seen
    assert sorted(os.listdir(seen / "sys/class/infiniband")) == ["rnic0", "rnic2"]
    assert sorted(os.listdir(seen / "dev/infiniband")) == ["umad0", "umad2", "uverbs0", "uverbs2"]
    device = seen / "sys/class/infiniband/rnic2"
    assert (device / "ports/1/link_layer").read_text() == "Ethernet\n"
    assert device.resolve() == (tree.root / "all/sys/devices/virtual/infiniband/rnic2").resolve()


def test_port_state_follows_the_link(tmp_path: Path) -> None:
    tree, nic = SysfsTree(tmp_path), _nic()
    tree.add(nic)
    state = tree.root / "all/sys/class/infiniband/rnic0/ports/1/state"
    assert state.read_text() == "4: ACTIVE\n"
    nic.set_link(False)
    tree.refresh([nic], 0)
    assert state.read_text() == "1: DOWN\n"


def test_a_tree_that_cannot_be_written_is_said_once_and_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING, "rnic"):
        tree = SysfsTree(blocked)
        tree.add(_nic())
        tree.refresh([_nic()], 0)
        tree.remove("rnic0")
        tree.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"device paths in {blocked / 'paths'}: Not a directory: programs are shown none"
    ]


def test_what_an_earlier_process_left_is_not_shown(tmp_path: Path) -> None:
    SysfsTree(tmp_path).add(_nic("rnic7"))
    tree = SysfsTree(tmp_path)
    assert os.listdir(tree.root / "all/sys/class/infiniband") == []


def test_counts_that_shrink_leave_no_digits_behind(tmp_path: Path) -> None:
    tree, nic = SysfsTree(tmp_path), _nic()
    nic.counters.bump("tx_packets", 1000)
    tree.add(nic)
    nic.counters.clear()
    tree.refresh([nic], 0)
    counted = tree.root / "all/sys/class/infiniband/rnic0/ports/1/counters/port_xmit_packets"
    assert counted.read_text() == "0\n"


LIKE_MLX5 = Appearance(gids="full", rate=400, numa=1, pci="0000:18:00.0")


def test_a_device_that_is_a_pci_function_is_found_by_its_address(tmp_path: Path) -> None:
    """NCCL, UCX and hwloc go by the real path of ``device``."""
    tree, nic = SysfsTree(tmp_path), _nic("mlx5_0", look=LIKE_MLX5)
    tree.add(nic)
    view = make_view(tmp_path, ["mlx5_0"])
    for root in (tree.root / "all", view):
        seen = root / "sys/class/infiniband/mlx5_0"
        assert os.readlink(seen) == "../../devices/pci0000:18/0000:18:00.0/infiniband/mlx5_0"
        assert os.path.realpath(seen / "device").endswith("/sys/devices/pci0000:18/0000:18:00.0")
        assert os.path.realpath(root / "sys/bus/pci/devices/0000:18:00.0") == os.path.realpath(seen / "device")
        assert (seen / "device/numa_node").read_text() == "1\n"
        assert (seen / "device/infiniband/mlx5_0/ports/1/rate").read_text() == "400 Gb/sec (4X NDR)\n"
        assert (root / "sys/class/infiniband_verbs/uverbs0/ibdev").read_text() == "mlx5_0\n"
        assert (root / "sys/class/infiniband_verbs/uverbs0/device/vendor").exists()
    tree.remove("mlx5_0")
    assert not (tree.root / "all/sys/devices/pci0000:18/0000:18:00.0").exists()
    assert os.listdir(tree.root / "all/sys/class/infiniband") == []
    assert os.listdir(tree.root / "all/sys/bus/pci/devices") == []


def test_both_versions_of_each_address_are_listed() -> None:
    files = table_files(_nic("mlx5_0", look=LIKE_MLX5))
    gids = [files[f"ports/1/gids/{index}"] for index in range(4)]
    assert gids[0] == gids[1] == "fe80:0000:0000:0000:0000:007f:0000:01b7"
    assert gids[2] == gids[3] == "0000:0000:0000:0000:0000:ffff:7f00:0001"
    assert [files[f"ports/1/gid_attrs/types/{index}"] for index in range(4)] == ["IB/RoCE v1", "RoCE v2"] * 2


def test_a_view_has_the_devices_that_were_named(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    for name, look in (("mlx5_0", LIKE_MLX5), ("rnic3", None)):
        tree.add(_nic(name, look=look))
    view = make_view(tmp_path, ["rnic3"])
    assert os.listdir(view / "sys/class/infiniband") == ["rnic3"]
    assert os.listdir(view / "sys/class/infiniband_verbs")[-1:] == ["uverbs3"] or "uverbs3" in os.listdir(
        view / "sys/class/infiniband_verbs"
    )
    assert sorted(os.listdir(view / "dev/infiniband")) == ["umad3", "uverbs3"]


def test_a_view_follows_a_device_that_is_made_anew(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.add(_nic("mlx5_0"))
    view = make_view(tmp_path, ["mlx5_0"])
    tree.remove("mlx5_0")
    tree.add(_nic("mlx5_0", look=LIKE_MLX5))
    assert make_view(tmp_path, ["mlx5_0"]) == view
    assert os.path.realpath(view / "sys/class/infiniband/mlx5_0/device").endswith("0000:18:00.0")
