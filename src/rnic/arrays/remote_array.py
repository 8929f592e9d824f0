"""A peer's shared array, indexed as NumPy arrays are. Each access sends READ or WRITE requests."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from rnic.arrays.codec import array_type
from rnic.arrays.handshake import BufferInfo
from rnic.arrays.indexing import Index

if TYPE_CHECKING:
    from rnic.arrays.one_sided import OneSided


class RemoteArray:
    """Array of the peer, as ``connection["name"]`` returns it. Nothing is cached: each access goes to the
    peer's memory.

    ``array[10:20]``, ``array[3]``, ``array[2:8:2, 1]`` read, as new arrays of the remote type; with ``=`` they write.
    Indices are elements, negative ones count from the end, slices take steps; a run of adjacent elements is one
    request, so strided access takes several, which are in flight at once. Iteration reads the array once. Index arrays
    are not supported; see :meth:`~rnic.arrays.connection.Connection.read_many`.
    """

    __slots__ = ("_connection", "info")

    def __init__(self, connection: OneSided, info: BufferInfo) -> None:
        self._connection = connection
        self.info = info

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array as the peer shared it."""
        return self.info.shape

    @property
    def dtype(self) -> Any:
        """NumPy type of the elements; its text if NumPy is not installed."""
        kind = array_type(self.info.dtype, self.info.fields)
        return self.info.dtype if kind is None else kind

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.info.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.info.shape)

    def __len__(self) -> int:
        if not self.info.shape:
            raise TypeError(f"{self.info.name!r} is one element: it has no length")
        return self.info.shape[0]

    def __getitem__(self, index: Index) -> Any:
        return self._connection.read_at(self.info, index)

    def __iter__(self) -> Iterator[Any]:
        if not self.info.shape:
            raise TypeError(f"{self.info.name!r} is one element: there is nothing to go through")
        return iter(self[...])  # one READ instead of one per row

    def __setitem__(self, index: Index, value: Any) -> None:
        self._connection.write_at(self.info, index, value)

    async def aread(self, index: Index = ...) -> Any:
        """Return ``array[index]``, on asyncio.

        Args:
            index: as in brackets.

        Returns:
            A new array of the remote type.
        """
        return await self._connection.aread_at(self.info, index)

    async def awrite(self, index: Index, value: Any) -> None:
        """Do ``array[index] = value``, on asyncio.

        Args:
            index: as in brackets.
            value: number or array that fits the selection.
        """
        await self._connection.awrite_at(self.info, index, value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError(f"{self.info.name!r} is in another process: reading it makes a copy")
        array = self[...]
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return f"<RemoteArray {self.info.name!r} {self.dtype} {self.shape} at {self._connection.peer}>"
