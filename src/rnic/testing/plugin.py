"""A pytest plugin for tests of any project: a pair of NICs, a fault script and a virtual clock.

::

    @pytest.mark.rnic_faults([{"match": {"opcode": "RC_READ_RESPONSE*"}, "nth": 3, "action": "drop"}])
    def test_read_survives_a_loss(rnic_pair):
        a, b = rnic_pair.a, rnic_pair.b
        b.buf[:5000] = bytes(range(250)) * 20
        a.post_send(enums.IBV_WR_RDMA_READ, 5000)
        assert a.wait()[0].status == enums.IBV_WC_SUCCESS
        assert a.buf[:5000] == b.buf[:5000]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from rnic.runtime.virtual import VirtualClock
from rnic.testing.pair import QpPair


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    config.addinivalue_line(
        "markers", "rnic_faults(script): fault script of rnic_pair, rules of rnic.link.fault_script"
    )
    config.addinivalue_line("markers", "rnic_pair(**options): options of rnic.testing.QpPair for rnic_pair")


@pytest.fixture
def rnic_clock() -> VirtualClock:
    """Return virtual time in nanoseconds, starting at 0."""
    return VirtualClock()


@pytest.fixture
def rnic_faults(request: pytest.FixtureRequest) -> Sequence[Mapping[str, object]]:
    """Return the fault script of ``rnic_pair``: that of the marker ``rnic_faults``, else empty. Override it to use
    another."""
    marker = request.node.get_closest_marker("rnic_faults")
    if marker is None:
        return []
    script: Sequence[Mapping[str, object]] = marker.args[0]
    return script


@pytest.fixture
def rnic_pair(
    request: pytest.FixtureRequest, rnic_clock: VirtualClock, rnic_faults: Sequence[Mapping[str, object]]
) -> Iterator[QpPair]:
    """Yield two NICs with connected queue pairs in virtual time; faults apply to side ``a``'s link."""
    marker = request.node.get_closest_marker("rnic_pair")
    options = dict(marker.kwargs) if marker is not None else {}
    with QpPair(clock=rnic_clock, faults=rnic_faults, **options) as pair:
        yield pair
