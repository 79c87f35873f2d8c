"""The command line on an official wheel, as tests/invariants has it.

TORCHFORK_TEST_WHEEL names the wheel; without it the default release is used, as in any other run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "invariants"))

from command import Command, finished_build


@pytest.fixture(scope="session")
def base_option() -> tuple[str, ...]:
    named = os.environ.get("TORCHFORK_TEST_WHEEL")
    return ("--base", str(Path(named).absolute())) if named else ()


@pytest.fixture
def command(tmp_path: Path, base_option: tuple[str, ...]) -> Command:
    return Command(tmp_path, base_option)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, base_option: tuple[str, ...]) -> Command:
    """A finished build, so that what is tested comes at once."""
    return finished_build(tmp_path_factory, base_option)
