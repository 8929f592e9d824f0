"""Registers of the global block through a NIC process: they are the device's own, and commands run through the HCR."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rnic
from rnic.device.mailboxes import DEV_LIM
from rnic.runtime.remote import RemoteDriver
from rnic.spec import attach
from rnic.spec import commands as cmd
from rnic.spec import registers as reg
from rnic.spec.errors import VerbsError
from rnic.testing import own_network
from rnic.verbs import Context

NET = own_network()
GLOBAL_BLOCK = 0
SECOND_BLOCK = 1
"""The HCR lies in the second block of 128 bytes."""


@pytest.fixture(params=["here", "far"])
def ctx(request: pytest.FixtureRequest, directory: Path) -> Iterator[Context]:
    """A device in this process, and one in the NIC process."""
    if request.param == "here":
        opened = Context(addr="127.0.0.1", port=0)
    else:
        opened = rnic.open(f"{NET}.61", port=4001, directory=directory)
    yield opened
    opened.close()


def test_a_load_shows_what_the_device_is(ctx: Context) -> None:
    """HW_STATUS says that a device that works is ready; a register of the block keeps what is stored to it."""
    driver = ctx.driver
    assert driver.load(GLOBAL_BLOCK, reg.HW_STATUS) & reg.STATUS_READY
    driver.store(GLOBAL_BLOCK, reg.SCRATCH & 0x7F, 0xC0FFEE)
    assert driver.load(GLOBAL_BLOCK, reg.SCRATCH & 0x7F) == 0xC0FFEE
    driver.store(GLOBAL_BLOCK, reg.HW_STATUS, 0)  # read-only
    assert driver.load(GLOBAL_BLOCK, reg.HW_STATUS) & reg.STATUS_READY


def test_a_command_runs_through_the_hcr(ctx: Context) -> None:
    """QUERY_DEV_LIM with its answer in a mailbox of the program's memory; a bad one says its status."""
    driver = ctx.driver
    out = driver.space.map(bytearray(8192), writable=True)
    target = -(-out.va // 32) * 32
    first = reg.HCR_IN_HI & 0x7F

    def run(op: int, modifier: int = 0) -> int:
        for place_, word in enumerate((0, 0, modifier, target >> 32, target & 0xFFFF_FFFF, 0, reg.HCR_GO | op)):
            driver.store(SECOND_BLOCK, first + 4 * place_, word)
        return driver.load(SECOND_BLOCK, first + 24) >> 24

    assert run(cmd.QUERY_DEV_LIM) == cmd.ST_OK
    answer = bytearray(DEV_LIM.size)
    assert driver.space.read(target, answer)
    assert answer == driver.command(cmd.QUERY_DEV_LIM, 0, 0, b"").outbox
    assert run(0xEEE) == cmd.ST_BAD_OP
    driver.space.unmap(out)


def test_the_devices_control_is_not_one_programs_alone(directory: Path) -> None:
    """CONTROL is refused in words while another program has the device open, and does its work once that has ended."""
    with rnic.open(f"{NET}.62", port=4001, directory=directory) as ctx:
        device = ctx.driver.name
        other = "import sys; from rnic.runtime.attach import connect; from rnic.runtime.remote import RemoteDriver; "
        other += f"from pathlib import Path; RemoteDriver(connect(Path({str(directory)!r})), {device!r}); "
        other += "print('open', flush=True); sys.stdin.read()"
        with subprocess.Popen([sys.executable, "-c", other], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
            assert program.stdout is not None
            assert program.stdin is not None
            assert program.stdout.readline() == b"open\n"
            with pytest.raises(VerbsError, match="1 other programs"):
                ctx.driver.store(GLOBAL_BLOCK, reg.CONTROL, 0)
            assert ctx.driver.load(GLOBAL_BLOCK, reg.HW_STATUS) & reg.STATUS_ENABLED
            program.stdin.close()
        ctx.driver.store(GLOBAL_BLOCK, reg.CONTROL, 0)
        assert not ctx.driver.load(GLOBAL_BLOCK, reg.HW_STATUS) & reg.STATUS_ENABLED


def test_what_is_no_register(directory: Path) -> None:
    """An offset that is no register does nothing, as on a device of this process; a message with one is refused."""
    with rnic.open(f"{NET}.63", port=4001, directory=directory) as ctx:
        ctx.driver.store(GLOBAL_BLOCK, 0x7D, 1)
        assert ctx.driver.load(GLOBAL_BLOCK, 0x7D) == 0
        assert isinstance(ctx.driver, RemoteDriver)
        body = attach.REGISTER.pack({"offset": reg.GLOBAL_BYTES, "store": 0, "value": 0})
        with pytest.raises(VerbsError, match="not a register of the global block"):
            ctx.driver.connection.request(attach.MSG_REGISTER, body)
