"""AETH syndromes, RNR timers, the local ACK timeout and credits, typed by hand from ``software.md`` section 4."""

from __future__ import annotations

import pytest

from rnic.spec import syndromes
from rnic.spec.syndromes import CREDIT_COUNTS, RNR_TIMER_US, ack_timeout_ns, credit_code, rnr_timer_ns

# software.md section 4, "RNR codes µs", as it stands there
RNR_CODES = (
    "0=655360,1=10,2=20,3=30,4=40,5=60,6=80,7=120,8=160,9=240,10=320,11=480,12=640,13=960,14=1280,15=1920,"
    "16=2560,17=3840,18=5120,19=7680,20=10240,21=15360,22=20480,23=30720,24=40960,25=61440,26=81920,27=122880,"
    "28=163840,29=245760,30=327680,31=491520"
)
# IBA vol. 1, 9.7.7.2.4: credits that each code grants
CREDITS = (
    "0=0,1=1,2=2,3=3,4=4,5=6,6=8,7=12,8=16,9=24,10=32,11=48,12=64,13=96,14=128,15=192,16=256,17=384,18=512,"
    "19=768,20=1024,21=1536,22=2048,23=3072,24=4096,25=6144,26=8192,27=12288,28=16384,29=24576,30=32768"
)


def table(text: str) -> dict[int, int]:
    return {int(code): int(value) for code, value in (pair.split("=") for pair in text.split(","))}


@pytest.mark.parametrize(("code", "microseconds"), table(RNR_CODES).items())
def test_rnr_timer(code: int, microseconds: int) -> None:
    assert RNR_TIMER_US[code] == microseconds
    assert rnr_timer_ns(code) == microseconds * 1000


def test_rnr_timer_takes_the_syndromes_low_bits() -> None:
    assert len(RNR_TIMER_US) == 32
    assert rnr_timer_ns(syndromes.AETH_RNR_NAK | 1) == 10_000


@pytest.mark.parametrize(
    ("code", "nanoseconds"),
    [(0, 0), (1, 8_192), (2, 16_384), (14, 67_108_864), (18, 1_073_741_824), (31, 8_796_093_022_208), (32, 0)],
)
def test_ack_timeout(code: int, nanoseconds: int) -> None:
    """4.096 us * 2^code, 0 is no timeout; five bits."""
    assert ack_timeout_ns(code) == nanoseconds


@pytest.mark.parametrize(("code", "count"), table(CREDITS).items())
def test_credit_counts(code: int, count: int) -> None:
    assert CREDIT_COUNTS[code] == count
    assert credit_code(count) == code
    assert credit_code(count + 1) == (code + 1 if code < 4 else code)


def test_credit_code_promises_no_more_than_there_is() -> None:
    assert len(CREDIT_COUNTS) == 31
    assert [credit_code(entries) for entries in (0, 5, 7, 32_767, 1 << 20)] == [0, 4, 5, 29, 30]


def test_aeth() -> None:
    """000CCCCC ACK, 001TTTTT RNR NAK, 011NNNNN NAK."""
    assert (syndromes.AETH_ACK, syndromes.AETH_RNR_NAK, syndromes.AETH_RESERVED, syndromes.AETH_NAK) == (
        0b000_00000,
        0b001_00000,
        0b010_00000,
        0b011_00000,
    )
    assert (syndromes.AETH_TYPE_MASK, syndromes.AETH_VALUE_MASK) == (0b011_00000, 0b000_11111)
    assert syndromes.CREDITS_INVALID == 0x1F
    assert syndromes.RNR_RETRY_FOREVER == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NAK_PSN_SEQUENCE", 0x60),
        ("NAK_INVALID_REQUEST", 0x61),
        ("NAK_REMOTE_ACCESS", 0x62),
        ("NAK_REMOTE_OPERATION", 0x63),
        ("NAK_INVALID_RD_REQUEST", 0x64),
    ],
)
def test_naks(name: str, value: int) -> None:
    assert getattr(syndromes, name) == value
    assert value in syndromes.NAK_NAMES


@pytest.mark.parametrize(
    ("timeout", "retry_cnt", "waits"),
    [(14, 7, ((1 + 2 + 6 * 4), 32)), (1, 0, (1, 4)), (31, 2, (7, 12))],
)
def test_when_retries_are_exceeded(timeout: int, retry_cnt: int, waits: tuple[int, int]) -> None:
    assert syndromes.retry_exceeded_ns(timeout, retry_cnt) == tuple((4_096 << timeout) * each for each in waits)


def test_without_a_timeout_retries_are_never_exceeded() -> None:
    assert syndromes.retry_exceeded_ns(0, 7) is None


@pytest.mark.parametrize(("timeout", "retry_cnt"), [(-1, 0), (32, 0), (14, 8), (14, -1)])
def test_codes_out_of_range_are_refused(timeout: int, retry_cnt: int) -> None:
    with pytest.raises(ValueError, match=f"timeout={timeout}, retry_cnt={retry_cnt}"):
        syndromes.retry_exceeded_ns(timeout, retry_cnt)
