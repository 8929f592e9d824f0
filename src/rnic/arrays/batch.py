"""Operations under way at once: what ``connection.batch()`` gives, and the results to be."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from rnic.cm.work_queue import Job
from rnic.spec.errors import WorkCompletionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rnic.arrays.connection import Connection
    from rnic.arrays.one_sided import OneSided, Remote

B = TypeVar("B")
T = TypeVar("T")


class Pending(Generic[T]):
    """An operation under way: a future of the connection.

    :meth:`result` waits for it; in asyncio, ``await`` it.
    """

    __slots__ = ("_connection", "finish", "job")

    def __init__(self, connection: OneSided, job: Job, finish: Callable[[], T]) -> None:
        self._connection = connection
        self.job = job
        self.finish = finish

    def done(self) -> bool:
        """Whether it completed, well or not; never waits."""
        if not self.job.done():
            self._connection.dispatch()
        return self.job.done()

    def result(self) -> T:
        """What the operation returns, once it completed.

        Raises:
            WorkCompletionError: it failed.
        """
        self._connection.drive(self.job)
        self.job.check(self._connection.peer)
        return self.finish()

    def __await__(self) -> Generator[Any, None, T]:
        yield from self._connection.adrive(self.job).__await__()
        self.job.check(self._connection.peer)
        return self.finish()


class Batch:
    """Starts operations without waiting for each. The end of the ``with`` block waits for all.

    Methods are those of :class:`~rnic.arrays.connection.Connection` and return :class:`Pending`. Operations take effect
    in     the order of the calls: what changes memory is fenced behind the READs before it. What is written must not be
    changed before its operation completed.

    Raises:
        WorkCompletionError: at the end of the block, the first operation that failed; those after it failed with it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pending: list[Pending[Any]] = []

    def _add(self, pending: Pending[T]) -> Pending[T]:
        self._pending.append(pending)
        return pending

    @overload
    def read(self, remote: Remote, offset: int = 0, count: int | None = None) -> Pending[NDArray[Any]]: ...
    @overload
    def read(
        self, remote: Remote, offset: int = 0, count: int | None = None, *, into: B, casting: str | None = None
    ) -> Pending[B]: ...
    def read(
        self, remote: Remote, offset: int = 0, count: int | None = None, *, into: Any = None, casting: str | None = None
    ) -> Pending[Any]:
        """:meth:`~rnic.arrays.connection.Connection.read`, begun."""
        return self._add(self._connection.begin_read(remote, offset, count, into, casting))

    def write(self, remote: Remote, data: Any, offset: int = 0, *, casting: str | None = None) -> Pending[None]:
        """:meth:`~rnic.arrays.connection.Connection.write`, begun."""
        return self._add(self._connection.begin_write(remote, data, offset, casting))

    def fetch_add(self, remote: Remote, offset: int, value: int) -> Pending[int]:
        """:meth:`~rnic.arrays.connection.Connection.fetch_add`, begun."""
        return self._add(self._connection.begin_fetch_add(remote, offset, value))

    def compare_swap(self, remote: Remote, offset: int, expected: int, new: int) -> Pending[int]:
        """:meth:`~rnic.arrays.connection.Connection.compare_swap`, begun."""
        return self._add(self._connection.begin_compare_swap(remote, offset, expected, new))

    def send(self, data: Any) -> Pending[None]:
        """:meth:`~rnic.arrays.connection.Connection.send`, begun."""
        return self._add(self._connection.begin_send(data))

    def wait(self) -> None:
        """Wait for all that was begun; raises as the end of the block does."""
        pending, self._pending = self._pending, []
        failed: WorkCompletionError | None = None
        for one in pending:
            try:
                one.result()
            except WorkCompletionError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.wait()
