#!/usr/bin/env python3
"""Minimal RC peer on the host without rnic: verifies the wire, the addresses and the guest's rxe.

Talks to a guest's `ibv_rc_pingpong -d rxe0 -g 1 -n N -s SIZE -m 1024` server: TCP exchange of
LID:QPN:PSN:GID, then SENDs of SIZE bytes with ACKs in both directions. It never retransmits.
Sends from a UDP socket with IP_PMTUDISC_DO: Linux then leaves DF set and the IP identification 0, which
the ICRC covers.

    rxe-guest run 'ibv_rc_pingpong -d rxe0 -g 1 -n 20 -s 3001 -m 1024' &
    rxe-guest ns python3 peer_smoke.py GUEST [N [SIZE]]
"""

from __future__ import annotations

import socket
import struct
import sys
import time
import zlib

MTU, QPN, PSN0 = 1024, 0x123456, 0xFFFFF0  # the PSN wraps during the run
SPORT, DPORT = 0xC123, 4791
SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY, ACKNOWLEDGE = 0, 1, 2, 4, 17
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
PSN_MASK = 0xFFFFFF


def icrc(src: str, dst: str, frame: bytes) -> bytes:
    """Return the ICRC of ``frame`` (BTH to pad): CRC-32 with ones in fields that routers may change."""
    ip = struct.pack(">BBHHHBBH", 0x45, 0xFF, 28 + len(frame) + 4, 0, 0x4000, 0xFF, 17, 0xFFFF)
    ip += socket.inet_aton(src) + socket.inet_aton(dst)
    udp = struct.pack(">HHHH", SPORT, DPORT, 12 + len(frame), 0xFFFF)
    masked = frame[:4] + b"\xff" + frame[5:]
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + ip + udp + masked))


class Peer:
    """Local queue pair connected to the guest's."""

    def __init__(self, guest: str) -> None:
        self.guest = guest
        self.tcp = socket.create_connection((guest, 18515), timeout=10)
        self.address = self.tcp.getsockname()[0]
        gid = b"\0" * 10 + b"\xff\xff" + socket.inet_aton(self.address)
        self.tcp.sendall(b"%04x:%06x:%06x:%s\0" % (0, QPN, PSN0, gid.hex().encode()))
        message = b""
        while len(message) < 52:
            message += self.tcp.recv(52 - len(message))
        _, qpn, psn, _ = message.rstrip(b"\0").decode().split(":")
        self.dqpn, self.expected = int(qpn, 16), int(psn, 16)
        print(f"guest QPN {self.dqpn:#x} first PSN {self.expected:#x}; ours {QPN:#x} {PSN0:#x}")
        self.rx = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.rx.bind((self.address, DPORT))
        self.rx.settimeout(5)
        self.tx = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.tx.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        self.tx.bind((self.address, SPORT))
        self.tcp.sendall(b"done\0")
        self.psn = PSN0

    def send(self, opcode: int, psn: int, ackreq: bool = False, data: bytes = b"") -> None:
        """Send one packet; ``data`` follows the BTH."""
        pad = -len(data) % 4
        head = struct.pack(">BBHII", opcode, pad << 4, 0xFFFF, self.dqpn, ackreq << 31 | psn & PSN_MASK)
        frame = head + data + b"\0" * pad
        self.tx.sendto(frame + icrc(self.address, self.guest, frame), (self.guest, DPORT))

    def send_message(self, data: bytes) -> int:
        """Send a SEND message; return the PSN of its last packet."""
        last = max(1, -(-len(data) // MTU)) - 1
        for i in range(last + 1):
            ends = (i == 0, i == last)
            opcode = {(True, True): SEND_ONLY, (True, False): SEND_FIRST, (False, True): SEND_LAST}.get(
                ends, SEND_MIDDLE
            )
            self.send(opcode, self.psn + i, i == last, data[i * MTU : (i + 1) * MTU])
        self.psn = (self.psn + last + 1) & PSN_MASK
        return (self.psn - 1) & PSN_MASK


def pingpong(guest: str, count: int, size: int) -> None:
    """Exchange ``count`` messages each way; raise ``AssertionError`` if the guest misbehaves."""
    peer = Peer(guest)
    time.sleep(0.2)  # the guest may not be in RTR yet, and this peer does not retransmit
    start = time.monotonic()
    last = peer.send_message(b"\x7b" * size)
    sent, received, current, acks = 1, 0, 0, [-1]
    while received < count or acks[-1] != last:
        packet = peer.rx.recv(9000)
        opcode, flags, _, dqpn, word = struct.unpack_from(">BBHII", packet)
        psn = word & PSN_MASK
        if dqpn & PSN_MASK != QPN:
            continue
        if opcode == ACKNOWLEDGE:
            assert packet[12] & 0x60 == 0, f"NAK syndrome {packet[12]:#x}"
            acks.append(psn)
            continue
        assert opcode in (SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY), hex(opcode)
        if psn != peer.expected:  # a retransmission: under emulation the guest's timer sometimes fires early
            assert (peer.expected - psn) & PSN_MASK < 1 << 23, (hex(psn), hex(peer.expected))
            peer.send(ACKNOWLEDGE, peer.expected - 1, data=struct.pack(">I", 0x1F << 24 | received))
            continue
        peer.expected = (peer.expected + 1) & PSN_MASK
        current += len(packet) - 16 - (flags >> 4 & 3)
        if opcode in (SEND_LAST, SEND_ONLY):
            assert current == size, current
            received, current = received + 1, 0
        if word >> 31:
            peer.send(ACKNOWLEDGE, psn, data=struct.pack(">I", 0x1F << 24 | received))
        if opcode in (SEND_LAST, SEND_ONLY) and sent < count:
            last = peer.send_message(b"\x7b" * size)
            sent += 1
    seconds = time.monotonic() - start
    print(f"ok: {sent} messages of {size} bytes each way in {seconds:.3f} s, {len(acks) - 1} ACKs")


if __name__ == "__main__":
    guest, count, size = [*sys.argv[1:], *["20", "3001"][len(sys.argv) - 2 :]]
    pingpong(guest, int(count), int(size))
