from __future__ import annotations

from rnic.wire import mad


def test_attributes_of_the_cm_class() -> None:
    """In the order in which the standard numbers them (IBA vol. 1, chapter 12)."""
    order = ["REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "SIDR_REQ", "SIDR_REP", "LAP", "APR"]
    assert [getattr(mad, f"CM_{name}") for name in order] == list(range(0x10, 0x1B))
    assert list(mad.CM_NAMES) == list(range(0x10, 0x1B))
    assert (mad.CLASS_CM, mad.METHOD_SEND, mad.GSI_QPN, mad.GSI_QKEY, mad.MAD_BYTES) == (7, 3, 1, 0x8001_0000, 256)
