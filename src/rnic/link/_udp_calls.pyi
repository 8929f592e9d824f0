"""Types of the compiled system calls of :mod:`rnic.link.udp`."""

from typing_extensions import Buffer

def send(fd: int, to: bytes, buffers: list[Buffer], segment: int) -> int: ...

class Receiver:
    stamp: int
    def __init__(self, fd: int) -> None: ...
    def receive(self, buf: Buffer) -> tuple[int, int, bytes, int, int, int] | int | None: ...
