"""Every operation of every service type, between two NICs in virtual time: bytes, completions, lengths."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rnic import enums as e
from rnic.spec.errors import VerbsError
from rnic.spec.reasons import THERE
from rnic.testing import QpPair, Side
from rnic.verbs import AH, MR
from rnic.verbs.attrs import GID, SGE, AHAttr, GlobalRoute, QPAttr, RecvWR, SendWR
from rnic.wire.ip import IPv4

NewPair = Callable[..., QpPair]
SIZES = [1, 3, 1023, 1024, 1025, 4096, 100_001]


def fill(side: Side, seed: int = 1) -> None:
    side.buf[:] = random.Random(seed).randbytes(len(side.buf))


def send(pair: QpPair, size: int, opcode: int = e.IBV_WR_SEND, **more: int) -> tuple[object, object]:
    """One message from a to b; the receiver's and the sender's completion."""
    pair.b.post_recv(size + pair.recv_offset, wr_id=77)
    pair.a.post_send(opcode, size, wr_id=55, **more)
    sent, got = pair.a.wait()[0], pair.b.wait()[0]
    assert (sent.wr_id, sent.status, sent.opcode) == (55, e.IBV_WC_SUCCESS, e.IBV_WC_SEND)
    assert (got.wr_id, got.status, got.opcode) == (77, e.IBV_WC_SUCCESS, e.IBV_WC_RECV)
    assert got.byte_len == size + pair.recv_offset
    assert pair.b.buf[pair.recv_offset : pair.recv_offset + size] == pair.a.buf[:size]
    return sent, got


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("service", ["RC", "UC", "UD"])
@pytest.mark.parametrize("size", SIZES)
def test_send(new_pair: NewPair, service: str, size: int, ipv6: bool) -> None:
    if service == "UD" and size > 4096:
        size = 2048
    with new_pair(service, ipv6=ipv6) as pair:
        fill(pair.a)
        _, got = send(pair, size)
        assert not got.wc_flags & e.IBV_WC_WITH_IMM  # type: ignore[attr-defined]


@pytest.mark.parametrize("service", ["RC", "UC", "UD"])
def test_send_with_immediate(new_pair: NewPair, service: str) -> None:
    with new_pair(service) as pair:
        fill(pair.a)
        _, got = send(pair, 1000, e.IBV_WR_SEND_WITH_IMM, imm=0xFEDC_BA98)
        assert got.wc_flags & e.IBV_WC_WITH_IMM  # type: ignore[attr-defined]
        assert got.imm_data == 0xFEDC_BA98  # type: ignore[attr-defined]


@pytest.mark.parametrize("service", ["RC", "UC"])
@pytest.mark.parametrize("size", SIZES)
def test_write(new_pair: NewPair, service: str, size: int) -> None:
    with new_pair(service) as pair:
        fill(pair.a)
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, size, 10, remote=20, wr_id=5)
        wc = pair.a.wait()[0]
        pair.run()
        assert (wc.wr_id, wc.status, wc.opcode) == (5, e.IBV_WC_SUCCESS, e.IBV_WC_RDMA_WRITE)
        assert pair.b.buf[20 : 20 + size] == pair.a.buf[10 : 10 + size]
        assert not any(pair.b.buf[:20])
        assert not any(pair.b.buf[20 + size :])
        assert pair.b.poll() == []


@pytest.mark.parametrize("service", ["RC", "UC"])
@pytest.mark.parametrize("size", [1, 5000])
def test_write_with_immediate_takes_a_receive(new_pair: NewPair, service: str, size: int) -> None:
    with new_pair(service) as pair:
        fill(pair.a)
        pair.b.post_recv(0, wr_id=9)
        pair.a.post_send(e.IBV_WR_RDMA_WRITE_WITH_IMM, size, remote=64, imm=7)
        got = pair.b.wait()[0]
        assert (got.wr_id, got.opcode, got.imm_data) == (9, e.IBV_WC_RECV_RDMA_WITH_IMM, 7)
        assert got.byte_len == size
        assert pair.b.buf[64 : 64 + size] == pair.a.buf[:size]


@pytest.mark.parametrize("size", SIZES)
def test_read(new_pair: NewPair, size: int) -> None:
    with new_pair() as pair:
        fill(pair.b)
        pair.a.post_send(e.IBV_WR_RDMA_READ, size, 30, remote=40)
        wc = pair.a.wait()[0]
        assert (wc.status, wc.opcode, wc.byte_len) == (e.IBV_WC_SUCCESS, e.IBV_WC_RDMA_READ, size)
        assert pair.a.buf[30 : 30 + size] == pair.b.buf[40 : 40 + size]


def test_atomics(new_pair: NewPair) -> None:
    with new_pair() as pair:
        a, b = pair.a, pair.b
        b.buf[16:24] = (100).to_bytes(8, "little")
        a.post_send(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 0, remote=16, compare_add=5)
        a.post_send(e.IBV_WR_ATOMIC_CMP_AND_SWP, 8, 8, remote=16, compare_add=105, swap=1)
        a.post_send(e.IBV_WR_ATOMIC_CMP_AND_SWP, 8, 16, remote=16, compare_add=105, swap=2)
        assert [wc.opcode for wc in a.wait(3)] == [e.IBV_WC_FETCH_ADD, e.IBV_WC_COMP_SWAP, e.IBV_WC_COMP_SWAP]
        assert [int.from_bytes(a.buf[at : at + 8], "little") for at in (0, 8, 16)] == [100, 105, 1]
        assert int.from_bytes(b.buf[16:24], "little") == 1


@pytest.mark.parametrize("service", ["RC", "UC", "UD"])
def test_nothing_at_all_can_be_sent(new_pair: NewPair, service: str) -> None:
    with new_pair(service) as pair:
        send(pair, 0)


@pytest.mark.parametrize("opcode", [e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ])
def test_nothing_at_all_can_be_moved_and_needs_no_key(new_pair: NewPair, opcode: int) -> None:
    with new_pair() as pair:
        wr = pair.a.send_wr(opcode, 0)
        wr.rkey = 0xBAD
        pair.a.qp.post_send(wr)
        assert pair.a.wait()[0].status == e.IBV_WC_SUCCESS


@pytest.mark.parametrize("service", ["RC", "UC", "UD"])
def test_inline_data_may_change_at_once(new_pair: NewPair, service: str) -> None:
    with new_pair(service) as pair:
        fill(pair.a)
        data = bytes(pair.a.buf[:200])
        pair.b.post_recv(200 + pair.recv_offset)
        pair.a.post_send(e.IBV_WR_SEND, 200, flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_INLINE)
        pair.a.buf[:200] = bytes(200)
        pair.b.wait()
        assert pair.b.buf[pair.recv_offset : pair.recv_offset + 200] == data


@pytest.mark.parametrize("count", [2, 4])
def test_scatter_and_gather(new_pair: NewPair, count: int) -> None:
    with new_pair() as pair:
        a, b = pair.a, pair.b
        fill(a)
        wr = a.send_wr(e.IBV_WR_SEND, 0)
        wr.sg = [a.sge(500, 1000 * index) for index in range(count)]
        b.qp.post_recv(RecvWR(0, count, [b.sge(300, 5000), *(b.sge(900, 10_000 * index) for index in range(1, count))]))
        a.qp.post_send(wr)
        a.wait()
        b.wait()
        sent = b"".join(a.buf[1000 * index : 1000 * index + 500] for index in range(count))
        places = [(5000, 300), *((10_000 * index, 900) for index in range(1, count))]
        got = b"".join(b.buf[at : at + size] for at, size in places)
        assert got[: len(sent)] == sent


def test_unsignaled_work_completes_silently(new_pair: NewPair) -> None:
    with new_pair(depth=8) as pair:
        for round_number in range(5):
            for number in range(7):
                last = number == 6
                flags = e.IBV_SEND_SIGNALED if last else 0
                pair.a.post_send(e.IBV_WR_RDMA_WRITE, 10, wr_id=10 * round_number + number, flags=flags)
            assert [wc.wr_id for wc in pair.a.wait()] == [10 * round_number + 6]
        pair.run()
        assert pair.a.poll() == []


def test_a_fenced_send_waits_for_the_read_before_it(new_pair: NewPair) -> None:
    with new_pair() as pair:
        a, b = pair.a, pair.b
        b.buf[:8] = b"original"
        b.post_recv(8, 100)
        a.post_send(e.IBV_WR_RDMA_READ, 8, 0, remote=0)
        a.post_send(e.IBV_WR_SEND, 8, 0, flags=e.IBV_SEND_SIGNALED | e.IBV_SEND_FENCE)
        a.wait(2)
        b.wait()
        assert b.buf[100:108] == b"original"


def test_a_chain_of_work_requests(new_pair: NewPair) -> None:
    with new_pair() as pair:
        fill(pair.a)
        first = pair.a.send_wr(e.IBV_WR_RDMA_WRITE, 100, 0, remote=0, wr_id=1)
        first.next = pair.a.send_wr(e.IBV_WR_RDMA_WRITE, 100, 100, remote=100, wr_id=2)
        pair.a.qp.post_send(first)
        assert [wc.wr_id for wc in pair.a.wait(2)] == [1, 2]
        assert pair.b.buf[:200] == pair.a.buf[:200]


def test_both_directions_at_once(new_pair: NewPair) -> None:
    with new_pair(depth=32) as pair:
        fill(pair.a, 1)
        fill(pair.b, 2)
        for number in range(16):
            for side in (pair.a, pair.b):
                side.post_send(e.IBV_WR_RDMA_WRITE, 3000, 3000 * number, remote=500_000 + 3000 * number)
        pair.a.wait(16)
        pair.b.wait(16)
        for one, other in ((pair.a, pair.b), (pair.b, pair.a)):
            assert other.buf[500_000:548_000] == one.buf[:48_000]


def test_the_psn_wraps(new_pair: NewPair) -> None:
    with new_pair(attributes={"sq_psn": 0xFFFFFE, "rq_psn": 0xFFFFFE}) as pair:
        fill(pair.a)
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 50_000)
        pair.a.post_send(e.IBV_WR_RDMA_READ, 50_000, 100_000)
        assert [wc.status for wc in pair.a.wait(2)] == [e.IBV_WC_SUCCESS] * 2
        assert pair.a.buf[100_000:150_000] == pair.a.buf[:50_000] == pair.b.buf[:50_000]


def test_a_ud_receive_tells_who_sent_it(new_pair: NewPair) -> None:
    with new_pair("UD") as pair:
        _, got = send(pair, 100)
        assert got.src_qp == pair.a.qp.qp_num  # type: ignore[attr-defined]
        assert got.wc_flags & e.IBV_WC_GRH  # type: ignore[attr-defined]


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize("size", [100, 101, 103])
@pytest.mark.parametrize("imm", [False, True], ids=["plain", "imm"])
def test_the_header_of_a_datagram_is_the_one_that_came(new_pair: NewPair, ipv6: bool, size: int, imm: bool) -> None:
    """A17.4.5.1: type of service and hop limit as they arrived, and the length with every header and the pad."""
    with new_pair("UD", ipv6=ipv6) as pair:
        here = pair.b.node.nic.config.address
        route = GlobalRoute(GID(here), flow_label=0x54321, hop_limit=9, traffic_class=0x6A)
        pair.a.ah = AH(pair.a.pd, AHAttr(route, sl=3, udp_dport=pair.b.ctx.udp_port))
        pair.b.post_recv(200)
        pair.a.post_send(e.IBV_WR_SEND_WITH_IMM if imm else e.IBV_WR_SEND, size, imm=7)
        assert pair.b.wait()[0].byte_len == size + 40
        udp_payload = 12 + 8 + (4 if imm else 0) + size + -size % 4 + 4
        if ipv6:
            assert pair.b.buf[:8] == bytes.fromhex("66a54321") + (8 + udp_payload).to_bytes(2, "big") + bytes((17, 9))
        else:
            ip = IPv4.parse(pair.b.buf, 20)
            assert (ip.total_length, ip.tos, ip.ttl, ip.protocol) == (28 + udp_payload, 0x6A, 9, 17)
        assert pair.b.buf[24:40] == here if ipv6 else pair.b.buf[36:40] == here


@pytest.mark.parametrize(("name", "value"), [("traffic_class", 256), ("hop_limit", 256), ("flow_label", 1 << 20)])
def test_an_address_handle_refuses(new_pair: NewPair, name: str, value: int) -> None:
    with new_pair("UD") as pair:
        route = GlobalRoute(GID(pair.b.node.nic.config.address), **{name: value})
        with pytest.raises(VerbsError, match=f"{name}={value}: use 0 to"):
            AH(pair.a.pd, AHAttr(route))
        with pytest.raises(VerbsError, match="sl=16: use 0 to 15"):
            AH(pair.a.pd, AHAttr(GlobalRoute(GID(pair.b.node.nic.config.address)), sl=16))


def test_a_send_longer_than_the_receive_fails_on_both_sides(new_pair: NewPair) -> None:
    with new_pair() as pair:
        pair.b.post_recv(10)
        pair.a.post_send(e.IBV_WR_SEND, 11)
        assert pair.a.wait()[0].status == e.IBV_WC_REM_INV_REQ_ERR
        assert pair.b.wait()[0].status == e.IBV_WC_LOC_LEN_ERR


def test_a_receive_that_comes_late_is_waited_for(new_pair: NewPair) -> None:
    with new_pair() as pair:
        fill(pair.a)
        pair.a.post_send(e.IBV_WR_SEND, 100)
        pair.net.run(lambda: pair.clock.now_ns > 5_000_000)
        pair.b.post_recv(100)
        assert pair.a.wait()[0].status == e.IBV_WC_SUCCESS
        assert pair.b.wait()[0].byte_len == 100
        assert pair.b.buf[:100] == pair.a.buf[:100]


def test_rnr_retries_end(new_pair: NewPair) -> None:
    with new_pair(attributes={"rnr_retry": 2}) as pair:
        pair.a.post_send(e.IBV_WR_SEND, 100)
        assert pair.a.wait()[0].status == e.IBV_WC_RNR_RETRY_EXC_ERR


def test_wrong_keys_and_ranges(new_pair: NewPair) -> None:
    for change, status in (
        ({"rkey": 0xBAD_0BAD}, e.IBV_WC_REM_ACCESS_ERR),
        ({"remote_addr": 0x1000}, e.IBV_WC_REM_ACCESS_ERR),
        ({"sg": [SGE(0x1000, 100, 0xBAD)]}, e.IBV_WC_LOC_PROT_ERR),
    ):
        with new_pair() as pair:
            wr = pair.a.send_wr(e.IBV_WR_RDMA_WRITE, 100)
            for name, value in change.items():
                setattr(wr, name, value)
            pair.a.qp.post_send(wr)
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, 100, wr_id=2)
            assert [wc.status for wc in pair.a.wait(2)] == [status, e.IBV_WC_WR_FLUSH_ERR]
            assert not any(pair.b.buf)


@pytest.mark.parametrize(
    ("access", "opcode"),
    [
        (e.IBV_ACCESS_LOCAL_WRITE, e.IBV_WR_RDMA_READ),
        (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ, e.IBV_WR_RDMA_WRITE),
        (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ, e.IBV_WR_ATOMIC_FETCH_AND_ADD),
    ],
)
def test_rights_are_kept(new_pair: NewPair, access: int, opcode: int) -> None:
    with new_pair(access=access) as pair:
        pair.a.post_send(opcode, 8)
        assert pair.a.wait()[0].status == e.IBV_WC_REM_ACCESS_ERR


def test_an_unaligned_atomic_is_refused(new_pair: NewPair) -> None:
    with new_pair() as pair:
        pair.a.post_send(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8, remote=4, compare_add=1)
        assert pair.a.wait()[0].status == e.IBV_WC_REM_INV_REQ_ERR


@pytest.mark.parametrize("every", [2, 3, 4])
def test_messages_come_through_where_every_second_packet_is_lost(every: int) -> None:
    with QpPair(faults=[{"every": every, "action": "drop"}]) as pair:
        for _ in range(10):
            pair.a.post_send(e.IBV_WR_RDMA_WRITE, 100)
            assert pair.a.wait()[0].status == e.IBV_WC_SUCCESS
        assert pair.a.node.ctx.nic.tally["fault_tx_drop"] >= 10 // every


def test_a_peer_that_is_gone() -> None:
    with QpPair(faults=[{"match": {"direction": "tx"}, "action": "drop"}], attributes={"retry_cnt": 2}) as pair:
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 5000, wr_id=1)
        pair.a.post_send(e.IBV_WR_RDMA_READ, 5000, wr_id=2)
        pair.a.post_recv(10, wr_id=3)
        found = [(wc.wr_id, wc.status) for wc in pair.a.wait(3)]
        assert found[0] == (1, e.IBV_WC_RETRY_EXC_ERR)
        assert sorted(found[1:]) == [(2, e.IBV_WC_WR_FLUSH_ERR), (3, e.IBV_WC_WR_FLUSH_ERR)]
        assert pair.a.qp.qp_state == e.IBV_QPS_ERR
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 1, wr_id=4)
        assert (pair.a.wait()[0].wr_id, pair.a.qp.qp_state) == (4, e.IBV_QPS_ERR)


def test_who_refuses_says_why_and_who_asked_repeats_it(new_pair: NewPair) -> None:
    with new_pair() as pair:
        wr = pair.a.send_wr(e.IBV_WR_RDMA_WRITE, 64, remote=pair.b.mr.length - 48)
        pair.a.qp.post_send(wr)
        assert pair.a.wait()[0].status == e.IBV_WC_REM_ACCESS_ERR
        about = f"WRITE of 64 bytes to {wr.remote_addr:#x}: "
        assert pair.b.qp.why == f"{about}beyond its region by 16 bytes"
        known = "beyond its region by 16 bytes" if pair.a.ctx.driver.hangup_filenos() else THERE
        assert pair.a.qp.why == f"{about}REM_ACCESS_ERR: {known}"


@pytest.mark.parametrize("level", [e.IBV_FLUSH_RANGE, e.IBV_FLUSH_MR])
def test_flush_and_atomic_write(new_pair: NewPair, level: int) -> None:
    with new_pair("RC") as pair:
        here, there = pair.a, pair.b
        region = MR(there.pd, bytearray(64), e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | FLUSH)
        there.qp.modify(_rights(FLUSH | e.IBV_ACCESS_REMOTE_WRITE), e.IBV_QP_STATE | e.IBV_QP_ACCESS_FLAGS)
        write = SendWR(1, e.IBV_WR_ATOMIC_WRITE)
        write.set_wr_atomic_write(region.rkey, region.buf + 8, b"abcdefgh")
        flush = SendWR(2, e.IBV_WR_FLUSH)
        flush.set_wr_flush(region.rkey, region.buf, 64, level=level)
        here.qp.post_send([write, flush])
        done = here.wait(2)
        assert [(wc.status, wc.opcode) for wc in done] == [(0, e.IBV_WC_ATOMIC_WRITE), (0, e.IBV_WC_FLUSH)]
        assert region.read(24, 0) == bytes(8) + b"abcdefgh" + bytes(8)
        flush.set_wr_flush(region.rkey, region.buf, 64, e.IBV_FLUSH_PERSISTENT)
        here.qp.post_send(flush)
        assert here.wait()[0].status == e.IBV_WC_REM_INV_REQ_ERR


def test_what_a_flush_needs(new_pair: NewPair) -> None:
    with new_pair("RC") as pair:
        with pytest.raises(VerbsError, match="does not outlast a loss of power"):
            MR(pair.a.pd, 64, e.IBV_ACCESS_FLUSH_PERSISTENT)
        with pytest.raises(VerbsError, match="data has 4 bytes; an ATOMIC WRITE has 8"):
            SendWR().set_wr_atomic_write(1, 8, b"four")


FLUSH = e.IBV_ACCESS_FLUSH_GLOBAL


def _rights(access: int) -> QPAttr:
    attr = QPAttr(e.IBV_QPS_RTS)
    attr.qp_access_flags = access
    return attr
