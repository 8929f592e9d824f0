"""A separate UDP port for the non-RDMA channel (004 7.6), for links whose socket receives only RDMA.

Each datagram between two such ports is one whole packet, starting with its IP header. It goes to the packet's
destination address, at the same port; received packets are never taken for RDMA. A thread sleeps on the socket, so that
the data path's rounds have no extra cost.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from rnic.link.base import LinkError
from rnic.link.udp import UdpLink
from rnic.link.udp_socket import open_socket, socket_address
from rnic.runtime.wait import wait_readable

if TYPE_CHECKING:
    from rnic.runtime.loop import Runtime

BUFFER_BYTES = 1 << 20
AT_ONCE = 64
_MOST = 1 << 16


class NonRdmaPort:
    """Receives and sends for the channel of one device; closed with the device.

    Args:
        runtime: the device's runtime.
        link: the device's UDP link, whose address the port uses.
        port: UDP port; 0 lets the kernel choose.

    Raises:
        LinkError: the port is taken, or is the device's own.
    """

    def __init__(self, runtime: Runtime, link: UdpLink, port: int) -> None:
        if port == link.port:
            raise LinkError(f"UDP port {port} is where RDMA comes: give the non-RDMA channel another one")
        where = link.main_socket.getsockname()
        self._scope_id = where[3] if len(where) == 4 else 0
        self._socket = open_socket(link.address, port, self._scope_id, BUFFER_BYTES)
        self.port = int(self._socket.getsockname()[1])
        self._runtime = runtime
        self._wake_read, self._wake_write = os.pipe()
        with runtime.lock:
            runtime.nic.non_rdma.fed = True
            runtime.nic.non_rdma.send = self._send
            runtime.beside.append(self)
        self._thread = threading.Thread(target=self._run, name=f"rnic non-RDMA {self.port}", daemon=True)
        self._thread.start()

    def _send(self, to: bytes, frame: bytes) -> bool:
        try:
            self._socket.sendto(frame, socket_address(to, self.port, self._scope_id))
        except OSError:
            return False  # the channel counts it
        return True

    def _run(self) -> None:
        runtime, sock = self._runtime, self._socket
        while True:
            wait_readable([sock.fileno(), self._wake_read], None)
            if wait_readable([self._wake_read], 0):
                return
            frames: list[bytes] = []
            try:
                while len(frames) < AT_ONCE:
                    frames.append(sock.recv(_MOST))
            except OSError:
                pass  # nothing is left, or an earlier send found no receiver
            with runtime.lock:
                if runtime.closed:
                    return
                now = runtime.clock()
                for frame in frames:
                    runtime.nic.receive_other(frame, now)
            runtime.process_pending()

    def close(self) -> None:
        """Stop the thread and close the socket; a second call does nothing."""
        if self._wake_write < 0:
            return
        os.write(self._wake_write, b"\0")
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        with self._runtime.lock:
            self._runtime.nic.non_rdma.send = None
        self.abandon()

    def abandon(self) -> None:
        """See :meth:`rnic.runtime.rounds.Beside.abandon`."""
        self._socket.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._wake_read = self._wake_write = -1
