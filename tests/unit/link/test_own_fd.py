"""Descriptors of rnic, which are told from those that a program opened under their numbers."""

from __future__ import annotations

import os
import sys

import pytest

from rnic.link.own_fd import OwnFd

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no program is attached to a NIC process")


def test_it_is_closed_once() -> None:
    read, write = os.pipe()
    own = OwnFd(read, private=True)
    assert own.valid()
    own.close()
    assert (own.fd, own.valid()) == (-1, False)
    own.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)
    os.close(write)


def test_the_programs_own_file_under_its_number_is_left_alone() -> None:
    read, write = os.pipe()
    own = OwnFd(read, private=True)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, read)
    assert not own.valid()
    own.close()
    os.fstat(read)
    for fd in (read, write, null):
        os.close(fd)


@pytest.mark.skipif(not os.path.exists("/proc/self/fdinfo"), reason="without /proc all eventfds are alike")
def test_another_eventfd_is_not_closed() -> None:
    own = OwnFd(os.eventfd(0), private=False)
    other = os.eventfd(0)
    number = own.fd
    os.dup2(other, number)
    own.close()
    os.fstat(number)
    os.close(number)
    os.close(other)


def test_private_ones_keep_away_from_the_standard_streams() -> None:
    kept = os.dup(0)
    try:
        os.close(0)
        opened = os.open("/dev/null", os.O_RDWR)
        assert opened == 0
        own = OwnFd(opened, private=True)
        assert own.fd > 2
        own.close()
    finally:
        os.dup2(kept, 0)
        os.close(kept)
