"""A NIC in *channels* mode, for tests: its data path uses the responses of CtxMgt on the six channels of 002 3.2.

Before the data path runs (to receive, to send, or for a timer), it requests each queue pair's context on all six
channels and uses the responses. Afterward, it writes back state and PSNs by the three writes. Context fields that no
channel returns (rights, retry timers, the extension) are read from the QPC. CtxMgt may be the software model or the
gateware (:class:`rnic.gateware.ctxmgt.contexts.GatewareContexts`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from rnic.context import messages as m
from rnic.context.ctxmgt import ContextManager
from rnic.device.config import NicConfig
from rnic.device.nic import Nic
from rnic.wire.bursts import RxBurst, TxBurst

MAC_LOW: Final = 16
"""Number of MAC address bits in the field that holds a LID in InfiniBand mode."""
Fields = dict[str, int]


def qp_fields(answers: dict[int, Fields]) -> dict[str, tuple[int, int]]:
    """Return value and width of each QPC field in the six responses."""
    db, wp, rtc, rrc, ee, fe = (answers[source] for source in m.ENGINES)
    return {
        "servtype": (db["servtype"], 8),
        "remote_qpn": (db["dst_qpn_hi"] << 16 | db["dst_qpn"], 24),
        "mtu": (db["pmtu_msgmax"] >> 5, 3),
        "msgmax": (db["pmtu_msgmax"], 5),
        "snd_wqe_base_lkey": (db["sq_lkey"], 32),
        "pd": (db["qp_pd"], 32),
        "sq_entry_sz_log": (wp["sq_entry_sz_log"], 8),
        "snd_wqe_length": (wp["sq_length"], 32),
        "state": (wp["state"], 4),
        "next_send_psn": (rtc["next_psn"], 24),
        "cqn_snd": (rtc["scqn"], 24),
        "last_acked_psn": (rrc["unacked_psn"], 24),
        "expected_psn": (ee["expected_psn"], 24),
        "rnr_retry": (ee["rnr_retry"], 3),
        "rq_entry_sz_log": (ee["rq_entry_sz_log"], 8),
        "rcv_wqe_base_lkey": (ee["rq_lkey"], 32),
        "rcv_wqe_length": (ee["rq_length"], 32),
        "cqn_rcv": (ee["cqn"], 24),
        "port": (fe["port"], 3),
        "pkey_index": (fe["pkey"], 7),
        "sl": (fe["sl"], 4),
        "sip": (fe["sip"], 32),
        "dip": (fe["dip"], 32),
        "smac_hi": (fe["smac"] >> MAC_LOW, 32),
        "slid": (fe["smac"], 16),
        "dmac_hi": (fe["dmac"] >> MAC_LOW, 32),
        "dlid": (fe["dmac"], 16),
    }


def ask(contexts: ContextManager, number: int) -> dict[int, Fields]:
    """Return the responses of the six channels for a cached queue pair, by source."""
    answers = {}
    for source, row in m.READS.items():
        contexts.request(source, m.engine_request(row.type, row.opcode, number))
        contexts.run()
        response = contexts.response(source)
        assert response is not None
        answers[source] = m.RESPONSES[source].unpack(response[1])
    return answers


def take(record: Any, values: dict[str, tuple[int, int]]) -> None:
    """Store the low bits of fields; higher bits are unchanged."""
    for name, (value, width) in values.items():
        mask = (1 << width) - 1
        setattr(record, name, getattr(record, name) & ~mask | value & mask)


class ChannelNic(Nic):
    """:class:`~rnic.device.nic.Nic` in channels mode, which runs the reference only: ``config.channels`` is set."""

    def __init__(self, config: NicConfig, **more: Any) -> None:
        super().__init__(replace(config, channels=True), **more)
        self.fetched = 0
        """Number of contexts fetched through the channels so far."""

    def _fetch(self) -> None:
        self.contexts.level()
        self._store()  # commands also change PSNs
        evicted = self.contexts.key.eqs.evicted
        for number in [number for number in self.running if number in self.contexts.key.qps]:
            # a response includes the EQ's fields, which 002 does not define if the EQ is not cached
            if not evicted or not {cq.key.comp_eqn for cq in self.running[number].cqs} & evicted:
                self._fetch_one(number)

    def _fetch_one(self, number: int) -> None:
        answers = ask(self.contexts, number)
        key, rtc, rrc, ee = self.contexts.key, answers[m.RTC], answers[m.RRC], answers[m.EE]
        plain = key.qps.view(number)
        take(plain, qp_fields(answers))
        if plain.cqn_snd in key.cqs:
            cq = key.cqs.view(plain.cqn_snd)
            fields = {"lkey": rtc["scq_lkey"], "logsize": rtc["scq_length"], "pd": rtc["scq_pd"]}
            take(cq, {name: (value, 8 if name == "logsize" else 32) for name, value in fields.items()})
            take(cq, {"comp_eqn": (rtc["eqn"], 8)})
            if cq.comp_eqn in key.eqs:
                take(
                    key.eqs.view(cq.comp_eqn),
                    {
                        "lkey": (rtc["eq_lkey"], 32),
                        "logsize": (rtc["eq_length"], 8),
                        "pd": (rtc["eq_pd"], 32),
                        "msix_vector": (rrc["msix_vector"], 16),
                    },
                )
        if plain.cqn_rcv in key.cqs:
            take(
                key.cqs.view(plain.cqn_rcv),
                {"lkey": (ee["cq_lkey"], 32), "logsize": (ee["rcq_length"], 8), "pd": (ee["cq_pd"], 12)},
            )
        self.fetched += 1

    def _store(self) -> None:
        for number in list(self.running):
            self.contexts.write_back_one(number)

    def receive(self, burst: RxBurst, now_ns: int, start: int = 0) -> None:
        """Run :meth:`Nic.receive <rnic.device.nic.Nic.receive>` on the channels' responses."""
        self._fetch()
        super().receive(burst, now_ns, start)
        self._store()

    def produce(self, now_ns: int, budget: int = 256) -> list[TxBurst]:
        """Run :meth:`Nic.produce <rnic.device.nic.Nic.produce>` on the channels' responses."""
        if not self.has_work():
            return super().produce(now_ns, budget)
        self._fetch()
        out = super().produce(now_ns, budget)
        self._store()
        return out

    def handle_timers(self, now_ns: int) -> None:
        """Run :meth:`Nic.handle_timers <rnic.device.nic.Nic.handle_timers>` on the channels' responses."""
        deadline = self.next_deadline_ns()
        if deadline is not None and deadline <= now_ns:
            self._fetch()
            super().handle_timers(now_ns)
            self._store()
        else:
            super().handle_timers(now_ns)


def make_nic(config: NicConfig, **more: Any) -> Nic:
    """Return the NIC for a configuration; ``more`` as for :class:`~rnic.device.nic.Nic`."""
    return (ChannelNic if config.channels else Nic)(config, **more)
