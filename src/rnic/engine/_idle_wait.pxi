# How a NIC process sleeps beside programs that run the engine themselves: included by _engine.pyx.

cdef extern from "<sys/epoll.h>" nogil:
    struct epoll_event:
        uint32_t events
    int epoll_wait(int epoll, epoll_event *events, int most, int timeout)

cdef extern from "<stdatomic.h>" nogil:
    ctypedef uint64_t atomic_long_word "_Atomic uint64_t"
    uint64_t atomic_load_long "atomic_load_explicit"(atomic_long_word *word, memory_order order)

DEF MOST_WATCHED = 1024


def look_on(int epoll, list views, int every_ms, uint64_t most_ns):
    """Sleep while all words go on changing; the interpreter is let go of, and not needed for a look.

    Args:
        epoll: descriptor; what makes it readable ends the sleep, and is not taken from it.
        views: buffers that begin with a word of 64 bits each, which others store to; 1,024 at most.
        every_ms: how often to look; who has not changed its word since the look before, or the call, ends the sleep, too.
        most_ns: no look begins later than that.

    Returns:
        Whether a word has ended it, and the words as they were seen last.
    """
    cdef atomic_long_word *words[MOST_WATCHED]
    cdef uint64_t seen[MOST_WATCHED]
    cdef uint64_t now
    cdef int place, count = len(views), quiet = 0
    cdef epoll_event event
    cdef uint64_t end = clock_now() + most_ns
    if count > MOST_WATCHED:
        raise ValueError(f"{count} words: give at most {MOST_WATCHED}")
    for place in range(count):
        words[place] = <atomic_long_word *> _address(views[place], NULL)
        seen[place] = atomic_load_long(words[place], memory_order_acquire)
    with nogil:
        while not quiet and clock_now() < end:
            if epoll_wait(epoll, &event, 1, every_ms):
                break
            for place in range(count):
                now = atomic_load_long(words[place], memory_order_acquire)
                quiet |= now == seen[place]
                seen[place] = now
    return bool(quiet), [seen[place] for place in range(count)]
