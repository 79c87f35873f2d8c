"""What holds for every test of this suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_constraint_of_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Sample wheels have releases of their own (torch 9.1.0), which a user's pip may rule out."""
    empty = tmp_path_factory.mktemp("pip") / "constraints.txt"
    empty.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONSTRAINT", str(empty))
        yield
