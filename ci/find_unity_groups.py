#!/usr/bin/env python3
"""Finds files of a configured tree that compile as one, for ci/unity-<version>.txt.

    ci/find_unity_groups.py TREE [--size 8] [--only REGEX] > ci/unity-2.6.0.txt

TREE is a tree whose build directory is configured and whose sources are generated. Most of the time
of a small file goes into headers that all files of a directory include; a group parses them once.
Every group that is printed has been through the compiler's front end as a whole; one that is
refused is halved until it passes. A file that passes alone only is not printed.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Compiled once a capability, generated anew by each build, or not C++ of the tree's own.
SKIPPED = re.compile(r"/(third_party|generated|build|cuda|mps|vulkan)/|\.(AVX2|AVX512|DEFAULT)\.")
TARGETS = re.compile(r"/(torch_cpu|torch_python)\.dir/")


def commands(build: Path) -> Iterator[tuple[str, Path, list[str], str]]:
    """Target, file, arguments without the file and directory of each compilation."""
    told = subprocess.run(
        ["ninja", "-C", str(build), "-t", "compdb"], capture_output=True, text=True, check=True
    ).stdout
    for entry in json.loads(told[told.index("[") :]):
        target = TARGETS.search(entry["output"])
        path = Path(entry["file"])
        inside = path.is_relative_to(build.parent) and path.suffix == ".cpp"
        if not target or not inside or SKIPPED.search(f"/{path.relative_to(build.parent)}"):
            continue
        words = shlex.split(entry["command"])
        first = next(i for i, word in enumerate(words) if not word.endswith(("ccache", "sccache")))
        kept, skip = [], False
        for word in words[first:]:
            if skip or word == "-MD":
                skip = False
            elif word in ("-o", "-MT", "-MF", "-c"):
                skip = True
            elif word != entry["file"]:
                kept.append(word)
        yield target[1], Path(entry["file"]), kept, entry["directory"]


def passes(files: list[Path], arguments: list[str], directory: str) -> bool:
    """Whether the compiler's front end takes the files as one."""
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as unit:
        unit.write("".join(f'#include "{path}"\n' for path in files))
        unit.flush()
        command = [*arguments, "-w", "-fsyntax-only", unit.name]
        return subprocess.run(command, cwd=directory, capture_output=True).returncode == 0


def groups(files: list[Path], arguments: list[str], directory: str) -> Iterator[list[Path]]:
    """The files in as large groups as pass; halves of what does not, down to pairs."""
    if len(files) < 2:
        return
    if passes(files, arguments, directory):
        yield files
        return
    half = len(files) // 2
    yield from groups(files[:half], arguments, directory)
    yield from groups(files[half:], arguments, directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    tree = options.tree.resolve()
    journal = tree / ".torchfork" / "journal.json"
    # Ours are edited, and a group is compiled as a whole.
    ours = set(json.loads(journal.read_text())["entries"]) if journal.is_file() else set()
    together: dict[tuple[str, str, str], list[Path]] = {}
    how: dict[tuple[str, str, str], tuple[list[str], str]] = {}
    for target, path, arguments, directory in commands(tree / "build"):
        name = path.relative_to(tree).as_posix()
        if re.search(options.only, name) and name not in ours:
            key = (target, str(path.parent), shlex.join(arguments))
            together.setdefault(key, []).append(path)
            how[key] = (arguments, directory)
    for key, files in sorted(together.items()):
        files.sort()
        for start in range(0, len(files), options.size):
            for group in groups(files[start : start + options.size], *how[key]):
                names = [path.relative_to(tree).as_posix() for path in group]
                print(key[0], *names, flush=True)
                print(f"{len(group)} of {key[1]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
