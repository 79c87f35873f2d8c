"""Linking: what the command line depends on."""

from __future__ import annotations

import pytest

from torchfork.native import link
from torchfork.native.toolchain import Toolchain
from torchfork.upstream.abi import DEFAULT_ONLY


@pytest.mark.parametrize(
    ("cxx", "kept"),
    [
        ("g++", False),
        ("g++ -g", True),
        ("ccache g++-13 -fsanitize=address -g1", True),
        ("g++ -ggdb3 -O0", True),
        ("g++ -gsplit-dwarf", True),
        ("g++ -g0", False),
        ("/opt/-g/g++ -march=native -fno-gnu-unique", False),
    ],
)
def test_symbols_stay_where_debug_information_was_asked_for(cxx: str, kept: bool) -> None:
    """Else they go: a wheel is no larger than it must be."""
    tools = Toolchain(
        cxx=cxx, launcher="", jobs=1, capabilities=DEFAULT_ONLY, cuda=None, cuda_note=""
    )
    assert link.strip_flags(tools) == ([] if kept else ["-Wl,-s"])
