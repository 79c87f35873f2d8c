"""Where downloads and unpacked bases are kept between runs, for all checkouts of one user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def directory(environment: Mapping[str, str] | None = None) -> Path:
    """TORCHFORK_CACHE, else torchfork/ in XDG_CACHE_HOME, else in ~/.cache."""
    env = os.environ if environment is None else environment
    if chosen := env.get("TORCHFORK_CACHE"):
        return Path(chosen).expanduser().absolute()
    home = env.get("XDG_CACHE_HOME") or ""
    # The XDG specification: a relative path is to be ignored.
    parent = Path(home) if Path(home).is_absolute() else Path.home() / ".cache"
    return parent / "torchfork"
