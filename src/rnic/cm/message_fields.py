"""The fields of a connection's messages, from its record and its port (IBA 12.6)."""

from __future__ import annotations

from collections.abc import Callable

from rnic.cm.records import ConnectionRecord, Port
from rnic.cm.state_machine import State
from rnic.spec import cm
from rnic.wire import cm as wire
from rnic.wire.mad import CM_DREP, CM_DREQ, CM_MRA, CM_REJ, CM_REP, CM_REQ, CM_RTU, CM_SIDR_REP, CM_SIDR_REQ

_NO_LID = 0xFFFF
_HOPS = 64
_GUID_BYTES = 8
_ACK_DELAY = 15

Fields = dict[str, int]


def build_message(connection: ConnectionRecord, port: Port, attr: int) -> bytes:
    """Build the datagram of a connection's message, with its owner's private data if the message has such a field."""
    return _pack(connection, attr, _FIELDS[attr](connection, port), attr in _WITH_PRIVATE)


def build_timeout_rej(connection: ConnectionRecord, port: Port) -> bytes:
    """Build a REJ for a timeout.

    The peer's ID may be unknown; the peer then finds the connection by the local GUID and ID (12.6.7.2).
    """
    about = cm.REJECTED_OTHER if connection.listener is None else cm.REJECTED_REQ
    fields = {"message": about, "reason": cm.REJ_TIMEOUT, "info_length": _GUID_BYTES, "ca_guid": port.guid}
    return _pack(connection, CM_REJ, _ids(connection) | fields, False)


def _pack(connection: ConnectionRecord, attr: int, fields: Fields, private: bool) -> bytes:
    return wire.pack(attr, connection.tid, fields, connection.private if private else b"")


def _ids(connection: ConnectionRecord) -> Fields:
    return {"local_comm_id": connection.local_id, "remote_comm_id": connection.remote_id}


def _req(connection: ConnectionRecord, port: Port) -> Fields:
    local = connection.local
    return {
        "local_comm_id": connection.local_id,
        "service_id": connection.service_id,
        "ca_guid": port.guid,
        "qpn": local.qpn,
        "responder_resources": local.responder_resources,
        "initiator_depth": local.initiator_depth,
        "remote_cm_timeout": cm.RESPONSE_TIMEOUT,
        "transport": connection.transport,
        "flow_control": local.flow_control,
        "psn": local.psn,
        "local_cm_timeout": cm.RESPONSE_TIMEOUT,
        "retry_count": local.retry_count,
        "pkey": port.pkey,
        "path_mtu": connection.mtu_code,
        "rnr_retry_count": local.rnr_retry_count,
        "max_cm_retries": cm.MAX_CM_RETRIES,
        "srq": local.srq,
        "primary_local_lid": _NO_LID,
        "primary_remote_lid": _NO_LID,
        "primary_local_gid": int.from_bytes(port.gid, "big"),
        "primary_remote_gid": int.from_bytes(connection.peer, "big"),
        "traffic_class": connection.traffic_class,
        "hop_limit": _HOPS,
        "ack_timeout": connection.ack_timeout,
    }


def _rep(connection: ConnectionRecord, port: Port) -> Fields:
    local = connection.local
    return _ids(connection) | {
        "qkey": local.qkey,
        "qpn": local.qpn,
        "psn": local.psn,
        "responder_resources": local.responder_resources,
        "initiator_depth": local.initiator_depth,
        "ack_delay": _ACK_DELAY,
        "flow_control": local.flow_control,
        "rnr_retry_count": local.rnr_retry_count,
        "srq": local.srq,
        "ca_guid": port.guid,
    }


def _mra(connection: ConnectionRecord, port: Port) -> Fields:
    about = cm.REJECTED_REP if connection.state is State.MRA_REP_SENT else cm.REJECTED_REQ
    return _ids(connection) | {"message": about, "service_timeout": cm.MRA_SERVICE_TIMEOUT}


def _rej(connection: ConnectionRecord, port: Port) -> Fields:
    about = cm.REJECTED_REQ if connection.listener is not None else cm.REJECTED_REP
    return _ids(connection) | {"message": about, "reason": connection.status or cm.REJ_CONSUMER_DEFINED}


def _dreq(connection: ConnectionRecord, port: Port) -> Fields:
    return _ids(connection) | {"qpn": connection.remote.qpn}


def _ids_alone(connection: ConnectionRecord, port: Port) -> Fields:
    return _ids(connection)


def _sidr_req(connection: ConnectionRecord, port: Port) -> Fields:
    return {"request_id": connection.local_id, "pkey": port.pkey, "service_id": connection.service_id}


def _sidr_rep(connection: ConnectionRecord, port: Port) -> Fields:
    local = connection.local
    return {
        "request_id": connection.remote_id,
        "status": connection.status,
        "service_id": connection.service_id,
        "qpn": 0 if connection.status else local.qpn,
        "qkey": 0 if connection.status else local.qkey,
    }


_FIELDS: dict[int, Callable[[ConnectionRecord, Port], Fields]] = {
    CM_REQ: _req,
    CM_REP: _rep,
    CM_RTU: _ids_alone,
    CM_MRA: _mra,
    CM_REJ: _rej,
    CM_DREQ: _dreq,
    CM_DREP: _ids_alone,
    CM_SIDR_REQ: _sidr_req,
    CM_SIDR_REP: _sidr_rep,
}
_WITH_PRIVATE = frozenset({CM_REQ, CM_REP, CM_RTU, CM_REJ, CM_DREQ, CM_SIDR_REQ, CM_SIDR_REP})
