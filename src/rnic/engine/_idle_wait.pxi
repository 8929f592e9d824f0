# The sleep of a NIC process while programs run the engine themselves: included by _engine.pyx.

cdef extern from "<sys/epoll.h>" nogil:
    struct epoll_event:
        uint32_t events
    int epoll_wait(int epoll, epoll_event *events, int most, int timeout)

cdef extern from "<stdatomic.h>" nogil:
    ctypedef uint64_t atomic_long_word "_Atomic uint64_t"
    uint64_t atomic_load_long "atomic_load_explicit"(atomic_long_word *word, memory_order order)

DEF MOST_WATCHED = 1024


def sleep_while_active(int epoll, list views, int every_ms, uint64_t most_ns):
    """Sleep, without the GIL, while all words keep changing.

    Args:
        epoll: epoll descriptor; the sleep ends when it becomes readable, and nothing is read from it.
        views: at most 1,024 buffers; each begins with a 64-bit word that another process changes while it is active.
        every_ms: time between two checks; the sleep ends if a word has not changed since the last one.
        most_ns: longest sleep before the last check.

    Returns:
        Whether a word ended the sleep, and the words as last seen.

    Raises:
        ValueError: more than 1,024 buffers.
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
        words[place] = <atomic_long_word *> buffer_address(views[place], NULL)
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
