"""What docs/security.md says of idents that nobody sees follows from the rule's constants."""

from __future__ import annotations

import math
import re
from pathlib import Path

from rnic.device.icrc import MAX_HELD
from rnic.link import steering
from rnic.link.ident_sockets import MASK
from rnic.wire.ident import Count, IdentTracker

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
MS = 1_000_000


def believed(count: Count, now_ns: int) -> int:
    """Idents, each with one value of the flag, with which a packet is taken at once."""
    return count.BEHIND + 1 + count.ahead(now_ns)


def probability(words: int) -> str:
    """Of so many words among 2^32, as the page writes it: one decimal where the first is no 0."""
    return f"2^{math.log2(words) - 32:.1f}".removesuffix(".0")


def rows() -> list[tuple[str, ...]]:
    """All columns of the table but the first."""
    table = re.search(r"\| Packet over IPv4.*?\n\n", PAGE, re.DOTALL)
    assert table is not None
    cells = [line.strip("| ").split(" | ") for line in table[0].strip().splitlines()[2:]]
    return [tuple(row[1:]) for row in cells]


def agreeing(idents: int) -> int:
    """The most of so many idents in a row that have the same bits in MASK."""
    return max(sum(1 for step in range(idents) if not (first + step) & MASK) for first in range(64))


def test_the_table_of_idents() -> None:
    count = Count()
    count.follow(30_000, 0)
    steady = believed(count, 32 * MS - 1)
    assert steady == IdentTracker.SMALL == 64
    assert believed(count, 32 * MS) == 65
    assert believed(count, 1_000 * MS) == 33 + 1_000
    most = believed(count, 10**18)
    near = 2 * Count.AHEAD
    known = agreeing(steady)
    assert (known, agreeing(65), agreeing(128), agreeing(129), agreeing(most)) == (8, 16 - 7, 16, 17, 8_192)
    assert rows() == [
        ("64", probability(steady), f"{known}", probability(known)),
        (
            f"33 + `t`, at most {most:,}",
            f"{probability(most)} at most",
            f"8 for each 64 begun, at most {agreeing(most):,}",
            f"{probability(agreeing(most))} at most",
        ),
        (
            f"{near}, more after a pause",
            probability(near),
            f"{agreeing(near)}, more after a pause",
            probability(agreeing(near)),
        ),
        (f"{2 << 16:,}", probability(2 << 16), f"{2 << 13:,}", probability(2 << 13)),
    ]
    assert steady / 2**32 <= 2**-26
    assert known / 2**32 <= 2**-29


def test_the_sockets_that_tell_bits() -> None:
    text = " ".join(PAGE.split())
    assert f"(`ident >> {steering.IDENT_SHIFT} & {steering.IDENT_SOCKETS - 1}`)" in text
    assert f"Once {IdentTracker.FRESH} packets have shown" in text
    assert f"at most {steering.MAX_SENDERS} addresses" in text


def test_what_is_held() -> None:
    words = {2: "Two", 4: "Four", 8: "Eight"}[IdentTracker.HELD]
    text = " ".join(PAGE.split())
    assert f"{words} are held for each sender, {MAX_HELD:,} for each device" in text
    assert f"until {IdentTracker.FRESH} further packets of the sender were taken" in text
