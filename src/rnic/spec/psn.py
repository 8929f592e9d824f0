"""Packet sequence number arithmetic (IBA vol. 1, chapter 9): 24 bits, modulo 2^24."""

PSN_BITS = 24
PSN_MASK = (1 << PSN_BITS) - 1
PSN_WINDOW = (1 << 23) - 1
"""The most PSNs that may be outstanding, so that a duplicate can be told from a future packet."""
PSN_FAR = 4096
"""Distance of a first packet's PSN from the expected PSN that is not a loss: the two ends disagree on the start."""

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
