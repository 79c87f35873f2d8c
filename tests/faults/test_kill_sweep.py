"""Sixty kills of commands, drawn by a seed; kill_sweep.py as a script makes any number of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command import Command
from kill_sweep import SHARES, Sweep, described

pytestmark = pytest.mark.wheel
KILLS = int(os.environ.get("TORCHFORK_KILLS", "60"))


def test_a_killed_command_leaves_old_or_new_and_the_next_run_finishes(
    tmp_path: Path, finished: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    done = dict.fromkeys([*SHARES, "episode"], 0)
    Sweep(tmp_path, finished).sweep(KILLS, 0, done, lambda: None)
    with capsys.disabled():
        print(f"\n{described(done)}")
    assert sum(done[name] for name in SHARES) == KILLS
