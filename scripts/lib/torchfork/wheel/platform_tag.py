"""Keeps a wheel's platform tag true: the oldest glibc that its new libraries load on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ..util import process

# What the tags of older manylinux generations stand for.
LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


def needed_glibc(libraries: Sequence[Path]) -> tuple[int, int]:
    """The newest glibc symbol version that the libraries refer to; (0, 0) where there is none."""
    newest = (0, 0)
    for library in libraries:
        text = process.run(["objdump", "-T", library]).stdout
        versions = re.findall(r"\(GLIBC_(\d+)\.(\d+)(?:\.\d+)?\)", text)
        newest = max([newest, *((int(major), int(minor)) for major, minor in versions)])
    return newest


def promised_glibc(platform: str) -> tuple[int, int] | None:
    """The glibc that a platform tag promises to be enough; None for other systems."""
    for legacy, version in LEGACY.items():
        if platform.startswith(f"{legacy}_"):
            return version
    found = re.match(r"manylinux_(\d+)_(\d+)_", platform)
    return (int(found[1]), int(found[2])) if found else None


def raised_tag(wheel_tag: str, needed: tuple[int, int]) -> str:
    """The wheel tag, with each platform that promises too much raised to what is needed."""
    head, _, platforms = wheel_tag.rpartition("-")
    raised: list[str] = []
    for platform in platforms.split("."):
        promised = promised_glibc(platform)
        if promised is not None and promised < needed:
            machine = re.sub(r"^manylinux(\d+|_\d+_\d+)_", "", platform)
            platform = f"manylinux_{needed[0]}_{needed[1]}_{machine}"
        raised.append(platform)
    return f"{head}-{'.'.join(dict.fromkeys(raised))}"
