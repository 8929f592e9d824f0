"""Unit tests mirror the source: who changes a module knows which file tests it, or where else it is tested."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("engine", "device", "runtime", "nic_process", "cm", "arrays", "verbs")
PARTS = (".py", ".c", ".h", ".pxi")

SEVERAL = {
    "device": {
        "context_memory": "contexts through commands, cache and pages that a driver lends",
        "documented_contexts": "queue pairs of 002's 192 bytes alone, through the whole device",
        "dma_faults": "host memory that stops answering at any access of the device",
        "eviction": "every kind of context that leaves the cache and comes back",
        "isolation": "64 queue pairs that disturb each other nowhere",
        "key_data_rows": "each row of a table, of which every module does some",
        "register_garbage": "all that reads a window's words",
    },
    "engine": {
        "cycles": "which files of the C use which",
        "hostile": "all of the C against memory and packets of somebody who means ill",
        "share": "what the engine does without the reference, of all stages",
        "steps": "the names of the steps of requester, completer and responder in both executors",
    },
    "runtime": {"own_errors": "the last guards of every loop"},
    "verbs": {
        "creation": "what is left of any object whose creation fails half-way",
        "reasons": "what every verb, and every request that fails, says of a mistake",
        "refusals": "calls that are refused, in the catalog's words",
    },
}
"""Files of unit tests that name no module, and what they test."""

ELSEWHERE = {
    "engine": {
        "scripts, property and fuzz: every executor against the reference": (
            "by_reference completer completion datagram dispatch encap icrc inflight memory_key receive_queue reorder"
            " responder responder_reads response_queue send_queue sge timers"
        ),
        "unit/coyote/test_engine.py and unit/mem/test_tlb.py": "translation",
        "unit/coyote/test_transfers.py": "transfers",
        "unit/engine/test_memory_backends.py": "backends guarded in_process own_process proc_mem",
        "unit/engine/test_device.py, by what is fetched before it is asked for": "prefetch",
        "netsim and unit/device/test_congestion.py": "congestion rate_limit",
        "unit/engine/test_steps.py": "step",
        "abi and verbs/test_bypass.py: programs that run the engine themselves": (
            "arena_map bypass bypass_driver bypass_private driver driver_private driver_progress_thread own_fd punt rpc"
            " shm_loopback"
        ),
        "all that runs compiled": (
            "state eventfd nocancel device_lock queues arithmetic bth byteorder context lists message packet psn"
            " records"
        ),
    },
    "device": {
        "unit/device/test_nic.py and test_commands.py: what whole packets and commands go through": (
            "memory_commands context_changes entry_ring eq queue_pair receiving resources rings keyed_memory mailboxes"
            " refusal icm host"
        ),
        "unit/device/test_global_block.py": "non_rdma",
        "unit/runtime/test_faults.py": "faults",
        "verbs/test_xrc.py": "xrc",
        "cli/test_inspect.py": "inspect",
        "unit/cm and verbs/test_service.py": "mad_agent",
    },
    "runtime": {
        "verbs/test_nic_process.py: programs on a NIC process": "remote",
        "unit/runtime/test_own_errors.py": "report",
    },
    "nic_process": {
        "verbs/test_nic_process.py, test_limits.py, test_service.py": ("accept client connections devices process"),
        "verbs/test_bypass.py and abi": "bypass_slot shm_loopback sysfs_view",
        "verbs/test_bypass_faults.py": "fault_page",
        "unit/engine/test_capture.py": "capture_rings",
        "cli/test_inspect.py": "inspect",
        "unit/nic_process/test_memfd.py": "descriptor",
    },
    "cm": {
        "unit/cm/test_agent.py": "ids message_fields records state_machine",
        "unit/cm/test_cmid.py": "cmid_datagrams cmid_events cm_enums",
        "unit/cm/test_cm_connection.py": "cm_listener manager",
        "unit/arrays/test_connection.py": "line_socket rc_connection work_queue",
    },
    "arrays": {"unit/arrays/test_connection.py": "exports listener one_sided"},
    "verbs": {
        "tests/verbs": "batch cq dm memory multicast qp srq xrc",
        "verbs/test_nic_process.py": "remote",
    },
}
"""Where modules are tested that have no file of unit tests."""


def modules(room: str) -> set[str]:
    """Names of a room's modules; a part of a Cython module is without its leading underscore."""
    found = (path for path in (ROOT / "src" / "rnic" / room).rglob("*") if path.suffix in PARTS)
    return {path.stem.lstrip("_") for path in found} - {"init__", room}


def names_of_tests(room: str) -> set[str]:
    return {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "unit" / room).glob("test_*.py")}


def module_of(name: str, known: set[str]) -> str | None:
    """``global_block`` for ``global_block`` and for ``global_block_garbage``."""
    fitting = [each for each in known if f"{name}_".startswith(f"{each}_")]
    return max(fitting, key=len, default=None)


@pytest.mark.parametrize("room", ROOMS)
def test_a_file_of_unit_tests_names_a_module_of_its_room(room: str) -> None:
    """``test_X.py`` or ``test_X_more.py`` for ``X.py``, ``X.c`` or ``_X.pxi``; others stand above."""
    assert {name for name in names_of_tests(room) if module_of(name, modules(room)) is None} == set(
        SEVERAL.get(room, ())
    )


@pytest.mark.parametrize("room", ROOMS)
def test_a_module_without_such_a_file_says_where_it_is_tested(room: str) -> None:
    known = modules(room)
    mirrored = {module_of(name, known) for name in names_of_tests(room)}
    listed = [name for names in ELSEWHERE.get(room, {}).values() for name in names.split()]
    assert sorted(known - mirrored) == sorted(listed)
