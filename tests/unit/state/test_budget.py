"""Where the shares of the device's budget lie, and that there is one for everybody."""

from __future__ import annotations

from rnic.link.steering import MAX_MEMBERS
from rnic.state.budget import BUDGET, BYTES, ENTRIES, SHARE, SLOTS, share_at


def test_there_is_a_share_for_each_member_of_a_group_and_the_nic_process() -> None:
    assert SLOTS == MAX_MEMBERS + 1


def test_shares_lie_one_behind_the_other_up_to_the_end() -> None:
    places = [share_at(entry, slot) for entry in range(ENTRIES) for slot in range(SLOTS)]
    assert places == list(range(BUDGET.size, BYTES, SHARE.size))
    assert all(field.unit == 4 and not field.byte % 4 for layout in (BUDGET, SHARE) for field in layout.fields)
