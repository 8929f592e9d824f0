"""What docs/security.md says of idents that nobody sees follows from the rule's constants."""

from __future__ import annotations

import math
import re
from pathlib import Path

from rnic.device.icrc import MAX_HELD
from rnic.wire.ident import Count, IdentTracker

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
MS = 1_000_000


def believed(count: Count, now_ns: int) -> int:
    """Idents, each with one value of the flag, with which a packet is taken at once."""
    return count.BEHIND + 1 + count.ahead(now_ns)


def probability(words: int) -> str:
    """Of so many words among 2^32, as the page writes it: one decimal where the first is no 0."""
    return f"2^{math.log2(words) - 32:.1f}".removesuffix(".0")


def rows() -> list[tuple[str, str]]:
    """The last two columns of the table."""
    table = re.search(r"\| Packet over IPv4.*?\n\n", PAGE, re.DOTALL)
    assert table is not None
    cells = [line.strip("| ").split(" | ") for line in table[0].strip().splitlines()[2:]]
    return [(row[1], row[2]) for row in cells]


def test_the_table_of_idents() -> None:
    count = Count()
    count.follow(30_000, 0)
    steady = believed(count, 32 * MS - 1)
    assert steady == IdentTracker.SMALL == 64
    assert believed(count, 32 * MS) == 65
    assert believed(count, 1_000 * MS) == 33 + 1_000
    most = believed(count, 10**18)
    near = 2 * Count.AHEAD
    assert rows() == [
        ("64", probability(steady)),
        (f"33 + `t`, at most {most:,}", f"{probability(most)} at most"),
        (f"{near}, more after a pause", probability(near)),
        (f"{2 << 16:,}", probability(2 << 16)),
    ]
    assert steady / 2**32 <= 2**-26


def test_what_is_held() -> None:
    words = {2: "Two", 4: "Four", 8: "Eight"}[IdentTracker.HELD]
    text = " ".join(PAGE.split())
    assert f"{words} are held for each sender, {MAX_HELD:,} for each device" in text
    assert f"until {IdentTracker.FRESH} further packets of the sender were taken" in text
