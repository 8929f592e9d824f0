"""The communication manager's state machine (IBA vol. 1, 12.9.5 to 12.9.7 and 12.11), as one table.

``TABLE[state, input]`` is the state that follows and what to do on the way. A pair that is not listed changes
nothing: such a message is counted and forgotten, such a request of this side is refused.

Two places differ from the standard's figures, on purpose. A DREQ is answered at once, and not when the consumer says
so: the peer has left in any case. And who has rejected stays a while in ``REJ_SENT``, so that a REQ that is repeated
because the REJ was lost is rejected again instead of being taken for a new one.
"""

from __future__ import annotations

from enum import Enum, auto


class State(Enum):
    """States of a communication ID."""

    IDLE = auto()
    REQ_SENT = auto()
    MRA_REQ_RCVD = auto()
    REP_RCVD = auto()
    MRA_REP_SENT = auto()
    REQ_RCVD = auto()
    MRA_REQ_SENT = auto()
    REP_SENT = auto()
    MRA_REP_RCVD = auto()
    ESTABLISHED = auto()
    DREQ_SENT = auto()
    TIMEWAIT = auto()
    REJ_SENT = auto()
    SIDR_REQ_SENT = auto()
    SIDR_REQ_RCVD = auto()
    SIDR_REP_SENT = auto()
    CLOSED = auto()


class Input(Enum):
    """What happens to one: messages received, requests of this side, timers."""

    RX_REQ = auto()
    """Again: the first makes the communication ID."""
    RX_MRA_REQ = auto()
    RX_MRA_REP = auto()
    RX_REJ = auto()
    RX_REP = auto()
    RX_RTU = auto()
    RX_DREQ = auto()
    RX_DREP = auto()
    RX_SIDR_REQ = auto()
    """Again."""
    RX_SIDR_REP = auto()

    CONNECT = auto()
    RESOLVE = auto()
    """By SIDR."""
    ACCEPT = auto()
    ESTABLISH = auto()
    REJECT = auto()
    DISCONNECT = auto()
    DATA = auto()
    """The queue pair has received: the peer is ready to use, whatever became of its RTU."""
    STALE = auto()
    """The peer asked for another connection of the same queue pair: it knows nothing of this one any more."""
    ABANDON = auto()
    """The owner is gone."""

    RESEND = auto()
    """No answer in time, and tries are left."""
    EXHAUSTED = auto()
    """No answer in time to the last try."""
    EXPIRE = auto()
    """The time of waiting is over."""


class Do(Enum):
    """What is done on the way: messages, timers, news for the owner."""

    SEND_REQ = auto()
    SEND_REP = auto()
    SEND_RTU = auto()
    SEND_MRA = auto()
    SEND_REJ = auto()
    SEND_REJ_TIMEOUT = auto()
    SEND_DREQ = auto()
    SEND_DREP = auto()
    SEND_SIDR_REQ = auto()
    SEND_SIDR_REP = auto()
    REPEAT = auto()
    """Send the last message once more."""
    ARM = auto()
    """Wait for the answer to what was sent."""
    EXTEND = auto()
    """Wait as long as MRA says."""
    LINGER = auto()
    """Wait until nothing of it can be under way any more."""
    HOLD = auto()
    """Wait until the peer has surely heard the last word: it asks again as long as it has not."""
    STOP = auto()
    """Wait for nothing."""
    TAKE_REP = auto()
    """Note what REP says."""
    TELL_RESPONSE = auto()
    TELL_ESTABLISHED = auto()
    TELL_REJECTED = auto()
    TELL_UNREACHABLE = auto()
    TELL_CONNECT_ERROR = auto()
    TELL_DISCONNECTED = auto()
    TELL_TIMEWAIT_EXIT = auto()
    TELL_SIDR = auto()


Row = tuple[State, tuple[Do, ...]]
S, I, D = State, Input, Do  # noqa: E741 - three letters make the table readable

_LEAVE = (D.STOP, D.TELL_DISCONNECTED, D.LINGER)

TABLE: dict[tuple[State, Input], Row] = {
    (S.IDLE, I.CONNECT): (S.REQ_SENT, (D.SEND_REQ, D.ARM)),
    (S.IDLE, I.RESOLVE): (S.SIDR_REQ_SENT, (D.SEND_SIDR_REQ, D.ARM)),
    (S.IDLE, I.ABANDON): (S.CLOSED, ()),
    # ---- the active side
    (S.REQ_SENT, I.RX_MRA_REQ): (S.MRA_REQ_RCVD, (D.EXTEND,)),
    (S.REQ_SENT, I.RX_REP): (S.REP_RCVD, (D.STOP, D.TAKE_REP, D.TELL_RESPONSE)),
    (S.REQ_SENT, I.RX_REJ): (S.CLOSED, (D.STOP, D.TELL_REJECTED)),
    (S.REQ_SENT, I.ABANDON): (S.CLOSED, (D.STOP, D.SEND_REJ_TIMEOUT)),
    (S.REQ_SENT, I.RESEND): (S.REQ_SENT, (D.REPEAT, D.ARM)),
    (S.REQ_SENT, I.EXHAUSTED): (S.CLOSED, (D.STOP, D.SEND_REJ_TIMEOUT, D.TELL_UNREACHABLE)),
    (S.MRA_REQ_RCVD, I.RX_MRA_REQ): (S.MRA_REQ_RCVD, (D.EXTEND,)),
    (S.MRA_REQ_RCVD, I.RX_REP): (S.REP_RCVD, (D.STOP, D.TAKE_REP, D.TELL_RESPONSE)),
    (S.MRA_REQ_RCVD, I.RX_REJ): (S.CLOSED, (D.STOP, D.TELL_REJECTED)),
    (S.MRA_REQ_RCVD, I.ABANDON): (S.CLOSED, (D.STOP, D.SEND_REJ_TIMEOUT)),
    (S.MRA_REQ_RCVD, I.RESEND): (S.REQ_SENT, (D.REPEAT, D.ARM)),
    (S.MRA_REQ_RCVD, I.EXHAUSTED): (S.CLOSED, (D.STOP, D.SEND_REJ_TIMEOUT, D.TELL_UNREACHABLE)),
    (S.REP_RCVD, I.RX_REP): (S.MRA_REP_SENT, (D.SEND_MRA,)),
    (S.REP_RCVD, I.RX_REJ): (S.CLOSED, (D.TELL_REJECTED,)),
    (S.REP_RCVD, I.ESTABLISH): (S.ESTABLISHED, (D.SEND_RTU,)),
    (S.REP_RCVD, I.REJECT): (S.REJ_SENT, (D.SEND_REJ, D.HOLD)),
    (S.REP_RCVD, I.DISCONNECT): (S.DREQ_SENT, (D.SEND_DREQ, D.ARM)),
    (S.REP_RCVD, I.ABANDON): (S.REJ_SENT, (D.SEND_REJ, D.HOLD)),
    (S.MRA_REP_SENT, I.RX_REP): (S.MRA_REP_SENT, (D.REPEAT,)),
    (S.MRA_REP_SENT, I.RX_REJ): (S.CLOSED, (D.TELL_REJECTED,)),
    (S.MRA_REP_SENT, I.ESTABLISH): (S.ESTABLISHED, (D.SEND_RTU,)),
    (S.MRA_REP_SENT, I.REJECT): (S.REJ_SENT, (D.SEND_REJ, D.HOLD)),
    (S.MRA_REP_SENT, I.DISCONNECT): (S.DREQ_SENT, (D.SEND_DREQ, D.ARM)),
    (S.MRA_REP_SENT, I.ABANDON): (S.REJ_SENT, (D.SEND_REJ, D.HOLD)),
    # ---- the passive side
    (S.REQ_RCVD, I.RX_REQ): (S.MRA_REQ_SENT, (D.SEND_MRA,)),
    (S.REQ_RCVD, I.RX_REJ): (S.CLOSED, (D.TELL_REJECTED,)),
    (S.REQ_RCVD, I.ACCEPT): (S.REP_SENT, (D.SEND_REP, D.ARM)),
    (S.REQ_RCVD, I.REJECT): (S.REJ_SENT, (D.SEND_REJ, D.HOLD)),
    (S.REQ_RCVD, I.ABANDON): (S.REJ_SENT, (D.SEND_REJ, D.HOLD)),
    (S.MRA_REQ_SENT, I.RX_REQ): (S.MRA_REQ_SENT, (D.REPEAT,)),
    (S.MRA_REQ_SENT, I.RX_REJ): (S.CLOSED, (D.TELL_REJECTED,)),
    (S.MRA_REQ_SENT, I.ACCEPT): (S.REP_SENT, (D.SEND_REP, D.ARM)),
    (S.MRA_REQ_SENT, I.REJECT): (S.REJ_SENT, (D.SEND_REJ, D.HOLD)),
    (S.MRA_REQ_SENT, I.ABANDON): (S.REJ_SENT, (D.SEND_REJ, D.HOLD)),
    (S.REP_SENT, I.RX_REQ): (S.REP_SENT, (D.REPEAT,)),
    (S.REP_SENT, I.RX_MRA_REP): (S.MRA_REP_RCVD, (D.EXTEND,)),
    (S.REP_SENT, I.RX_REJ): (S.CLOSED, (D.STOP, D.TELL_REJECTED)),
    (S.REP_SENT, I.RX_RTU): (S.ESTABLISHED, (D.STOP, D.TELL_ESTABLISHED)),
    (S.REP_SENT, I.DATA): (S.ESTABLISHED, (D.STOP, D.TELL_ESTABLISHED)),
    # its RTU was lost, and it has left since
    (S.REP_SENT, I.RX_DREQ): (S.TIMEWAIT, (D.STOP, D.SEND_DREP, D.TELL_ESTABLISHED, D.TELL_DISCONNECTED, D.LINGER)),
    (S.REP_SENT, I.REJECT): (S.REJ_SENT, (D.STOP, D.SEND_REJ, D.HOLD)),
    (S.REP_SENT, I.DISCONNECT): (S.DREQ_SENT, (D.SEND_DREQ, D.ARM)),
    (S.REP_SENT, I.ABANDON): (S.REJ_SENT, (D.STOP, D.SEND_REJ_TIMEOUT, D.HOLD)),
    (S.REP_SENT, I.RESEND): (S.REP_SENT, (D.REPEAT, D.ARM)),
    (S.REP_SENT, I.EXHAUSTED): (S.CLOSED, (D.STOP, D.SEND_REJ_TIMEOUT, D.TELL_CONNECT_ERROR)),
    (S.MRA_REP_RCVD, I.RX_REQ): (S.MRA_REP_RCVD, ()),
    (S.MRA_REP_RCVD, I.RX_MRA_REP): (S.MRA_REP_RCVD, (D.EXTEND,)),
    (S.MRA_REP_RCVD, I.RX_REJ): (S.CLOSED, (D.STOP, D.TELL_REJECTED)),
    (S.MRA_REP_RCVD, I.RX_RTU): (S.ESTABLISHED, (D.STOP, D.TELL_ESTABLISHED)),
    (S.MRA_REP_RCVD, I.DATA): (S.ESTABLISHED, (D.STOP, D.TELL_ESTABLISHED)),
    (S.MRA_REP_RCVD, I.RX_DREQ): (
        S.TIMEWAIT,
        (D.STOP, D.SEND_DREP, D.TELL_ESTABLISHED, D.TELL_DISCONNECTED, D.LINGER),
    ),
    (S.MRA_REP_RCVD, I.REJECT): (S.REJ_SENT, (D.STOP, D.SEND_REJ, D.HOLD)),
    (S.MRA_REP_RCVD, I.DISCONNECT): (S.DREQ_SENT, (D.SEND_DREQ, D.ARM)),
    (S.MRA_REP_RCVD, I.ABANDON): (S.REJ_SENT, (D.STOP, D.SEND_REJ_TIMEOUT, D.HOLD)),
    (S.MRA_REP_RCVD, I.RESEND): (S.REP_SENT, (D.REPEAT, D.ARM)),
    (S.MRA_REP_RCVD, I.EXHAUSTED): (S.CLOSED, (D.STOP, D.SEND_REJ_TIMEOUT, D.TELL_CONNECT_ERROR)),
    # ---- both sides
    (S.ESTABLISHED, I.RX_REQ): (S.ESTABLISHED, ()),
    (S.ESTABLISHED, I.RX_REP): (S.ESTABLISHED, (D.REPEAT,)),
    (S.ESTABLISHED, I.RX_RTU): (S.ESTABLISHED, ()),
    (S.ESTABLISHED, I.RX_REJ): (S.TIMEWAIT, _LEAVE),
    (S.ESTABLISHED, I.RX_DREQ): (S.TIMEWAIT, (D.SEND_DREP, D.TELL_DISCONNECTED, D.LINGER)),
    (S.ESTABLISHED, I.DATA): (S.ESTABLISHED, ()),
    (S.ESTABLISHED, I.STALE): (S.TIMEWAIT, _LEAVE),
    (S.ESTABLISHED, I.DISCONNECT): (S.DREQ_SENT, (D.SEND_DREQ, D.ARM)),
    (S.ESTABLISHED, I.ABANDON): (S.DREQ_SENT, (D.SEND_DREQ, D.ARM)),
    (S.DREQ_SENT, I.RX_REQ): (S.DREQ_SENT, ()),
    (S.DREQ_SENT, I.RX_REP): (S.DREQ_SENT, ()),
    (S.DREQ_SENT, I.RX_RTU): (S.DREQ_SENT, ()),
    (S.DREQ_SENT, I.RX_REJ): (S.TIMEWAIT, _LEAVE),
    (S.DREQ_SENT, I.RX_DREQ): (S.TIMEWAIT, (D.STOP, D.SEND_DREP, D.TELL_DISCONNECTED, D.LINGER)),
    (S.DREQ_SENT, I.RX_DREP): (S.TIMEWAIT, _LEAVE),
    (S.DREQ_SENT, I.STALE): (S.TIMEWAIT, _LEAVE),
    (S.DREQ_SENT, I.DISCONNECT): (S.DREQ_SENT, ()),
    (S.DREQ_SENT, I.ABANDON): (S.DREQ_SENT, ()),
    (S.DREQ_SENT, I.RESEND): (S.DREQ_SENT, (D.REPEAT, D.ARM)),
    (S.DREQ_SENT, I.EXHAUSTED): (S.TIMEWAIT, _LEAVE),
    (S.TIMEWAIT, I.RX_REQ): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.RX_REP): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.RX_RTU): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.RX_REJ): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.RX_DREQ): (S.TIMEWAIT, (D.SEND_DREP,)),
    (S.TIMEWAIT, I.RX_DREP): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.DISCONNECT): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.ABANDON): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.EXPIRE): (S.CLOSED, (D.TELL_TIMEWAIT_EXIT,)),
    (S.REJ_SENT, I.RX_REQ): (S.REJ_SENT, (D.REPEAT,)),
    (S.REJ_SENT, I.RX_REP): (S.REJ_SENT, (D.REPEAT,)),
    (S.REJ_SENT, I.RX_RTU): (S.REJ_SENT, (D.REPEAT,)),
    (S.REJ_SENT, I.RX_DREQ): (S.REJ_SENT, (D.SEND_DREP,)),
    (S.REJ_SENT, I.RX_REJ): (S.REJ_SENT, ()),
    (S.REJ_SENT, I.ABANDON): (S.REJ_SENT, ()),
    (S.REJ_SENT, I.EXPIRE): (S.CLOSED, ()),
    # ---- service ID resolution
    (S.SIDR_REQ_SENT, I.RX_SIDR_REP): (S.CLOSED, (D.STOP, D.TELL_SIDR)),
    (S.SIDR_REQ_SENT, I.ABANDON): (S.CLOSED, (D.STOP,)),
    (S.SIDR_REQ_SENT, I.RESEND): (S.SIDR_REQ_SENT, (D.REPEAT, D.ARM)),
    (S.SIDR_REQ_SENT, I.EXHAUSTED): (S.CLOSED, (D.STOP, D.TELL_UNREACHABLE)),
    (S.SIDR_REQ_RCVD, I.RX_SIDR_REQ): (S.SIDR_REQ_RCVD, ()),
    (S.SIDR_REQ_RCVD, I.ACCEPT): (S.SIDR_REP_SENT, (D.SEND_SIDR_REP, D.HOLD)),
    (S.SIDR_REQ_RCVD, I.REJECT): (S.SIDR_REP_SENT, (D.SEND_SIDR_REP, D.HOLD)),
    (S.SIDR_REQ_RCVD, I.ABANDON): (S.SIDR_REP_SENT, (D.SEND_SIDR_REP, D.HOLD)),
    (S.SIDR_REP_SENT, I.RX_SIDR_REQ): (S.SIDR_REP_SENT, (D.REPEAT,)),
    (S.SIDR_REP_SENT, I.ABANDON): (S.SIDR_REP_SENT, ()),
    (S.SIDR_REP_SENT, I.EXPIRE): (S.CLOSED, ()),
    (S.CLOSED, I.DISCONNECT): (S.CLOSED, ()),
    (S.CLOSED, I.ABANDON): (S.CLOSED, ()),
}
