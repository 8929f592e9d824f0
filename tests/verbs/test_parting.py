"""Who has seen the completion of the last message may close at once: its peer gets the acknowledgement all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rnic.device.nic import Nic
from rnic.testing import QpPair
from rnic.verbs import enums as e
from rnic.verbs.attrs import QPAttr


def _close(side: Any) -> None:
    side.qp.close()


def _to_error(side: Any) -> None:
    side.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)


def _whole_nic(side: Any) -> None:
    side.node.link.send(side.node.nic.drain_acks())


@pytest.mark.parametrize("stop", [_close, _to_error, _whole_nic])
def test_who_stops_with_its_last_completion_has_acknowledged(
    stop: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with QpPair(size=4096) as pair:
        a, b = pair.a, pair.b
        silent = b.node.nic
        produce = Nic.produce

        def not_the_receiver(self: Nic, *args: Any) -> Any:
            return [] if self is silent else produce(self, *args)

        b.post_recv(64)
        with monkeypatch.context() as patch:
            # it takes packets and has no turn to send: the moment that a quick program hits
            patch.setattr(Nic, "produce", not_the_receiver)
            a.post_send(e.IBV_WR_SEND, 64)
            assert [wc.status for wc in b.wait()] == [e.IBV_WC_SUCCESS]
            assert not a.poll()
            stop(b)
        assert [wc.status for wc in a.wait()] == [e.IBV_WC_SUCCESS]
