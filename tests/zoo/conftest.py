"""Settings of the zoo's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Each test compiles for itself: dynamo counts compilations by line of code."""
    torch._dynamo.reset()
    yield
