"""The communication manager's state machine (IBA vol. 1, 12.9.5 to 12.9.7 and 12.11), as one table.

``TABLE[state, input]`` is the next state and the actions of the transition. A pair that is not listed changes nothing:
the message is counted and dropped, the owner's request is refused.

Two transitions differ from the standard's figures, on purpose. A DREQ is answered at once, without waiting for the
consumer: the peer has left in any case. And a rejected connection stays in ``REJ_SENT`` for a while: a REQ that is
retransmitted because the REJ was lost is rejected again, not treated as new.
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
    """Inputs of the state machine: messages received, requests of the owner, timers."""

    RX_REQ = auto()
    """A duplicate REQ: the first one makes the communication ID."""
    RX_MRA_REQ = auto()
    RX_MRA_REP = auto()
    RX_REJ = auto()
    RX_REP = auto()
    RX_RTU = auto()
    RX_DREQ = auto()
    RX_DREP = auto()
    RX_SIDR_REQ = auto()
    """A duplicate SIDR_REQ."""
    RX_SIDR_REP = auto()

    CONNECT = auto()
    RESOLVE = auto()
    """Request of the owner: resolve the service ID by SIDR."""
    ACCEPT = auto()
    ESTABLISH = auto()
    REJECT = auto()
    DISCONNECT = auto()
    COMM_EST = auto()
    """Communication established: the queue pair has received, so the peer is ready even if its RTU was lost."""
    STALE = auto()
    """The peer requested another connection of the same queue pair: it no longer knows this one."""
    DESTROY = auto()
    """The owner destroyed its ID."""

    RESEND = auto()
    """No answer in time, and retries are left."""
    RETRIES_EXCEEDED = auto()
    """No answer in time, and no retries are left."""
    EXPIRE = auto()
    """TIMEWAIT, or the time for which an answer is kept, is over."""


class Action(Enum):
    """Actions of a transition: messages, timers, events for the owner."""

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
    """Retransmit the last message."""
    ARM = auto()
    """Start the timer for the answer to the last message."""
    EXTEND = auto()
    """Start the timer for the service timeout in the MRA."""
    START_TIMEWAIT = auto()
    """Start TIMEWAIT: until none of the connection's packets can be in flight."""
    KEEP_ANSWER = auto()
    """Keep the last answer for retransmission for as long as the peer might retransmit its request."""
    STOP = auto()
    """Stop the timer."""
    RECORD_REP = auto()
    """Record the parameters of REP."""
    REPORT_RESPONSE = auto()
    REPORT_ESTABLISHED = auto()
    REPORT_REJECTED = auto()
    REPORT_UNREACHABLE = auto()
    REPORT_CONNECT_ERROR = auto()
    REPORT_DISCONNECTED = auto()
    REPORT_TIMEWAIT_EXIT = auto()
    REPORT_SIDR = auto()


Row = tuple[State, tuple[Action, ...]]
S, I, A = State, Input, Action  # noqa: E741 - three letters make the table readable

_DISCONNECTED = (A.STOP, A.REPORT_DISCONNECTED, A.START_TIMEWAIT)

TABLE: dict[tuple[State, Input], Row] = {
    (S.IDLE, I.CONNECT): (S.REQ_SENT, (A.SEND_REQ, A.ARM)),
    (S.IDLE, I.RESOLVE): (S.SIDR_REQ_SENT, (A.SEND_SIDR_REQ, A.ARM)),
    (S.IDLE, I.DESTROY): (S.CLOSED, ()),
    # ---- the active side
    (S.REQ_SENT, I.RX_MRA_REQ): (S.MRA_REQ_RCVD, (A.EXTEND,)),
    (S.REQ_SENT, I.RX_REP): (S.REP_RCVD, (A.STOP, A.RECORD_REP, A.REPORT_RESPONSE)),
    (S.REQ_SENT, I.RX_REJ): (S.CLOSED, (A.STOP, A.REPORT_REJECTED)),
    (S.REQ_SENT, I.DESTROY): (S.CLOSED, (A.STOP, A.SEND_REJ_TIMEOUT)),
    (S.REQ_SENT, I.RESEND): (S.REQ_SENT, (A.REPEAT, A.ARM)),
    (S.REQ_SENT, I.RETRIES_EXCEEDED): (S.CLOSED, (A.STOP, A.SEND_REJ_TIMEOUT, A.REPORT_UNREACHABLE)),
    (S.MRA_REQ_RCVD, I.RX_MRA_REQ): (S.MRA_REQ_RCVD, (A.EXTEND,)),
    (S.MRA_REQ_RCVD, I.RX_REP): (S.REP_RCVD, (A.STOP, A.RECORD_REP, A.REPORT_RESPONSE)),
    (S.MRA_REQ_RCVD, I.RX_REJ): (S.CLOSED, (A.STOP, A.REPORT_REJECTED)),
    (S.MRA_REQ_RCVD, I.DESTROY): (S.CLOSED, (A.STOP, A.SEND_REJ_TIMEOUT)),
    (S.MRA_REQ_RCVD, I.RESEND): (S.REQ_SENT, (A.REPEAT, A.ARM)),
    (S.MRA_REQ_RCVD, I.RETRIES_EXCEEDED): (S.CLOSED, (A.STOP, A.SEND_REJ_TIMEOUT, A.REPORT_UNREACHABLE)),
    (S.REP_RCVD, I.RX_REP): (S.MRA_REP_SENT, (A.SEND_MRA,)),
    (S.REP_RCVD, I.RX_REJ): (S.CLOSED, (A.REPORT_REJECTED,)),
    (S.REP_RCVD, I.ESTABLISH): (S.ESTABLISHED, (A.SEND_RTU,)),
    (S.REP_RCVD, I.REJECT): (S.REJ_SENT, (A.SEND_REJ, A.KEEP_ANSWER)),
    (S.REP_RCVD, I.DISCONNECT): (S.DREQ_SENT, (A.SEND_DREQ, A.ARM)),
    (S.REP_RCVD, I.DESTROY): (S.REJ_SENT, (A.SEND_REJ, A.KEEP_ANSWER)),
    (S.MRA_REP_SENT, I.RX_REP): (S.MRA_REP_SENT, (A.REPEAT,)),
    (S.MRA_REP_SENT, I.RX_REJ): (S.CLOSED, (A.REPORT_REJECTED,)),
    (S.MRA_REP_SENT, I.ESTABLISH): (S.ESTABLISHED, (A.SEND_RTU,)),
    (S.MRA_REP_SENT, I.REJECT): (S.REJ_SENT, (A.SEND_REJ, A.KEEP_ANSWER)),
    (S.MRA_REP_SENT, I.DISCONNECT): (S.DREQ_SENT, (A.SEND_DREQ, A.ARM)),
    (S.MRA_REP_SENT, I.DESTROY): (S.REJ_SENT, (A.SEND_REJ, A.KEEP_ANSWER)),
    # ---- the passive side
    (S.REQ_RCVD, I.RX_REQ): (S.MRA_REQ_SENT, (A.SEND_MRA,)),
    (S.REQ_RCVD, I.RX_REJ): (S.CLOSED, (A.REPORT_REJECTED,)),
    (S.REQ_RCVD, I.ACCEPT): (S.REP_SENT, (A.SEND_REP, A.ARM)),
    (S.REQ_RCVD, I.REJECT): (S.REJ_SENT, (A.SEND_REJ, A.KEEP_ANSWER)),
    (S.REQ_RCVD, I.DESTROY): (S.REJ_SENT, (A.SEND_REJ, A.KEEP_ANSWER)),
    (S.MRA_REQ_SENT, I.RX_REQ): (S.MRA_REQ_SENT, (A.REPEAT,)),
    (S.MRA_REQ_SENT, I.RX_REJ): (S.CLOSED, (A.REPORT_REJECTED,)),
    (S.MRA_REQ_SENT, I.ACCEPT): (S.REP_SENT, (A.SEND_REP, A.ARM)),
    (S.MRA_REQ_SENT, I.REJECT): (S.REJ_SENT, (A.SEND_REJ, A.KEEP_ANSWER)),
    (S.MRA_REQ_SENT, I.DESTROY): (S.REJ_SENT, (A.SEND_REJ, A.KEEP_ANSWER)),
    (S.REP_SENT, I.RX_REQ): (S.REP_SENT, (A.REPEAT,)),
    (S.REP_SENT, I.RX_MRA_REP): (S.MRA_REP_RCVD, (A.EXTEND,)),
    (S.REP_SENT, I.RX_REJ): (S.CLOSED, (A.STOP, A.REPORT_REJECTED)),
    (S.REP_SENT, I.RX_RTU): (S.ESTABLISHED, (A.STOP, A.REPORT_ESTABLISHED)),
    (S.REP_SENT, I.COMM_EST): (S.ESTABLISHED, (A.STOP, A.REPORT_ESTABLISHED)),
    # the peer's RTU was lost, and the peer has disconnected since
    (S.REP_SENT, I.RX_DREQ): (
        S.TIMEWAIT,
        (A.STOP, A.SEND_DREP, A.REPORT_ESTABLISHED, A.REPORT_DISCONNECTED, A.START_TIMEWAIT),
    ),
    (S.REP_SENT, I.REJECT): (S.REJ_SENT, (A.STOP, A.SEND_REJ, A.KEEP_ANSWER)),
    (S.REP_SENT, I.DISCONNECT): (S.DREQ_SENT, (A.SEND_DREQ, A.ARM)),
    (S.REP_SENT, I.DESTROY): (S.REJ_SENT, (A.STOP, A.SEND_REJ_TIMEOUT, A.KEEP_ANSWER)),
    (S.REP_SENT, I.RESEND): (S.REP_SENT, (A.REPEAT, A.ARM)),
    (S.REP_SENT, I.RETRIES_EXCEEDED): (S.CLOSED, (A.STOP, A.SEND_REJ_TIMEOUT, A.REPORT_CONNECT_ERROR)),
    (S.MRA_REP_RCVD, I.RX_REQ): (S.MRA_REP_RCVD, ()),
    (S.MRA_REP_RCVD, I.RX_MRA_REP): (S.MRA_REP_RCVD, (A.EXTEND,)),
    (S.MRA_REP_RCVD, I.RX_REJ): (S.CLOSED, (A.STOP, A.REPORT_REJECTED)),
    (S.MRA_REP_RCVD, I.RX_RTU): (S.ESTABLISHED, (A.STOP, A.REPORT_ESTABLISHED)),
    (S.MRA_REP_RCVD, I.COMM_EST): (S.ESTABLISHED, (A.STOP, A.REPORT_ESTABLISHED)),
    (S.MRA_REP_RCVD, I.RX_DREQ): (
        S.TIMEWAIT,
        (A.STOP, A.SEND_DREP, A.REPORT_ESTABLISHED, A.REPORT_DISCONNECTED, A.START_TIMEWAIT),
    ),
    (S.MRA_REP_RCVD, I.REJECT): (S.REJ_SENT, (A.STOP, A.SEND_REJ, A.KEEP_ANSWER)),
    (S.MRA_REP_RCVD, I.DISCONNECT): (S.DREQ_SENT, (A.SEND_DREQ, A.ARM)),
    (S.MRA_REP_RCVD, I.DESTROY): (S.REJ_SENT, (A.STOP, A.SEND_REJ_TIMEOUT, A.KEEP_ANSWER)),
    (S.MRA_REP_RCVD, I.RESEND): (S.REP_SENT, (A.REPEAT, A.ARM)),
    (S.MRA_REP_RCVD, I.RETRIES_EXCEEDED): (S.CLOSED, (A.STOP, A.SEND_REJ_TIMEOUT, A.REPORT_CONNECT_ERROR)),
    # ---- both sides
    (S.ESTABLISHED, I.RX_REQ): (S.ESTABLISHED, ()),
    (S.ESTABLISHED, I.RX_REP): (S.ESTABLISHED, (A.REPEAT,)),
    (S.ESTABLISHED, I.RX_RTU): (S.ESTABLISHED, ()),
    (S.ESTABLISHED, I.RX_REJ): (S.TIMEWAIT, _DISCONNECTED),
    (S.ESTABLISHED, I.RX_DREQ): (S.TIMEWAIT, (A.SEND_DREP, A.REPORT_DISCONNECTED, A.START_TIMEWAIT)),
    (S.ESTABLISHED, I.COMM_EST): (S.ESTABLISHED, ()),
    (S.ESTABLISHED, I.STALE): (S.TIMEWAIT, _DISCONNECTED),
    (S.ESTABLISHED, I.DISCONNECT): (S.DREQ_SENT, (A.SEND_DREQ, A.ARM)),
    (S.ESTABLISHED, I.DESTROY): (S.DREQ_SENT, (A.SEND_DREQ, A.ARM)),
    (S.DREQ_SENT, I.RX_REQ): (S.DREQ_SENT, ()),
    (S.DREQ_SENT, I.RX_REP): (S.DREQ_SENT, ()),
    (S.DREQ_SENT, I.RX_RTU): (S.DREQ_SENT, ()),
    (S.DREQ_SENT, I.RX_REJ): (S.TIMEWAIT, _DISCONNECTED),
    (S.DREQ_SENT, I.RX_DREQ): (S.TIMEWAIT, (A.STOP, A.SEND_DREP, A.REPORT_DISCONNECTED, A.START_TIMEWAIT)),
    (S.DREQ_SENT, I.RX_DREP): (S.TIMEWAIT, _DISCONNECTED),
    (S.DREQ_SENT, I.STALE): (S.TIMEWAIT, _DISCONNECTED),
    (S.DREQ_SENT, I.DISCONNECT): (S.DREQ_SENT, ()),
    (S.DREQ_SENT, I.DESTROY): (S.DREQ_SENT, ()),
    (S.DREQ_SENT, I.RESEND): (S.DREQ_SENT, (A.REPEAT, A.ARM)),
    (S.DREQ_SENT, I.RETRIES_EXCEEDED): (S.TIMEWAIT, _DISCONNECTED),
    (S.TIMEWAIT, I.RX_REQ): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.RX_REP): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.RX_RTU): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.RX_REJ): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.RX_DREQ): (S.TIMEWAIT, (A.SEND_DREP,)),
    (S.TIMEWAIT, I.RX_DREP): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.DISCONNECT): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.DESTROY): (S.TIMEWAIT, ()),
    (S.TIMEWAIT, I.EXPIRE): (S.CLOSED, (A.REPORT_TIMEWAIT_EXIT,)),
    (S.REJ_SENT, I.RX_REQ): (S.REJ_SENT, (A.REPEAT,)),
    (S.REJ_SENT, I.RX_REP): (S.REJ_SENT, (A.REPEAT,)),
    (S.REJ_SENT, I.RX_RTU): (S.REJ_SENT, (A.REPEAT,)),
    (S.REJ_SENT, I.RX_DREQ): (S.REJ_SENT, (A.SEND_DREP,)),
    (S.REJ_SENT, I.RX_REJ): (S.REJ_SENT, ()),
    (S.REJ_SENT, I.DESTROY): (S.REJ_SENT, ()),
    (S.REJ_SENT, I.EXPIRE): (S.CLOSED, ()),
    # ---- service ID resolution
    (S.SIDR_REQ_SENT, I.RX_SIDR_REP): (S.CLOSED, (A.STOP, A.REPORT_SIDR)),
    (S.SIDR_REQ_SENT, I.DESTROY): (S.CLOSED, (A.STOP,)),
    (S.SIDR_REQ_SENT, I.RESEND): (S.SIDR_REQ_SENT, (A.REPEAT, A.ARM)),
    (S.SIDR_REQ_SENT, I.RETRIES_EXCEEDED): (S.CLOSED, (A.STOP, A.REPORT_UNREACHABLE)),
    (S.SIDR_REQ_RCVD, I.RX_SIDR_REQ): (S.SIDR_REQ_RCVD, ()),
    (S.SIDR_REQ_RCVD, I.ACCEPT): (S.SIDR_REP_SENT, (A.SEND_SIDR_REP, A.KEEP_ANSWER)),
    (S.SIDR_REQ_RCVD, I.REJECT): (S.SIDR_REP_SENT, (A.SEND_SIDR_REP, A.KEEP_ANSWER)),
    (S.SIDR_REQ_RCVD, I.DESTROY): (S.SIDR_REP_SENT, (A.SEND_SIDR_REP, A.KEEP_ANSWER)),
    (S.SIDR_REP_SENT, I.RX_SIDR_REQ): (S.SIDR_REP_SENT, (A.REPEAT,)),
    (S.SIDR_REP_SENT, I.DESTROY): (S.SIDR_REP_SENT, ()),
    (S.SIDR_REP_SENT, I.EXPIRE): (S.CLOSED, ()),
    (S.CLOSED, I.DISCONNECT): (S.CLOSED, ()),
    (S.CLOSED, I.DESTROY): (S.CLOSED, ()),
}
