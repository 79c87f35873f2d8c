"""Settings of the tests of citizenship's checks."""

from __future__ import annotations

import pytest
import torch

from torchfork.conformance.checks import samples


@pytest.fixture(scope="session", autouse=True)
def upstreams_tables() -> None:
    """What torch makes once and keeps is made before a test puts something in torch's place."""
    torch.overrides.get_testing_overrides()
    torch.overrides.get_overridable_functions()
    torch.compile(torch.sigmoid, backend="eager")(torch.ones(1))
    samples.load_infos()
