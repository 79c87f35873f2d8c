"""Fixtures of the tests on real models.

The suite runs against whatever torch is installed, in an environment with what
scripts/requirements-models.txt pins.
"""

from __future__ import annotations

import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is to be fetched


def pytest_report_header() -> str:
    """Name the torch under test."""
    return f"torch under test: {torch.__version__} from {torch.__file__}"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()  # what other tests compiled counts towards a limit
