from __future__ import annotations

import os
import select
from collections.abc import Iterator

import pytest

from rnic.runtime.wait import wait_readable


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("has_poll", [True, False])
def test_waiting(pipe: tuple[int, int], has_poll: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_poll:
        monkeypatch.delattr(select, "poll")
    read, write = pipe
    assert not wait_readable([read], 0)
    assert not wait_readable([read], 0.001)
    os.write(write, b"x")
    assert wait_readable([read], 0)
    assert wait_readable([read], None)
    assert wait_readable([read], float(1 << 62)), "no system call takes so many milliseconds"


def test_large_descriptors(pipe: tuple[int, int]) -> None:
    resource = pytest.importorskip("resource", reason="this system has no resource limits")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2001:
        pytest.skip(f"this system allows {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2001), hard))
    high = os.dup2(pipe[0], 2000)
    try:
        assert not wait_readable([high], 0)
        os.write(pipe[1], b"x")
        assert wait_readable([high], 0)
    finally:
        os.close(high)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
