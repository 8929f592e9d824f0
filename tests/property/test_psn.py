"""PSN arithmetic against a model that counts without wrapping."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rnic.spec.psn import PSN_MASK, PSN_WINDOW, psn_add, psn_count, psn_diff

WIDE = st.integers(0, 1 << 40)
"""A PSN as the model counts it; the wire sees its low 24 bits."""


@given(WIDE, st.integers(-PSN_WINDOW - 1, PSN_WINDOW))
def test_diff_is_the_models_distance_within_the_window(there: int, distance: int) -> None:
    there += PSN_WINDOW + 1
    here = there + distance
    assert psn_diff(here & PSN_MASK, there & PSN_MASK) == distance


@given(WIDE, st.integers(-(1 << 30), 1 << 30))
def test_add_is_the_models_sum(psn: int, count: int) -> None:
    psn += 1 << 30
    assert psn_add(psn & PSN_MASK, count) == (psn + count) & PSN_MASK


@given(st.integers(0, PSN_MASK), st.integers(0, PSN_MASK))
def test_add_undoes_diff(a: int, b: int) -> None:
    assert psn_add(b, psn_diff(a, b)) == a


@given(st.integers(0, 1 << 20), st.sampled_from([256, 512, 1024, 2048, 4096]))
def test_count_is_the_number_of_pieces(length: int, mtu: int) -> None:
    assert psn_count(length, mtu) == max(1, len(range(0, length, mtu)))
