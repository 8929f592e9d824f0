"""Programs that read a device's packets while they pass: what they get, and that nothing waits for them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

import rnic
from rnic.judge import Finding, Judge
from rnic.link.pcap import CapturedPacket, read_packets
from rnic.nic_process.live_capture import MAX_READERS
from rnic.runtime.attach import ProcessConnection, ask, connect
from rnic.spec import attach
from rnic.spec.errors import VerbsError
from rnic.testing import own_network
from tests.verbs import test_bypass
from tests.verbs.test_bypass import Side, opened, slots, until
from tests.verbs.test_nic_process import needs_engine

pytestmark = [pytest.mark.slow, needs_engine]
nic = test_bypass.nic
NET = own_network()
HEADERS = 14 + 20 + 8
SIZES = (2, 4096, 5000, 50_000)


class Reader:
    """Reads a device's packets into a file."""

    def __init__(self, nic: Path, path: Path, device: str = "rnic0") -> None:
        connection = connect(nic)
        assert connection is not None
        self.connection: ProcessConnection = connection
        self._path = path
        source, sending = socket.socketpair()
        try:
            connection.request(attach.MSG_CAPTURE, device.encode(), [sending.fileno()])
        except VerbsError:
            source.close()
            connection.close()
            raise
        finally:
            sending.close()
        self._thread = threading.Thread(target=self._copy, args=(source,))
        self._thread.start()

    def _copy(self, source: socket.socket) -> None:
        with source, self._path.open("wb") as copy:
            while data := source.recv(1 << 16):
                copy.write(data)

    def packets(self) -> list[CapturedPacket]:
        """End it; what it has read."""
        self.connection.close()
        self._thread.join(20)
        assert not self._thread.is_alive()
        return list(read_packets(self._path))


def exchange(side: Side) -> None:
    """Messages there and back."""
    for size in SIZES:
        side.send(size)
        assert side.receive() == size


def sends(packets: list[CapturedPacket]) -> int:
    """Packets of SENDs, each counted once: a sender that has no core repeats some."""
    headers = [packet.data[HEADERS : HEADERS + 12] for packet in packets]
    return len({(head[5:8], head[9:12]) for head in headers if head[0] < 6})


WANTED = 2 * sum(-(-size // 4096) for size in SIZES)
"""Packets of SENDs of an exchange."""


def judged(packets: list[CapturedPacket]) -> set[str]:
    """The rules that packets break."""
    found: list[Finding] = []
    judge = Judge(found.append)
    for packet in packets:
        judge.frame(packet.time_ns, packet.linktype, packet.data, packet.length)
    judge.finish()
    return {each.rule for each in found}


@contextmanager
def device(nic: Path, host: int, capture: Path | None = None) -> Iterator[None]:
    """A device that stays."""
    with rnic.open(f"{NET}.{host}", port=4791, directory=nic, capture=capture, bypass=True):
        yield


@pytest.mark.parametrize("shm", [pytest.param("0", marks=pytest.mark.full), "1"], ids=["wire", "rings"])
def test_a_reader_gets_what_programs_of_one_device_send_each_other(
    nic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shm: str
) -> None:
    """Those that come later hand their packets over and stay fast; one more reader begins in the middle."""
    monkeypatch.setenv("RNIC_SHM", shm)
    with device(nic, 81):
        first = Reader(nic, tmp_path / "first.pcapng")
        with opened(nic, 81, events=False, port=4791) as (side, _):
            exchange(side)
            second = Reader(nic, tmp_path / "second.pcapng")
            exchange(side)
            assert not any(slot["served"] for slot in slots(nic) if slot["counters"].get("tx_packets"))
        packets = first.packets()
    assert sends(packets) == 2 * WANTED
    assert not judged(packets)
    assert WANTED <= sends(second.packets()) < 2 * WANTED


@pytest.mark.parametrize("shm", ["0", "1"], ids=["wire", "rings"])
def test_programs_that_were_there_before_hand_their_packets_over(
    nic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shm: str
) -> None:
    """As long as somebody reads them, and stay fast."""
    monkeypatch.setenv("RNIC_SHM", shm)
    with opened(nic, 82, events=False, port=4791) as (side, _):
        exchange(side)
        reader = Reader(nic, tmp_path / "run.pcapng")
        exchange(side)
        packets = reader.packets()
        exchange(side)
        assert not any(slot["served"] for slot in slots(nic))
    assert WANTED <= sends(packets) < 2 * WANTED, "what the exchanges before and behind it repeat, at most"
    assert not judged(packets)


@pytest.mark.full
def test_a_device_that_records_gives_its_readers_the_same(nic: Path, tmp_path: Path) -> None:
    with device(nic, 83, capture=tmp_path / "all.pcapng"), opened(nic, 83, events=False, port=4791) as (side, _):
        exchange(side)
        reader = Reader(nic, tmp_path / "some.pcapng")
        exchange(side)
        assert not any(slot["served"] for slot in slots(nic))
        packets = reader.packets()
        exchange(side)
    recorded = list(read_packets(tmp_path / "all.pcapng"))
    assert WANTED <= sends(packets) < 2 * WANTED
    assert sends(recorded) == 3 * WANTED
    assert set(packets) <= set(recorded)


@pytest.mark.parametrize("later", [pytest.param(False, marks=pytest.mark.full), True], ids=["recorded", "there before"])
def test_a_reader_that_does_not_read_keeps_nobody(nic: Path, later: bool) -> None:
    """Its socket is full at once; one that has gone ends its connection, in the midst of sending or not."""
    asking = connect(nic)
    assert asking is not None
    source, sending = socket.socketpair()
    with device(nic, 84), closing(asking) as connection, ExitStack() as stack:
        talk = opened(nic, 84, events=False, port=4791)
        side = stack.enter_context(talk)[0] if later else None
        connection.request(attach.MSG_CAPTURE, b"rnic0", [sending.fileno()])
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        sending.setblocking(True)  # both ends of the file may wait: not the NIC process
        sending.close()
        side = side or stack.enter_context(talk)[0]
        exchange(side)
        source.close()
        exchange(side)
        assert until(lambda: not connection.alive())
        exchange(side)


REFUSED = [
    ("rnic7", "socket", "device 'rnic7' is not there; there are: rnic0"),
    ("rnic0", "file", "CAPTURE brings one end of a pair of SOCK_STREAM sockets"),
    ("rnic0", "none", "CAPTURE brings one end of one pair of sockets"),
    ("rnic0", "twice", "CAPTURE brings one end of one pair of sockets"),
    ("", "nobody", "nothing reads this: keep the other end"),
]


def test_what_cannot_be_captured_is_refused_in_words(nic: Path) -> None:
    with device(nic, 85):
        for name, kind, words in REFUSED:
            refuse(nic, name, kind, words)
            assert ask(nic, "rnic0", "counters") is not None


def refuse(nic: Path, name: str, kind: str, words: str) -> None:
    asking = connect(nic)
    assert asking is not None
    source, sending = socket.socketpair()
    memfd = os.memfd_create("no socket")
    with source, sending, open(memfd, "wb"), closing(asking) as connection:
        given = {"file": [memfd], "none": []}.get(kind, [sending.fileno()])
        if kind == "twice":
            connection.request(attach.MSG_CAPTURE, name.encode(), given)
        if kind == "nobody":
            source.close()
        with pytest.raises(VerbsError, match=words):
            connection.request(attach.MSG_CAPTURE, name.encode(), given)


def test_so_many_may_read_and_no_more(nic: Path, tmp_path: Path) -> None:
    with device(nic, 86):
        readers = [Reader(nic, tmp_path / str(number)) for number in range(MAX_READERS)]
        with pytest.raises(VerbsError, match=f"{MAX_READERS} programs read this device's packets already"):
            Reader(nic, tmp_path / "one more")
        assert [reader.packets() for reader in readers] == [[]] * MAX_READERS
        assert until(lambda: Reader(nic, tmp_path / "again").packets() == [])
