"""Types, shapes and rights of remote arrays: known on both sides, and never another's by accident."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import rnic

POINT = np.dtype([("name", "U4"), ("xy", "<f4", (2,)), ("n", "<i8")])
LOOSE = np.dtype({"names": ["a", "b"], "formats": ["u1", "<f8"], "offsets": [0, 8], "itemsize": 24})


class Ends:
    def __init__(self) -> None:
        self.d = np.arange(100, dtype=np.float64)
        self.m = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
        self.words = np.zeros(4, dtype=np.uint64)
        self.ints = np.zeros(4, dtype=np.int64)
        self.points = np.array([("ab", (1, 2), 3), ("äß", (4, 5), -6)], dtype=POINT)
        self.loose = np.zeros(3, LOOSE)
        self.fixed = np.ones(4)
        self.fixed.setflags(write=False)
        self.raw = bytearray(16)
        names = ("d", "m", "words", "ints", "points", "loose", "fixed", "raw")
        self.listener = rnic.listen(port=0, share={name: getattr(self, name) for name in names}, udp_port=0)
        self.peer = rnic.connect("127.0.0.1", self.listener.port, udp_port=0)


@pytest.fixture(scope="module")
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.peer.close()
    made.listener.close()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda p: p.write("d", np.zeros(4, np.float32)),
            "data is float32, 'd' is float64: convert it, or give casting",
        ),
        (lambda p: p.write("m", np.zeros(4)), "data is float64, 'm' is int32"),
        (lambda p: p.write("d", np.zeros(3, complex), casting="same_kind"), "casting='same_kind' does not allow it"),
        (lambda p: p.read("d", into=np.zeros(4, np.int64)), "into is int64, 'd' is float64"),
        (lambda p: p.read("raw", into=np.zeros(2)), "into is float64, 'raw' is uint8"),
        (lambda p: p.write("raw", np.zeros(2)), "data is float64, 'raw' is uint8"),
        (lambda p: p.write("m", np.zeros((2, 4, 6), np.int32)), r"shape \(2, 4, 6\), 'm' has \(3, 4, 5\): other rows"),
        (lambda p: p.read("m", into=np.zeros((6, 10), np.int32)), "other rows; reshape or flatten"),
        (lambda p: p.write("m", [1.5]), r"data=\[1.5\] does not fit 'm', which is int32"),
        (lambda p: p.write("m", [1 << 40]), "does not fit 'm'"),
        (lambda p: p.write("d", ["x"]), "does not fit 'd'"),
        (lambda p: p.write("points", np.zeros(2, [("a", "<f8")])), "'points' is"),
        (lambda p: p.read("d", 1.0), "offset=1.0 is a float; give a whole number, counted in elements"),
        (lambda p: p.read("d", 0, 2.0), "count=2.0 is a float"),
        (lambda p: p.write("d", [1.0], offset=np.float64(3)), r"offset=.*3.0.* is a float64"),
        (lambda p: p.fetch_add("words", 0.0, 1), "offset=0.0 is a float"),
        (lambda p: p.fetch_add("words", 0, 1.5), "value=1.5 is a float"),
        (lambda p: p.fetch_add("ints", 0, 1 << 63), "value=9223372036854775808 does not fit 'ints'"),
        (lambda p: p.fetch_add("words", 0, 1 << 64), "does not fit 'words'"),
        (
            lambda p: p.compare_swap("words", 0, -1, 5),
            "expected=-1 does not fit 'words': use 0 to 18446744073709551615",
        ),
        (lambda p: p.compare_swap("ints", 0, 0, 1 << 63), "new=9223372036854775808 does not fit"),
        (lambda p: p.fetch_add("d", 0, 1), "'d' has elements of <f8; atomics need integers of 8 bytes"),
        (lambda p: p.write("fixed", np.zeros(4)), "shares 'fixed' for reading only"),
        (lambda p: p["fixed"].__setitem__(0, 2.0), "shares 'fixed' for reading only"),
        (lambda p: p["d"].__setitem__(slice(0, 3), np.zeros(4)), r"shape \(4,\) does not fill \(3,\) of 'd'"),
        (lambda p: p["d"].__setitem__(0, np.float32(2)), "data is float32, 'd' is float64"),
        (lambda p: p["d"].__setitem__(0, 1j), "data=1j does not fit 'd'"),
        (lambda p: p.write("m", [2j]), r"data=\[2j\] does not fit 'm'"),
        (lambda p: p["d"][1.5], "index=1.5 is a float"),
        (lambda p: p["none"], "shares no 'none'"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_wire(ends: Ends, call: Any, says: str) -> None:
    before = ends.d.copy(), ends.m.copy()
    with pytest.raises(rnic.VerbsError, match=says) as error:
        call(ends.peer)
    assert "\n" not in str(error.value)
    assert (before[0] == ends.d).all()
    assert (before[1] == ends.m).all()


def test_a_name_that_is_not_shared_is_a_key_error(ends: Ends) -> None:
    with pytest.raises(KeyError) as caught:
        ends.peer["none"]
    assert isinstance(caught.value, rnic.VerbsError)
    with pytest.raises(IndexError):
        ends.peer["d"][1 << 20]


def test_casting_converts(ends: Ends) -> None:
    ends.peer.write("d", np.array([7, 8], np.float32), 10, casting="safe")
    assert ends.d[10:12].tolist() == [7.0, 8.0]
    into = np.zeros(3, np.float32)
    assert ends.peer.read("d", 20, into=into, casting="same_kind") is into
    assert into.tolist() == [20.0, 21.0, 22.0]
    ends.d[10:12] = 10, 11


def test_bytes_go_as_they_are(ends: Ends) -> None:
    ends.peer.write("d", np.float64(5).tobytes(), 3)
    assert ends.d[3] == 5.0
    into = bytearray(16)
    ends.peer.read("d", 3, into=into)
    assert np.frombuffer(into).tolist() == [5.0, 4.0]
    ends.d[3] = 3


def test_numbers_become_elements(ends: Ends) -> None:
    ends.peer.write("m", [5, 6], 1)
    assert ends.m[0, 0].tolist() == [0, 5, 6, 3, 4]
    ends.peer.write("m", [1, 2], 1)


def test_structured_types_survive(ends: Ends) -> None:
    copy = ends.peer.read("points")
    assert copy.dtype == POINT
    assert (copy == ends.points).all()
    assert ends.peer["points"].dtype == POINT
    changed = copy.copy()
    changed["n"] = 40, 50
    ends.peer.write("points", changed)
    assert ends.points["n"].tolist() == [40, 50]
    assert ends.peer["points"][1]["name"] == "äß"
    # padding between fields survives too
    assert ends.peer.read("loose").dtype.itemsize == 24
    assert ends.peer.read("loose").dtype["b"] == np.float64
    fields = ends.peer.read("loose").dtype.fields
    assert fields is not None
    assert fields["b"][1] == 8


def test_objects_cannot_be_shared() -> None:
    with pytest.raises(rnic.VerbsError, match="holds Python objects; register an array of numbers"):
        rnic.listen(port=0, share={"o": np.array([None])}, udp_port=0)


@pytest.mark.parametrize(
    "index",
    [np.s_[10:20], np.s_[3], np.s_[-1], np.s_[::-1], np.s_[5:90:7], np.s_[...], np.s_[20:10]],
)
def test_one_dimension_reads_as_numpy_does(ends: Ends, index: Any) -> None:
    got = ends.peer["d"][index]
    assert np.array_equal(got, ends.d[index])
    assert np.shape(got) == np.shape(ends.d[index])


@pytest.mark.parametrize("index", [np.s_[1], np.s_[1:, 2], np.s_[:, 1:3, ::2], np.s_[2, 3, 4], np.s_[..., -1]])
def test_rows_and_slices_read_as_numpy_does(ends: Ends, index: Any) -> None:
    assert np.array_equal(ends.peer["m"][index], ends.m[index])


def test_strided_access_is_several_requests_of_one_call(ends: Ends) -> None:
    assert len(ends.peer["m"]) == 3
    assert (ends.peer["m"].shape, ends.peer["m"].ndim, ends.peer["m"].size) == ((3, 4, 5), 3, 60)
    assert np.asarray(ends.peer["m"]).tolist() == ends.m.tolist()
    ends.peer["m"][:, 1:3, ::2] = 9
    want = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    want[:, 1:3, ::2] = 9
    assert (ends.m == want).all()
    ends.peer["m"][...] = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    assert ends.m.ravel().tolist() == list(range(60))
    ends.peer["d"][5:8] = [1, 2, 3]
    ends.peer["d"][5:8] = np.arange(5.0, 8.0)


def test_atomics_take_the_whole_range(ends: Ends) -> None:
    assert ends.peer.compare_swap("words", 0, 0, (1 << 64) - 1) == 0
    assert ends.peer.fetch_add("words", 0, -1) == (1 << 64) - 1
    assert ends.peer.compare_swap("ints", 1, 0, -(1 << 63)) == 0
    assert ends.peer.fetch_add("ints", 1, np.int64(5)) == -(1 << 63)  # type: ignore[arg-type]
    assert (int(ends.words[0]), int(ends.ints[1])) == ((1 << 64) - 2, -(1 << 63) + 5)


def test_shares_are_there_before_the_first_answer() -> None:
    data = np.arange(3)
    with rnic.listen(port=0, share={"data": data}, udp_port=0) as listener:  # noqa: SIM117
        with rnic.connect("127.0.0.1", str(listener.port), udp_port=0) as peer:
            assert peer.read("data").tolist() == [0, 1, 2]
            assert f"port {listener.port}" in repr(peer), "the port that the caller chose, not the NIC's"
    with pytest.raises(rnic.VerbsError):
        rnic.listen(port=listener.port, share={"": data}, udp_port=0)
    rnic.listen(port=listener.port, udp_port=0).close()


@pytest.mark.parametrize("port", ["http", 1.5, -1, 70000, "", None, "٣"])
def test_what_is_no_port_is_said(port: Any) -> None:
    with pytest.raises(rnic.ExchangeError, match=r"a TCP port is a whole number from 1 to 65535"):
        rnic.connect("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (5, "host 5: give a name or an address as text"),
        ("127.0.0.1:7490", "give '127.0.0.1' and 7490 one after the other"),
    ],
)
def test_what_is_no_host_is_said(host: Any, says: str) -> None:
    for call in (rnic.connect, rnic.listen):
        with pytest.raises(rnic.ExchangeError, match=says):
            call(host, 7471)


@pytest.mark.parametrize(
    ("share", "says"),
    [([1], "share is a list; give a mapping of names"), ({5: bytearray(8)}, "name 5 is a int; names are text")],
)
def test_what_is_no_share_is_said(share: Any, says: str) -> None:
    with pytest.raises(rnic.VerbsError, match=says):
        rnic.listen(port=0, udp_port=0, share=share)


def test_a_failed_operation_names_the_port_of_the_caller(ends: Ends) -> None:
    gone = np.zeros(3)
    with rnic.listen(port=0, share={"gone": gone}, udp_port=0) as listener:  # noqa: SIM117
        with rnic.connect("127.0.0.1", listener.port, udp_port=0) as peer:
            wrong = rnic.BufferInfo("gone", peer.remote["gone"].addr, 24, 1, "<f8", (3,))
            with pytest.raises(rnic.WorkCompletionError, match=rf"127\.0\.0\.1 port {listener.port} failed"):
                peer.read(wrong)
