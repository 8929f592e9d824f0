"""The codec of all header records. Each header's file has its table."""

from __future__ import annotations

from typing import ClassVar, Self

from rnic.spec.layout import Layout

Buffer = bytes | bytearray | memoryview


class Header:
    """A header as a record: one attribute for each field of ``layout``, of the same name.

    For tools, tests and connection setup; the data path uses :class:`rnic.wire.packet.Packet` instead.

    Args:
        values: fields by name; others are zero or the header's constant.

    Raises:
        ValueError: the header has no field of that name.
    """

    __slots__ = ()

    layout: ClassVar[Layout]
    FORMAT: ClassVar[str]
    """``struct`` format of the header for :class:`~rnic.wire.packet.Packet`, without byte order."""
    CONSTANTS: ClassVar[dict[str, int]] = {}

    def __init__(self, **values: int) -> None:
        for field in self.layout.fields:
            setattr(self, field.name, values.pop(field.name, self.CONSTANTS.get(field.name, 0)))
        if values:
            known = ", ".join(field.name for field in self.layout.fields)
            raise ValueError(f"{self.layout.name} has no field {next(iter(values))!r}; it has: {known}")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.values() == self.values()

    __hash__ = None  # type: ignore[assignment]  # a record that may change has no hash

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value:#x}' for name, value in self.values().items())})"

    def values(self) -> dict[str, int]:
        """Return all fields by name, in the order of the table."""
        return {field.name: getattr(self, field.name) for field in self.layout.fields}

    def check(self) -> None:
        """Raise ``ValueError`` if a value does not fit its field."""
        for field in self.layout.fields:
            value = getattr(self, field.name)
            if not 0 <= value <= field.mask:
                raise ValueError(f"{self.layout.name}.{field.name}={value:#x} does not fit in {field.width} bits")

    @classmethod
    def parse(cls, buf: Buffer, offset: int = 0) -> Self:
        """Return the header at ``buf[offset:]``. ``ValueError`` if the buffer is too short."""
        header = cls.__new__(cls)
        for name, value in cls.layout.unpack(buf, offset).items():
            setattr(header, name, value)
        return header

    def pack(self) -> bytes:
        """Return the bytes of the header. ``ValueError`` if a value does not fit its field."""
        return self.layout.pack(self.values())
