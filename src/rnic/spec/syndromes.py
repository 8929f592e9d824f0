"""AETH syndromes, RNR timer codes and the local ACK timeout (IBA vol. 1, 9.7.5.1, 9.7.5.2.8, 9.7.6.1.3)."""

AETH_TYPE_MASK = 0x60
AETH_VALUE_MASK = 0x1F
AETH_ACK = 0x00
AETH_RNR_NAK = 0x20
AETH_RESERVED = 0x40
AETH_NAK = 0x60

CREDITS_INVALID = 0x1F
"""Credit code of an ACK whose sender does not use end-to-end credits."""

NAK_PSN_SEQUENCE = 0x60
NAK_INVALID_REQUEST = 0x61
NAK_REMOTE_ACCESS = 0x62
NAK_REMOTE_OPERATION = 0x63
NAK_INVALID_RD_REQUEST = 0x64

NAK_NAMES = {
    NAK_PSN_SEQUENCE: "PSN sequence error",
    NAK_INVALID_REQUEST: "invalid request",
    NAK_REMOTE_ACCESS: "remote access error",
    NAK_REMOTE_OPERATION: "remote operational error",
    NAK_INVALID_RD_REQUEST: "invalid RD request",
}

RNR_TIMER_US = (
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920,
    2_560, 3_840, 5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880,
    163_840, 245_760, 327_680, 491_520,
)  # fmt: skip
"""Microseconds of each RNR NAK timer code, table 45."""

RNR_RETRY_FOREVER = 7


def rnr_timer_ns(code: int) -> int:
    """Return the time in nanoseconds to wait after an RNR NAK with timer ``code`` (0 to 31)."""
    return RNR_TIMER_US[code & AETH_VALUE_MASK] * 1_000


def ack_timeout_ns(code: int) -> int:
    """Return the local ACK timeout, 4.096 us * 2^code, in nanoseconds; 0 for code 0, which means no timeout."""
    code &= 0x1F
    return 4_096 << code if code else 0


ACK_WAITS = (1, 2, 4)
"""Consecutive waits for an ACK, in local ACK timeouts; the last one repeats."""


def retry_exceeded_ns(timeout: int, retry_cnt: int) -> tuple[int, int] | None:
    """Return the time from a request's last transmission until it completes with RETRY_EXC if the peer is gone.

    IBA 9.7.6.1.3 lets a requester wait one to four times the local ACK timeout before each of its ``retry_cnt``
    retries and before it gives up. Progress restarts the count.

    Args:
        timeout: code of the local ACK timeout, 0 to 31 (``ibv_qp_attr.timeout``).
        retry_cnt: 0 to 7.

    Returns:
        The earliest and the latest time in nanoseconds; None for timeout 0, which waits forever.

    Raises:
        ValueError: a code is out of range.
    """
    if not (0 <= timeout <= 31 and 0 <= retry_cnt <= 7):
        raise ValueError(f"timeout={timeout}, retry_cnt={retry_cnt}: a timeout is 0 to 31, retry_cnt 0 to 7")
    if not timeout:
        return None
    waits = [ACK_WAITS[min(turn, len(ACK_WAITS) - 1)] for turn in range(retry_cnt + 1)]
    return sum(waits) * ack_timeout_ns(timeout), len(waits) * ACK_WAITS[-1] * ack_timeout_ns(timeout)


CREDIT_COUNTS = (
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
    256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768,
)  # fmt: skip
"""Receive entries for each end-to-end credit code 0 to 30, table 46."""


def credit_code(entries: int) -> int:
    """Return the largest credit code that promises no more than ``entries`` receive entries."""
    code = 0
    for candidate, count in enumerate(CREDIT_COUNTS):
        if count > entries:
            break
        code = candidate
    return code
