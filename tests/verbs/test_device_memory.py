"""Device memory in Python: allocation, copies in and out, regions over it."""

from __future__ import annotations

from collections.abc import Callable
from errno import EBUSY, EINVAL, ENOMEM

import pytest

from rnic import enums as e
from rnic.spec.errors import VerbsError
from rnic.testing import QpPair
from rnic.verbs import DM, DMMR
from rnic.verbs.attrs import AllocDmAttr

NewPair = Callable[..., QpPair]
RIGHTS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


def test_a_peer_writes_and_reads_it(new_pair: NewPair) -> None:
    with new_pair() as pair:
        here, there = pair.a, pair.b
        dm = DM(there.ctx, AllocDmAttr(4096))
        mr = DMMR(there.pd, 1024, RIGHTS, dm, 64)
        here.buf[:8] = b"abcdefgh"
        write = here.send_wr(e.IBV_WR_RDMA_WRITE, 8)
        write.set_wr_rdma(mr.rkey, 16)
        here.qp.post_send(write)
        here.wait()
        assert dm.copy_from_dm(80, 12) == b"abcdefgh" + bytes(4)
        dm.copy_to_dm(64, b"12345678xxxx", 8)
        read = here.send_wr(e.IBV_WR_RDMA_READ, 8, 100)
        read.set_wr_rdma(mr.rkey, 0)
        here.qp.post_send(read)
        here.wait()
        assert here.buf[100:108] == b"12345678"
        read.set_wr_rdma(mr.rkey, 1020)
        here.qp.post_send(read)
        assert here.wait()[0].status == e.IBV_WC_REM_ACCESS_ERR
        with pytest.raises(VerbsError) as refused:
            dm.close()
        assert refused.value.errno == EBUSY
        mr.close()
        dm.close()


def test_what_it_refuses(new_pair: NewPair) -> None:
    with new_pair() as pair:
        ctx = pair.a.ctx
        most = ctx.query_device().max_dm_size
        assert most == 1 << 20
        for length, align, error in ((0, 0, EINVAL), (8, 13, EINVAL), (most + 1, 0, ENOMEM)):
            with pytest.raises(VerbsError) as refused:
                DM(ctx, AllocDmAttr(length, align))
            assert refused.value.errno == error
        dm = DM(ctx, AllocDmAttr(most, 12))
        with pytest.raises(VerbsError, match="device memory"):
            DM(ctx, AllocDmAttr(4))
        for offset, length in ((0, most + 4), (1, 4), (4, 2), (-4, 4)):
            with pytest.raises(VerbsError, match="multiples of 4"):
                dm.copy_from_dm(offset, length)
        with pytest.raises(VerbsError, match="the device memory has"):
            DMMR(pair.a.pd, 8, RIGHTS, dm, most)
        dm.close()
        DM(ctx, AllocDmAttr(most))
