"""What tests of forked children share: what a child says, and a lock in the hands of a thread that it has not."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

TOO_LONG_S = 10


def child_says(act: Callable[[], bool]) -> bool:
    """What ``act`` says in a child, which must not wait for a thread that is not there."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            signal.alarm(TOO_LONG_S)
            code = 0 if act() else 1
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1), "the child failed"
    return status == 0


@contextlib.contextmanager
def held_by_a_thread(*locks: contextlib.AbstractContextManager[object]) -> Iterator[None]:
    """Another thread of this process holds the locks meanwhile."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            assert done.wait(TOO_LONG_S)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(TOO_LONG_S)
        yield
    finally:
        done.set()
        thread.join()
