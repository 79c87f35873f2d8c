"""What holds for every test of this suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sample_wheel

from torchfork.upstream.base import Interpreter
from torchfork.util import files


@pytest.fixture(scope="session", autouse=True)
def no_constraint_of_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sample wheels have releases of their own (torch 9.1.0), which a user's pip may rule out."""
    empty = tmp_path_factory.mktemp("pip") / "constraints.txt"
    empty.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONSTRAINT", str(empty))
        yield


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """A virtual environment that tests take in turn: see `interpreter`."""
    return sample_wheel.environment(tmp_path_factory.mktemp("ö environment") / "venv")


@pytest.fixture
def interpreter(environment: Interpreter) -> Iterator[Interpreter]:
    """A virtual environment without pip; what a test puts into its site-packages goes with it."""
    site = environment.site_packages
    before = set(site.iterdir())
    yield environment
    for path in set(site.iterdir()) - before:
        files.remove(path)
