"""Tests of your own protocol on a bad network, with pytest: losses of your choice, in virtual time, the same each run.

pytest test_with_losses.py        # the fixtures come with rnic
"""

from __future__ import annotations

import pytest

from rnic import enums as e
from rnic.testing import FaultRates, QpPair, SimNet


def publish(pair: QpPair, payload: bytes) -> None:
    """Run the protocol under test: WRITE a payload, then a flag behind it. The reader trusts the flag."""
    pair.a.buf[: len(payload)] = payload
    pair.a.buf[8191] = 1
    pair.a.post_send(e.IBV_WR_RDMA_WRITE, len(payload))
    pair.a.post_send(e.IBV_WR_RDMA_WRITE, 1, 8191, remote=8191)


@pytest.mark.rnic_faults([{"match": {"opcode": "RC_WRITE_MIDDLE", "direction": "tx"}, "nth": 1, "action": "drop"}])
def test_the_flag_never_overtakes_the_payload(rnic_pair: QpPair) -> None:
    """Lose the second packet: until it was repeated, the flag must not be seen."""
    payload = bytes(range(250)) * 16
    publish(rnic_pair, payload)
    while not rnic_pair.b.buf[8191]:
        rnic_pair.net.turn()
    assert rnic_pair.b.buf[: len(payload)] == payload
    assert rnic_pair.a.counters["fault_tx_drop"] == 1, "the packet was lost indeed"


@pytest.mark.parametrize("seed", range(5))
def test_one_packet_in_ten_is_lost(seed: int) -> None:
    with QpPair(net=SimNet(2, seed=seed, tx=FaultRates(drop=0.1))) as pair:
        payload = bytes(range(250)) * 16
        publish(pair, payload)
        pair.a.expect(count=2)
        assert pair.b.buf[: len(payload)] == payload


def test_a_forgotten_receive_says_so(rnic_pair: QpPair) -> None:
    rnic_pair.a.post_send(e.IBV_WR_SEND, 10)
    with pytest.raises(TimeoutError, match="the peer has no receive posted"):
        rnic_pair.a.wait()
