"""Addresses as text."""

from __future__ import annotations

import socket

import pytest

from rnic.spec.addresses import address_text


@pytest.mark.parametrize("text", ["127.0.0.1", "::1", "2001:db8::7:0:1", "::ffff:198.51.100.12", "fe80::1", "::"])
def test_text_is_that_of_inet_ntop(text: str) -> None:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    packed = socket.inet_pton(family, text)
    assert address_text(packed) == text == socket.inet_ntop(family, packed)
