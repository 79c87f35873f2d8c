"""Gives the tests the official wheel, and one finished build that nothing disturbed.

TORCHFORK_TEST_WHEEL names the official wheel to test on; without it the default release is used, as
in any other run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command import Command, finished_build

from torchfork.upstream import fetch, pins, wheel
from torchfork.upstream.base import Base, probe
from torchfork.util import cache


@pytest.fixture(scope="session")
def base_option() -> tuple[str, ...]:
    """How the command line names the official wheel."""
    named = os.environ.get("TORCHFORK_TEST_WHEEL")
    return ("--base", str(Path(named).absolute())) if named else ()


@pytest.fixture(scope="session")
def base(base_option: tuple[str, ...]) -> Base:
    """The official wheel, unpacked in the user's cache."""
    opening = wheel.Opening(probe(headers=False), pins.load(), cache.directory())
    path = Path(base_option[1]) if base_option else fetch.fetch_wheel(opening.pins.get(), opening)
    return wheel.open_wheel(path, opening)


@pytest.fixture
def command(tmp_path: Path, base_option: tuple[str, ...]) -> Command:
    """torchfork with directories of this test's own."""
    return Command(tmp_path, base_option)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, base_option: tuple[str, ...]) -> Command:
    """A build that ran to its end; tests that change its directory copy it."""
    return finished_build(tmp_path_factory, base_option)
