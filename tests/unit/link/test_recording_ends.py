"""A recording whose file fails: everything passes, nothing waits, and it is said once."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from rnic.cli.serve import open_capture
from rnic.link.loopback import loopback_pair
from rnic.link.pcap import read_packets
from rnic.link.recorder import Recorder
from rnic.wire.bursts import TxBurst
from rnic.wire.packet import build, seal

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no FIFOs")
SIZE = 4096


class Recorded:
    """A link that records to a path, and its other end."""

    def __init__(self, path: Path) -> None:
        inner, self.far = loopback_pair()
        self.errors: list[OSError] = []
        self.file = open_capture(str(path))
        self.link = Recorder(inner, self.file, ended=self.errors.append)
        self.sent = 0

    def send(self, count: int) -> None:
        flow = self.link.local_flow(self.far.address, self.far.port)
        frame = seal(build(0x04, dqpn=5, psn=1, payload=bytes(SIZE)), flow)
        for _ in range(count):
            self.link.send([TxBurst(flow, [frame], len(frame), 1, len(frame))])
            assert len(self.far.receive(8)) == 1, "it passes, whatever becomes of the recording"
        self.sent += count

    def close(self) -> None:
        self.link.close()
        self.far.close()
        self.file.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk() -> None:
    recorded = Recorded(Path("/dev/full"))
    recorded.send(5)
    assert [error.errno for error in recorded.errors] == [errno.ENOSPC]
    assert recorded.link.counters["capture_ended"] == 1
    recorded.close()


def fifo(tmp_path: Path) -> tuple[Path, int]:
    """A FIFO, and a descriptor of its reader."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path, os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    path, reader = fifo(tmp_path)
    recorded = Recorded(path)
    recorded.send(2)
    assert recorded.errors == []
    os.close(reader)
    recorded.send(3)
    assert [error.errno for error in recorded.errors] == [errno.EPIPE]
    assert recorded.link.counters["capture_ended"] == 1
    recorded.close()


def test_a_reader_that_sleeps_gets_whole_packets_once_it_reads(tmp_path: Path) -> None:
    path, reader = fifo(tmp_path)
    recorded = Recorded(path)
    recorded.send(100)
    dropped = recorded.link.counters["capture_dropped"]
    assert 0 < dropped < 100
    seen = b""
    for _ in range(20):
        try:
            while piece := os.read(reader, 1 << 20):
                seen += piece
        except BlockingIOError:
            recorded.send(1)
    recorded.close()
    while piece := os.read(reader, 1 << 20):
        seen += piece
    os.close(reader)
    (tmp_path / "seen.pcapng").write_bytes(seen)
    dropped = recorded.link.counters["capture_dropped"]
    assert len(list(read_packets(tmp_path / "seen.pcapng"))) == recorded.sent - dropped
    assert recorded.errors == []


def test_a_fifo_that_nobody_reads_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    assert stat.S_ISFIFO(path.stat().st_mode)
    with pytest.raises(OSError) as caught:
        open_capture(str(path))
    assert caught.value.errno == errno.ENXIO
