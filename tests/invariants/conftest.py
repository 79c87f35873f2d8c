"""Gives the tests the official wheel, and the command line on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import base_option, command, finished

from torchfork.upstream import fetch, pins, wheel
from torchfork.upstream.base import Base, probe
from torchfork.util import cache

__all__ = ["base_option", "command", "finished"]


@pytest.fixture(scope="session")
def base(base_option: tuple[str, ...]) -> Base:
    """The official wheel, unpacked in the user's cache."""
    opening = wheel.Opening(probe(headers=False), pins.load(), cache.directory())
    path = Path(base_option[1]) if base_option else fetch.fetch_wheel(opening.pins.get(), opening)
    return wheel.open_wheel(path, opening)
