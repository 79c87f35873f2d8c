"""Fixtures of the operator tests.

The directory runs against whatever torch is installed: it takes nothing from the checkout but its
own files and benchmarks/. It needs pytest, numpy and expecttest (which torch.testing._internal
imports).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def pytest_report_header() -> str:
    """Name the torch under test: an import from an unexpected place is the usual surprise."""
    return f"torch under test: {torch.__version__} from {torch.__file__} on {', '.join(DEVICES)}"


def pytest_sessionstart() -> None:
    """Stop at once, with the reason, when the installed torch was built without the additions."""
    if not hasattr(torch, "depthwise_conv2d_ext") or not hasattr(torch, "gdh"):
        pytest.exit(
            f"torch {torch.__version__} ({torch.__file__}) has no gdh or depthwise_conv2d_ext: "
            "install the wheel that scripts/build_torch.sh puts into dist/",
            returncode=4,
        )
    # Upstream's convolution is a reference here. Once for all: torch.testing._internal freezes it.
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each device of this machine in turn."""
    return str(request.param)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def no_vmap_fallback() -> Iterator[None]:
    """vmap's loop in the dispatcher is off: an operator without a batch rule is an error."""
    enabled = torch._C._functorch._is_vmap_fallback_enabled()
    torch._C._functorch._set_vmap_fallback_enabled(False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*performance drop")
        yield
    torch._C._functorch._set_vmap_fallback_enabled(enabled)
