"""What ``rnic exec`` hands to the NIC process that it starts."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from rnic.nic_process import launch as launching
from rnic.nic_process.launch import launch, reach
from rnic.nic_process.sysfs_view import TREE
from rnic.runtime.attach import ProcessConnection
from rnic.runtime.directory import ProcessError
from rnic.spec import attach


class Handed:
    """Stands for the new process: keeps duplicates of what it is handed."""

    def __init__(self) -> None:
        self.lock = -1
        self.names: Sequence[str] = ()
        self.sockets: list[socket.socket] = []

    def __call__(
        self, directory: Path, lock: int, listener: socket.socket, first: socket.socket, names: Sequence[str]
    ) -> None:
        self.lock, self.names = os.dup(lock), names
        self.sockets = [listener.dup(), first.dup()]

    def end(self) -> None:
        for sock in self.sockets:
            sock.close()
        os.close(self.lock)


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Handed:
    found = Handed()
    monkeypatch.setattr(launching, "_spawn", found)
    return found


def test_it_has_all_messages_before_it_starts(handed: Handed, tmp_path: Path) -> None:
    wanted = [{"address": "127.0.0.1", "name": "rnic0"}, {"address": "127.0.0.2", "name": "rnic1"}]
    connection = launch(tmp_path, wanted, ["rnic0", "rnic1"])
    assert isinstance(connection, ProcessConnection)
    messages = [handed.sockets[1].recv(attach.MAX_MESSAGE) for _ in range(3)]
    kinds, tokens = zip(*[struct.unpack_from("<II", message) for message in messages], strict=True)
    assert kinds == (attach.MSG_HELLO, attach.MSG_ADD, attach.MSG_ADD)
    assert tokens == (1, 2, 3)
    assert [json.loads(message[8:]) for message in messages[1:]] == wanted
    assert handed.names == ["rnic0", "rnic1"]
    connection.close()
    assert handed.sockets[1].recv(1) == b"", "this process has no other end of it"
    handed.end()


def test_programs_connect_before_it_answers_and_nobody_starts_another(handed: Handed, tmp_path: Path) -> None:
    (tmp_path / attach.SOCKET_NAME).touch()  # one that was killed has left it
    (tmp_path / TREE / "rnic0").mkdir(parents=True)
    connection = launch(tmp_path)
    assert connection is not None
    assert not (tmp_path / TREE).exists(), "no program takes an old view for its own"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as program:
        program.connect(str(tmp_path / attach.SOCKET_NAME))
        assert launch(tmp_path) is None
    connection.close()
    handed.end()
    again = launch(tmp_path)
    assert again is not None, "the lock ends with the process that was handed it"
    again.close()
    handed.end()


def test_the_last_words_of_one_that_ends_at_once_are_the_reason(
    handed: Handed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(directory: Path, *rest: object) -> None:
        (directory / "nic.log").write_text("some line\nno memory for it\n")

    monkeypatch.setattr(launching, "_spawn", ends)
    with pytest.raises(ProcessError, match="ended at once: no memory for it"):
        reach(tmp_path)
