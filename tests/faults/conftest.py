"""The command line on an official wheel, as tests/invariants has it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "invariants"))

from command import base_option, command, finished

__all__ = ["base_option", "command", "finished"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the sweep of kills, one test of minutes, run first: last, it would run alone."""
    items.sort(key=lambda item: "test_kill_sweep" not in item.nodeid)
