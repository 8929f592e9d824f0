"""Which address of this machine a client leaves from, where it was given none."""

from __future__ import annotations

import socket

from rnic.arrays.listener import local_address
from rnic.cm.line_socket import DEFAULT_TIMEOUT_S, dialling, tcp_port

ADDR_HELP = "Local IP address of the NIC: 127.0.0.1, of a client the one that leads to {}."
"""Help of ``--addr`` where a command is server or client, with the client's name for its peer."""


def towards(host: str, port: int) -> tuple[str, str]:
    """The local address that leads to ``host``, and the address of ``host``. Nothing is sent.

    A name of both IP versions stands for its IPv4 address, as listeners are on 127.0.0.1 by default.

    Args:
        host: a name or an address.
        port: TCP port that will be dialled there, for messages.

    Raises:
        ExchangeError: no such host, or no way to it.
    """
    number = tcp_port(host, port, 1)
    where = f"{host} port {number}"
    with dialling(where, DEFAULT_TIMEOUT_S):
        found = socket.getaddrinfo(host, number, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            own = local_address(probe)
    return own, str(address[0])
