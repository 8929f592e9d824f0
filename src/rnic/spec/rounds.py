"""Numbers of the round that drives a NIC: receive, reply, send, deadlines; the engine has them from here."""

from __future__ import annotations

BUDGET = 256
"""Packets that one round sends where nothing else waits for the next: the longer, the less each costs."""
NEWCOMER_PART = 8
"""A program that had nothing to send may send this part of its turn before those that had."""
RECEIVE_LIMIT = 4
"""Bursts that one round takes, and the buffers for them."""
BUFFER_BYTES = 1 << 16
"""Bytes of such a buffer: the longest bundle that a UDP socket gives at once."""
REPLIES_AT_LEAST_EVERY = 2
"""Rounds that may take packets and send no replies."""
TIMERS_AT_LEAST_EVERY = 256
"""Rounds after which deadlines count although more may have arrived: as many bursts as a receive buffer holds."""
PARTIAL_ROUND = 16
"""Of these, what a round counts that took fewer bursts than it may: a trickle keeps no deadline waiting for long."""
TIMERS_PER_CALL = 1 << 10
"""Expired deadlines that are handled at once, so that the work is bounded; the others next time."""
WRITE_BACK_NS = 10_000_000
"""Once it moves no more packets, so long after the first of them, a NIC writes back what is left."""
GATHER_MAX = 16
"""Short messages that wait, at most, to leave together."""
GATHER_BYTES = 512
"""Largest message that counts as short."""
GATHER_MIN = 2
"""Packets in flight below which nothing waits: a program that posts one or two messages waits for just these."""
GATHER_STEADY = 4
"""Packets that count as in flight while a program polls once after each message of a stream: it waits for none of them.
Without this, a program that always finds an answer before its next message would send each message by itself
forever."""
GATHER_ONE_IN = 4
"""With no new input, waiting messages leave unless this many times as many packets are in flight."""
GATHER_AFTER = 32
"""Messages in a row, each posted after a poll and soon after the one before, that make a stream."""
GATHER_PAUSE_NS = 20_000
"""A message that is posted so long after the last one leaves at once,"""
GATHER_SETBACK = 8
"""and a stream counts as this many messages shorter: machines pause too."""
SOCKET_CHECKS = 6
"""Times that an application's poll looks for packets before it reports none: returning to the application takes longer
than a look."""
PARK_NS = 2_000_000
"""Time after its last poll for which an application still counts as polling, for each NIC that its process drives. An
application that polls many in turn comes back to each later, and all its threads together take the core no more often
than one."""
PARK_MAX = 16
"""At most this many NICs count for that."""
IDLE_BEFORE_YIELD = 32
"""Rounds without anything to do after which a poll lets others have the core."""
