"""Options that say what devices look like."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest

from rnic.cli.looks import CORES, core_of, counted_up, looks_of, profile_of, spread
from rnic.device.parameters import PROFILES
from rnic.runtime.directory import ProcessError
from rnic.spec.errors import VerbsError


def looks(*addresses: str, profile: str | None = None, **told: Any) -> list[tuple[str, str | None, dict[str, Any]]]:
    found = looks_of(addresses, profile, **told)
    return [(address, each.name, json.loads(each.look or "{}")) for address, each in found]


def test_without_options_nothing_is_asked_for() -> None:
    assert looks("127.0.0.1", "::1") == [("127.0.0.1", None, {}), ("::1", None, {})]


def test_a_profile_is_a_machine() -> None:
    found = looks(profile="8x400g")
    assert [address for address, _, _ in found] == [f"127.0.0.{1 + at}" for at in range(8)]
    assert [name for _, name, _ in found] == [f"mlx5_{at}" for at in range(8)]
    assert {each["rate"] for _, _, each in found} == {400}
    assert [each["numa"] for _, _, each in found] == [0] * 4 + [1] * 4
    assert len({each["pci"] for _, _, each in found}) == 8
    assert found[0][2] == {"gids": "full", "rate": 400, "numa": 0, "pci": "0000:18:00.0"}


def test_options_replace_what_the_profile_says() -> None:
    found = looks("127.0.0.9", profile="1x100g", name="bnxt_re0", gids="one", numa=3, pci="0000:af:00.1")
    assert found == [
        ("127.0.0.9", "bnxt_re0", {"gids": "one", "rate": 100, "numa": 3, "pci": "0000:af:00.1"}),
    ]


def test_names_and_buses_are_counted_up() -> None:
    found = looks("127.0.0.1", "127.0.0.5", name="mlx5_8", pci="0000:3b:00.0")
    assert [(name, each["pci"]) for _, name, each in found] == [("mlx5_8", "0000:3b:00.0"), ("mlx5_9", "0000:3c:00.0")]
    assert [counted_up("nic", at) for at in range(3)] == ["nic", "nic1", "nic2"]


def test_addresses_in_a_row() -> None:
    assert spread(["127.0.0.250"], 3) == ["127.0.0.250", "127.0.0.251", "127.0.0.252"]
    assert spread(["127.0.0.1", "127.0.0.7"], 2) == ["127.0.0.1", "127.0.0.7"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: core_of("x", ()), "profile x: give univista, or COUNTxRATEg, such as 8x400g"),
        (lambda: profile_of("99x400g"), "profile 99x400g: give COUNTxRATEg, 1 to 16 devices of 10, 25"),
        (lambda: profile_of("8x300g"), "devices of 10, 25, 40, 50, 100, 200, 400, 800 Gb/s"),
        (lambda: spread(["127.0.0.1", "127.0.0.2"], 3), "--count 3 with 2 addresses: give one"),
        (lambda: spread(["255.255.255.255"], 2), "--count 2 from 255.255.255.255"),
        (lambda: counted_up("5mlx", 0), "--name 5mlx: give a letter and at most 14"),
        (lambda: counted_up("mlx5_with_a_long_name", 0), "give a letter and at most 14"),
        (lambda: looks("127.0.0.1", pci="nonsense"), "pci='nonsense' is not a PCI address"),
    ],
)
def test_what_no_device_has_is_said(call: Any, words: str) -> None:
    with pytest.raises((ProcessError, VerbsError)) as raised:
        call()
    assert words in str(raised.value)


def test_what_is_no_profile_is_another_option() -> None:
    assert profile_of(None) is None
    assert profile_of("univista") is None


def test_a_profile_is_a_core_or_looks() -> None:
    assert tuple(PROFILES) == CORES
    assert core_of("univista", ("QP_NUM=1024", "MR_NUM=256")) == ("univista", {"QP_NUM": 1024, "MR_NUM": 256})
    assert core_of("8x400g", ()) == core_of(None, ()) == (None, {})
    for text in ("QP_NUM", "QP_NUM=", "=1", "QP_NUM=x", "QP_NUM=-1"):
        with pytest.raises(click.BadParameter, match="give NAME=VALUE"):
            core_of("univista", (text,))
