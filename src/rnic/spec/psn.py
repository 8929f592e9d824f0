"""Packet sequence number arithmetic (IBA vol. 1, chapter 9): 24 bits, modulo 2^24."""

PSN_BITS = 24
PSN_MASK = (1 << PSN_BITS) - 1
PSN_WINDOW = (1 << 23) - 1
"""Most PSNs that may be outstanding; beyond that, duplicates and future packets look alike."""
PSN_FAR = 4096
"""Distance of the first packet's PSN from the expected PSN above which the ends disagree on the starting PSN; less may
be a loss."""

_HALF = 1 << 23


def psn_add(psn: int, count: int) -> int:
    """Return ``psn + count`` modulo 2^24; ``count`` may be negative."""
    return (psn + count) & PSN_MASK


def psn_diff(a: int, b: int) -> int:
    """Return the signed distance from ``b`` to ``a``, -2^23 to 2^23 - 1: negative if ``a`` is before ``b``."""
    return ((a - b + _HALF) & PSN_MASK) - _HALF


def psn_count(length: int, mtu: int) -> int:
    """Return the number of PSNs that a message or READ response of ``length`` bytes uses: at least one."""
    return -(-length // mtu) or 1
