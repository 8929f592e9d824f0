"""What NumPy users do by habit, against what is on the wire: nothing is reinterpreted, scrambled or cut in silence."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import rnic

RECORD = np.dtype([("key", "S4"), ("value", "<f8"), ("pair", "<i4", (2,))])


class Shared:
    """Arrays of many kinds, and a connection to them."""

    def __init__(self) -> None:
        self.table = np.arange(60, dtype=np.int64).reshape(6, 10)
        self.flat = np.arange(4.0)
        self.records = np.zeros(3, RECORD)
        self.big_endian = np.zeros(4, ">u8")
        self.words = np.zeros(4, np.uint64)
        self.listener = rnic.listen(port=0, udp_port=0)
        self.listener.share(table=self.table, flat=self.flat, records=self.records, words=self.words)
        self.listener.share(big_endian=self.big_endian, one=np.array(2.5))
        self.peer = rnic.connect("127.0.0.1", self.listener.port, udp_port=0)
        self.server = self.listener.accept(30)

    def close(self) -> None:
        self.peer.close()
        self.server.close()
        self.listener.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    made = Shared()
    yield made
    made.close()


def test_an_array_in_another_order_of_elements_is_not_shared(shared: Shared) -> None:
    """Its shape would be told, and its elements read in the wrong order."""
    turned = np.asfortranarray(shared.table)
    with pytest.raises(
        rnic.VerbsError, match=r"'turned': array is not contiguous in C order.*ascontiguousarray.*it\.T"
    ):
        shared.listener.share(turned=turned)
    with pytest.raises(rnic.VerbsError, match="'spaced': buffer of type ndarray is not contiguous"):
        shared.listener.share(spaced=np.arange(10)[::2])
    with pytest.raises(rnic.VerbsError, match="'nothing': buffer of type ndarray has length 0"):
        shared.listener.share(nothing=np.zeros(0))


@pytest.mark.parametrize("rows", [6, 6000])
def test_what_is_written_and_sent_arrives_in_its_order(shared: Shared, rows: int) -> None:
    source = np.asfortranarray(np.arange(rows * 10, dtype=np.int64).reshape(rows, 10)[::-1])
    if rows == 6:
        shared.peer.write("table", source)
        assert (shared.table == source).all()
        shared.peer.write("table", source[::2])
        assert (shared.table[:3] == source[::2]).all()
        shared.peer["table"][:] = source.T.reshape(10, 6).T
        assert (shared.table == source).all()
    shared.peer.send(source)
    assert (shared.server.recv() == source).all()
    shared.peer.send(source[:, ::3])
    assert (shared.server.recv() == source[:, ::3]).all()


@pytest.mark.parametrize("casting", [None, "same_kind"])
def test_what_is_read_into_is_in_order_and_writable_before_anything_is_read(
    shared: Shared, casting: str | None
) -> None:
    kind = np.int64 if casting is None else np.float64
    with pytest.raises(rnic.VerbsError, match="into is not contiguous in C order"):
        shared.peer.read("table", into=np.zeros((6, 10), kind, order="F"), casting=casting)
    with pytest.raises(rnic.VerbsError, match="into is not contiguous in C order"):
        shared.peer.read("table", into=np.zeros(60, kind)[::2], casting=casting)
    (fixed := np.zeros((6, 10), kind)).flags.writeable = False
    with pytest.raises(rnic.VerbsError, match="into is read-only"):
        shared.peer.read("table", into=fixed, casting=casting)


def test_a_buffer_with_a_type_of_its_own_is_not_reinterpreted(shared: Shared) -> None:
    with pytest.raises(rnic.VerbsError, match="into is int32, 'flat' is float64"):
        shared.peer.read("flat", into=array.array("i", [0] * 8))
    into = array.array("d", [0] * 4)
    assert shared.peer.read("flat", into=into) is into
    assert into.tolist() == [0, 1, 2, 3]
    narrow = array.array("f", [0] * 4)
    assert shared.peer.read("flat", into=narrow, casting="same_kind") is narrow
    assert narrow.tolist() == [0, 1, 2, 3]


def test_rows_are_gone_through_as_in_numpy(shared: Shared) -> None:
    assert [row.tolist() for row in shared.peer["table"]] == shared.table.tolist()
    assert 3.0 in shared.peer["flat"]
    assert list(shared.peer["flat"]) == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="'one' is one element"):
        iter(shared.peer["one"])


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (True, "index=True is a bool; give a whole number"),
        ([1, 2], r"index=\[1, 2\] is a list; give whole numbers and slices; read_many reads by a list of offsets"),
        (np.zeros(6, bool), "is a ndarray; give whole numbers and slices; read_many"),
        ("key", r"index='key' is a str; give whole numbers and slices; a field is read with its records, array\[...\]"),
        (1.0, "index=1.0 is a float; give a whole number, counted in elements"),
    ],
)
def test_an_index_of_another_kind_is_refused_with_what_to_give(shared: Shared, index: Any, says: str) -> None:
    for access in (lambda: shared.peer["table"][index], lambda: shared.peer["table"].__setitem__(index, 0)):
        with pytest.raises(rnic.VerbsError, match=says):
            access()


def test_records_are_written_as_tuples_and_lose_nothing(shared: Shared) -> None:
    peer, records = shared.peer, shared.records
    peer["records"][1] = (b"abc", 0.1, (1, 2))
    assert records[1].tolist()[:2] == (b"abc", 0.1)
    assert records[1]["pair"].tolist() == [1, 2]
    peer.write("records", [("x", 1, [3, 4]), ("y", 2, [5, 6])])
    assert records["key"].tolist() == [b"x", b"y", b""]
    for wrong in ((b"longer", 1.0, (1, 2)), (b"a", 1.0, (1.5, 2)), (b"a", 1.0), (b"a", 1.0, (1 << 31, 2))):
        with pytest.raises(rnic.VerbsError, match="does not fit 'records'"):
            peer["records"][1] = wrong
    assert records["key"].tolist() == [b"x", b"y", b""]


def test_nothing_is_nothing_and_no_error(shared: Shared) -> None:
    assert shared.peer.read("flat", 1, 0).shape == (0,)
    assert shared.peer.read("flat", 4).shape == (0,)
    before = shared.flat.copy()
    shared.peer.write("flat", [], 2)
    shared.peer.write("flat", np.zeros(0), 4)
    shared.peer["flat"][2:2] = []
    assert (shared.flat == before).all()
    shared.peer.send(np.zeros((0, 3), np.int16))
    got = shared.server.recv()
    assert (got.shape, got.dtype) == ((0, 3), np.int16)
    with pytest.raises(rnic.VerbsError, match="offset=5, count=0 leave 'flat'"):
        shared.peer.read("flat", 5, 0)


def test_atomics_are_refused_where_bytes_lie_the_other_way(shared: Shared) -> None:
    atomics: tuple[Callable[[], object], ...] = (
        lambda: shared.peer.fetch_add("big_endian", 0, 1),
        lambda: shared.peer.compare_swap("big_endian", 0, 0, 1),
    )
    for begin in atomics:
        with pytest.raises(
            rnic.VerbsError, match=r"'big_endian' has elements of >u8; atomics need .* this machine's order"
        ):
            begin()
    assert not shared.big_endian.any()


def test_values_of_atomics_are_no_elements(shared: Shared) -> None:
    with pytest.raises(rnic.VerbsError, match=r"expected=0.0 is a float; give a whole number \("):
        shared.peer.compare_swap("words", 0, 0.0, 1)  # type: ignore[arg-type]
    assert shared.peer.compare_swap("words", 0, False, True) == 0, "a lock"
    assert shared.words[0] == 1
    with pytest.raises(rnic.VerbsError, match="offset=True is a bool"):
        shared.peer.fetch_add("words", True, 1)
