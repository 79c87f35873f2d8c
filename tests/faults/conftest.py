"""The command line on an official wheel, as tests/invariants has it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "invariants"))

from command import base_option, command, finished

__all__ = ["base_option", "command", "finished"]
