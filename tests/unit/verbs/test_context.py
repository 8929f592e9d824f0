from __future__ import annotations

import errno
import random
import socket

import numpy as np
import pytest

import rnic
from rnic import enums as e
from rnic.link.loopback import loopback_pair
from rnic.runtime.driver import LocalDriver
from rnic.spec.errors import VerbsError
from rnic.testing import QpPair, SimNet
from rnic.verbs import CQ, MR, PD, QP, Context, QPCap, QPInitAttr, get_device_list, runtime_on
from rnic.verbs.context import MOST_ASYNC_EVENTS
from rnic.verbs.event_queues import AsyncEvent


def local(ctx: Context) -> LocalDriver:
    assert isinstance(ctx.driver, LocalDriver)
    return ctx.driver


def test_devices() -> None:
    devices = get_device_list()
    assert devices[0].name == "rnic0"
    assert len({device.name for device in devices}) == len(devices)
    assert any(device.address == "127.0.0.1" for device in devices)
    assert all(device.guid for device in devices)
    assert devices[0].address in repr(devices[0])


def test_an_unknown_device() -> None:
    with pytest.raises(VerbsError, match=r"device 'mlx5_0' is not there: use one of rnic0") as error:
        Context("mlx5_0")
    assert error.value.errno == errno.ENODEV


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none(port: int) -> None:
    with pytest.raises(VerbsError, match=f"port={port}"):
        Context(addr="127.0.0.1", port=port)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(rnic.LinkError, match=r"203\.0\.113\.1"):
        Context(addr="203.0.113.1", port=0)


def test_a_port_that_is_taken_says_where_and_what_to_do() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        with pytest.raises(
            rnic.LinkError, match=rf"UDP port {port} on 127\.0\.0\.1 is taken: give another port.*rnic\.open"
        ):
            Context(addr="127.0.0.1", port=port)


def test_contexts_of_one_device_share_its_nic() -> None:
    with Context(addr="127.0.0.1", port=0) as first:
        with Context(addr="127.0.0.1", port=first.udp_port) as second:
            assert second.nic is first.nic
            assert local(second).uar is not local(first).uar
        PD(first).close()
    with Context(addr="127.0.0.1", port=first.udp_port) as again:
        assert again.nic is not first.nic


def test_queries() -> None:
    with SimNet(1) as net:
        ctx = net.nodes[0].ctx
        device = ctx.query_device()
        assert device.node_guid.count(":") == 3
        assert device.max_qp >= 1 << 13
        assert device.max_sge == 32
        assert device.atomic_caps == e.IBV_ATOMIC_HCA
        assert device.device_cap_flags & e.IBV_DEVICE_MEM_WINDOW_TYPE_2B
        port = ctx.query_port()
        assert (port.state, port.link_layer) == (e.IBV_PORT_ACTIVE, e.IBV_LINK_LAYER_ETHERNET)
        assert (port.active_mtu, port.gid_tbl_len, port.pkey_tbl_len) == (e.IBV_MTU_4096, 1, 1)
        assert ctx.query_rt_values_ex() == (e.IBV_VALUES_MASK_RAW_CLOCK, net.clock())
        with pytest.raises(VerbsError, match="comp_mask=0x2"):
            ctx.query_rt_values_ex(2)
        assert ctx.query_gid().address == b"\x0a\0\0\1"
        assert ctx.query_pkey() == 0xFFFF
        for call in (
            lambda: ctx.query_port(2),
            lambda: ctx.query_gid(1, 1),
            lambda: ctx.query_pkey(1, 1),
            lambda: ctx.query_pkey(1, -1),
        ):
            with pytest.raises(VerbsError):
                call()


def test_a_link_of_your_own_and_keys_that_repeat() -> None:
    keys = []
    for _ in range(2):
        link, other = loopback_pair()
        with Context(runtime=runtime_on(link, seed=5)) as ctx:
            keys.append(MR(PD(ctx), bytearray(10)).lkey)
        other.close()
    assert keys[0] == keys[1]
    with Context(link=loopback_pair()[0]) as ctx:
        assert ctx.address == "127.0.0.1"


def test_a_nic_that_talks_to_itself() -> None:
    with Context(addr="127.0.0.1", port=0) as ctx:
        pd, cq = PD(ctx), CQ(ctx, 10)
        one, other = (QP(pd, QPInitAttr(cap=QPCap(4, 4), scq=cq, rcq=cq)) for _ in range(2))
        for qp, peer in ((one, other), (other, one)):
            attr = rnic.QPAttr()
            attr.dest_qp_num = peer.qp_num
            attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_LOCAL_WRITE
            attr.ah_attr = rnic.AHAttr(rnic.GlobalRoute(ctx.query_gid()), udp_dport=ctx.udp_port)
            qp.to_rts(attr)
        memory = bytearray(random.Random(1).randbytes(100_000)) + bytearray(100_000)
        mr = MR(pd, memory, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        wr = rnic.SendWR(1, e.IBV_WR_RDMA_WRITE, sg=[rnic.SGE(mr.buf, 100_000, mr.lkey)])
        wr.set_wr_rdma(mr.rkey, mr.buf + 100_000)
        one.post_send(wr)
        while not (got := cq.poll())[0]:
            pass
        assert got[1][0].status == e.IBV_WC_SUCCESS
        assert memory[:100_000] == memory[100_000:]


# ------------------------------------------------------------------------------------- memory regions


def test_regions_over_any_buffer() -> None:
    with SimNet(1) as net:
        pd = PD(net.nodes[0].ctx)
        array = np.zeros(100)
        with MR(pd, array, e.IBV_ACCESS_LOCAL_WRITE) as mr:
            assert mr.length == 800
            mr.write(b"\0" * 6 + b"\xf0\x3f", 8, 8)
            assert array[1] == 1.0
            assert mr.read(2, 14) == b"\xf0\x3f"
            assert f"{mr.lkey:#x}" in repr(mr)
        with MR(pd, 64) as own:
            assert own.length == 64
        assert MR(pd, b"constant", e.IBV_ACCESS_REMOTE_READ).length == 8


def test_a_region_keeps_its_buffer_alive() -> None:
    with SimNet(1) as net:
        mr = MR(PD(net.nodes[0].ctx), bytearray(b"alive"))
        assert mr.read(5, 0) == b"alive"


@pytest.mark.parametrize(
    ("buffer", "access", "says"),
    [
        (0, e.IBV_ACCESS_LOCAL_WRITE, "length=0"),
        (-5, e.IBV_ACCESS_LOCAL_WRITE, "length=-5"),
        (bytearray(1), 1 << 10, "access=0x400"),
        (bytearray(1), e.IBV_ACCESS_REMOTE_WRITE, "add IBV_ACCESS_LOCAL_WRITE"),
        (b"constant", e.IBV_ACCESS_LOCAL_WRITE, "read-only"),
        (bytearray(), 0, "length 0"),
        ("text", 0, "no bytes"),
        (np.zeros((4, 4))[:, 1], 0, "not contiguous"),
    ],
)
def test_what_cannot_be_registered(buffer: object, access: int, says: str) -> None:
    with SimNet(1) as net:
        pd = PD(net.nodes[0].ctx)
        with pytest.raises(VerbsError, match=says):
            MR(pd, buffer, access)
        pd.close()


def test_what_is_dropped_without_closing_goes_with_its_domain() -> None:
    with SimNet(1) as net:
        pd = PD(net.nodes[0].ctx)
        for _ in range(3):
            MR(pd, 100)
        assert len(net.nodes[0].nic.resources.keys) == 3
        pd.close()
        pd.close()
        assert not net.nodes[0].nic.resources.keys


def test_commands_after_closing_fail() -> None:
    with SimNet(1) as net:
        ctx = net.nodes[0].ctx
        ctx.close()
        with pytest.raises(VerbsError):
            PD(ctx)


def test_events_that_nobody_reads_are_bounded() -> None:
    with SimNet(1) as net:
        ctx = net.nodes[0].ctx
        for _ in range(MOST_ASYNC_EVENTS):
            ctx._async.put(AsyncEvent(e.IBV_EVENT_PORT_ERR, None))
        ctx._async.put(AsyncEvent(e.IBV_EVENT_DEVICE_FATAL, None))
        kinds = [ctx.get_async_event(block=False).event_type for _ in range(MOST_ASYNC_EVENTS)]
        assert (kinds[0], kinds[-1]) == (e.IBV_EVENT_PORT_ERR, e.IBV_EVENT_DEVICE_FATAL)
        with pytest.raises(VerbsError, match="no event waits"):
            ctx.get_async_event(block=False)


def test_the_port_goes_down_and_up() -> None:
    with QpPair("RC") as pair:
        ctx = pair.a.node.ctx
        nic = pair.a.node.nic
        for up, kind, state in ((False, e.IBV_EVENT_PORT_ERR, 1), (True, e.IBV_EVENT_PORT_ACTIVE, 4)):
            nic.set_link(up)
            pair.net.turn()
            ctx.runtime._interrupts()
            event = ctx.get_async_event(block=False)
            assert (event.event_type, event.element) == (kind, None)
            assert ctx.query_port().state == state
