"""Several operations in flight at once: the result of ``connection.batch()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from rnic.cm.rc_connection import Pending
from rnic.spec.errors import WorkCompletionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rnic.arrays.connection import Connection
    from rnic.arrays.one_sided import Remote

B = TypeVar("B")
T = TypeVar("T")


class Batch:
    """Starts operations without waiting for each. The end of the ``with`` block waits for all.

    Methods are those of :class:`~rnic.arrays.connection.Connection` and return :class:`Pending`. Operations take effect
    in the order of the calls: WRITEs and atomics are fenced after earlier READs. Do not change a buffer that
    is written before its operation completes.

    Args:
        connection: the connection; :meth:`Connection.batch` makes the batch.

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
        """Begin :meth:`~rnic.arrays.connection.Connection.read`, with its arguments and errors.

        Args:
            remote: name or :class:`BufferInfo` of the shared buffer.
            offset: first element, counted in the flat array.
            count: elements; all that follow by default.
            into: array or buffer to read into; by default a new one.
            casting: convert for an ``into`` of another type, by NumPy's rule of this name.
        """
        return self._add(self._connection.begin_read(remote, offset, count, into, casting))

    def write(self, remote: Remote, data: Any, offset: int = 0, *, casting: str | None = None) -> Pending[None]:
        """Begin :meth:`~rnic.arrays.connection.Connection.write`, with its arguments and errors.

        Args:
            remote: name or :class:`BufferInfo` of the shared buffer.
            data: array or bytes.
            offset: first element, counted in the flat array.
            casting: convert an array of another type, by NumPy's rule of this name.
        """
        return self._add(self._connection.begin_write(remote, data, offset, casting))

    def fetch_add(self, remote: Remote, offset: int, value: int) -> Pending[int]:
        """Begin :meth:`~rnic.arrays.connection.Connection.fetch_add`, with its arguments and errors.

        Args:
            remote: name or :class:`BufferInfo` of the shared buffer.
            offset: the element, an 8-byte integer.
            value: number to add: what the element's type can hold, or the negative of it.
        """
        return self._add(self._connection.begin_fetch_add(remote, offset, value))

    def compare_swap(self, remote: Remote, offset: int, expected: int, new: int) -> Pending[int]:
        """Begin :meth:`~rnic.arrays.connection.Connection.compare_swap`, with its arguments and errors.

        Args:
            remote: name or :class:`BufferInfo` of the shared buffer.
            offset: the element, an 8-byte integer.
            expected: value to compare with.
            new: value to store if they are equal.
        """
        return self._add(self._connection.begin_compare_swap(remote, offset, expected, new))

    def send(self, data: Any) -> Pending[None]:
        """Begin :meth:`~rnic.arrays.connection.Connection.send`, with its arguments and errors.

        Args:
            data: array or bytes.
        """
        return self._add(self._connection.begin_send(data))

    def wait(self) -> None:
        """Wait for all operations that were started; raise as the end of the block does."""
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
