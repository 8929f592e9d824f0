"""Numbers of infiniband/verbs.h, typed by hand from rdma-core's header."""

from __future__ import annotations

import pytest

from rnic import enums as e

GOLDEN = {
    "IBV_QPT_RC": 2,
    "IBV_QPT_UC": 3,
    "IBV_QPT_UD": 4,
    "IBV_QPS_SQD": 4,
    "IBV_QPS_SQE": 5,
    "IBV_QPS_ERR": 6,
    "IBV_QP_AV": 0x80,
    "IBV_QP_DEST_QPN": 0x100000,
    "IBV_MTU_4096": 5,
    "IBV_ACCESS_REMOTE_ATOMIC": 8,
    "IBV_ACCESS_ZERO_BASED": 32,
    "IBV_WR_RDMA_READ": 4,
    "IBV_WR_ATOMIC_FETCH_AND_ADD": 6,
    "IBV_WR_SEND_WITH_INV": 9,
    "IBV_SEND_INLINE": 8,
    "IBV_WC_RETRY_EXC_ERR": 12,
    "IBV_WC_RNR_RETRY_EXC_ERR": 13,
    "IBV_WC_GENERAL_ERR": 21,
    "IBV_WC_RECV": 128,
    "IBV_WC_RECV_RDMA_WITH_IMM": 129,
    "IBV_WC_BIND_MW": 5,
    "IBV_WC_LOCAL_INV": 6,
    "IBV_WC_WITH_INV": 8,
    "IBV_PORT_ACTIVE": 4,
    "IBV_EVENT_COMM_EST": 4,
    "IBV_EVENT_SQ_DRAINED": 5,
    "IBV_EVENT_SRQ_LIMIT_REACHED": 15,
    "IBV_EVENT_QP_LAST_WQE_REACHED": 16,
    "IBV_DEVICE_MEM_WINDOW": 1 << 17,
    "IBV_DEVICE_MEM_WINDOW_TYPE_2B": 1 << 24,
}


@pytest.mark.parametrize("name", GOLDEN)
def test_numbers(name: str) -> None:
    assert getattr(e, name) == GOLDEN[name]


def test_names_by_number() -> None:
    assert e.WC_STATUS_NAMES[e.IBV_WC_LOC_PROT_ERR] == "LOC_PROT_ERR"
    assert e.WC_STATUS_NAMES[e.IBV_WC_SUCCESS] == "SUCCESS"
    assert e.WC_OPCODE_NAMES[e.IBV_WC_RECV] == "RECV"
    assert e.WC_OPCODE_NAMES[e.IBV_WC_SEND] == "SEND"
    assert e.QP_STATE_NAMES[e.IBV_QPS_RTS] == "RTS"
    assert e.QP_TYPE_NAMES[e.IBV_QPT_UD] == "UD"
    assert e.EVENT_NAMES[e.IBV_EVENT_QP_FATAL] == "QP_FATAL"
    assert e.WR_OPCODE_NAMES[e.IBV_WR_RDMA_WRITE] == "RDMA_WRITE"
