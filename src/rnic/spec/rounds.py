"""Parameters of the poll round that drives a NIC: receive, reply, send, timers. The engine uses them, too."""

from __future__ import annotations

BUDGET = 256
"""Most packets sent in a round if nothing else waits. Longer rounds cost less per packet."""
NEWCOMER_PART = 8
"""Divisor of the turn that a newly busy program may send before the programs that are already waiting."""
RECEIVE_LIMIT = 4
"""Most bursts received in a round, and number of receive buffers."""
BUFFER_BYTES = 1 << 16
"""Size of a receive buffer: the longest GRO burst that a UDP socket returns."""
REPLIES_AT_LEAST_EVERY = 2
"""Most consecutive rounds that receive packets without sending replies."""
TIMERS_AT_LEAST_EVERY = 256
"""Rounds after which timers are checked even if more packets may wait: as many bursts as a socket's receive buffer
holds."""
PARTIAL_ROUND = 16
"""Rounds that a partly filled round counts as, so that slow input does not delay timers for long."""
TIMERS_PER_CALL = 1 << 10
"""Most expired timers handled in one call, to bound the work; the others follow in the next."""
WRITE_BACK_NS = 10_000_000
"""Time after the first unwritten change at which an idle NIC writes back its contexts."""
GATHER_MAX = 16
"""Most short messages gathered into one burst."""
GATHER_BYTES = 512
"""Largest message that counts as short."""
GATHER_MIN = 2
"""With fewer packets in flight, messages are not gathered: a program that posts one or two messages waits for just
these."""
GATHER_STEADY = 4
"""Packets that count as in flight while a program polls once after each message of a stream and does not wait for
replies. Otherwise, a program that always finds a reply before its next message would never gather."""
GATHER_ONE_IN = 4
"""Without new input, gathered messages are sent unless at least this many times as many packets are in flight."""
GATHER_AFTER = 32
"""Consecutive messages, each posted after a poll and soon after the previous one, that make a stream."""
GATHER_PAUSE_NS = 20_000
"""Pause after which a posted message is sent at once."""
GATHER_SETBACK = 8
"""Messages by which such a pause shortens the count of a stream. It does not reset it: the scheduler may have caused
the pause."""
SOCKET_CHECKS = 6
"""Socket checks in an empty poll before it returns: a return to the application costs more than a check."""
PARK_NS = 2_000_000
"""Time after its last poll for which an application still counts as polling, multiplied by the number of NICs that its
process drives: an application that polls many NICs in turn returns to each one later."""
PARK_MAX = 16
"""Most NICs counted for that."""
IDLE_BEFORE_YIELD = 32
"""Idle rounds after which a poll yields the core."""
