"""Arguments that are mostly wrong end in an error that names the operator, and in nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TUPLES = int(os.environ.get("TORCHFORK_TUPLES", "10000"))
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
def test_no_tuple_of_arguments_ends_otherwise_than_in_a_result_or_a_named_error(
    device: str,
) -> None:
    """In processes of their own: no signal, no internal assertion, the same words on meta."""
    command = [sys.executable, str(Path(__file__).with_name("fuzz.py")), "--device", device,
               "--tuples", str(TUPLES), "--jobs", "2"]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    print(run.stdout)
