#!/usr/bin/env python3
"""Finds files of a configured tree that compile as one, for ci/unity-<version>.txt.

    ci/find_unity_groups.py TREE [--size 8] [--only REGEX] [--jobs 2] > ci/unity-2.6.0.txt
    ci/find_unity_groups.py TREE --split OLD > ci/unity-2.6.0.txt

TREE is a tree whose build directory is configured and whose sources are generated. Most of the time
of a small file goes into headers that all files of a directory include; a group parses them once.
Every group that is printed has been through the compiler's front end as a whole; the files that it
complains of are taken out and tried with those of other groups. A file that passes alone only is
not printed. Kernels that are compiled once a capability are tried for one and printed for each.

Passing the front end is not enough: a name that two members define, each in a namespace of its own,
may come to mean the other one without an error. So files with such names are never tried as one
(cxx_names.py); run the tests on the wheel before keeping a list nevertheless.

--split reads a list that was found before and takes its groups apart where names ask for it. It
needs no compiler, and TREE need not be configured.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cxx_names import Headers, Names, Reader

# Generated anew by each build, or not C++ of the tree's own.
SKIPPED = re.compile(r"/(third_party|generated|cuda|mps|vulkan)/")
TARGETS = re.compile(r"/(torch_cpu|torch_python)\.dir/")
# build/aten/src/ATen/native/cpu/X.cpp.AVX2.cpp is a copy of X.cpp that is compiled for AVX2.
CAPABILITY = re.compile(r"build/(.*\.cpp)\.(DEFAULT|AVX2|AVX512)\.cpp")
CAPABILITIES = ("DEFAULT", "AVX2", "AVX512")
TRIED = "AVX512"
# Upstream's headers refuse some of each other after these: only files with the same ones fit.
ASSERTIONS = re.compile(r"^#define (TORCH_ASSERT\w+)", re.MULTILINE)
ROUNDS = 3  # of putting together what was taken out of other groups


@dataclass(frozen=True)
class Kind:
    """What files must share to be tried as one."""

    target: str
    directory: str
    assertions: tuple[str, ...]
    arguments: tuple[str, ...]
    run_in: str


@dataclass(frozen=True, order=True)
class File:
    """A file that is compiled, and the one that a person wrote, which a capability's includes."""

    path: Path
    source: Path


def commands(build: Path) -> Iterator[tuple[str, Path, list[str], str]]:
    """Target, file, arguments without the file and directory of each compilation."""
    told = subprocess.run(
        ["ninja", "-C", str(build), "-t", "compdb"], capture_output=True, text=True, check=True
    ).stdout
    for entry in json.loads(told[told.index("[") :]):
        target = TARGETS.search(entry["output"])
        path = Path(entry["file"])
        if not target or path.suffix != ".cpp" or not path.is_relative_to(build.parent):
            continue
        name = path.relative_to(build.parent).as_posix()
        copy = CAPABILITY.fullmatch(name)
        if SKIPPED.search(f"/{name}") or (copy[2] != TRIED if copy else name.startswith("build/")):
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


def complaints(files: list[File], kind: Kind) -> set[File]:
    """The files that the compiler's front end complains of when it is given all of them as one.

    All of them where its errors name none.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as unit:
        unit.write("".join(f'#include "{file.path}"\n' for file in files))
        unit.flush()
        command = [*kind.arguments, "-w", "-fsyntax-only", "-fdiagnostics-plain-output", unit.name]
        done = subprocess.run(command, cwd=kind.run_in, capture_output=True, text=True)
    if done.returncode == 0:
        return set()
    named = set(re.findall(r"^([^:\n]+):\d+:\d+: (?:fatal )?error:", done.stderr, re.MULTILINE))
    # An error inside a header counts for the file that included it.
    named |= set(re.findall(r"^In file included from ([^:\n]+):\d+", done.stderr, re.MULTILINE))
    named |= set(re.findall(r"^ +from ([^:\n]+):\d+", done.stderr, re.MULTILINE))
    found = {(Path(kind.run_in) / name).resolve() for name in named}
    wrong = {file for file in files if file.source.resolve() in found}
    # The first conflicts with nothing that comes before it.
    return wrong if wrong and wrong != set(files) else set(files[1:])


@cache
def names(source: Path) -> Names:
    return Reader(source.read_text(encoding="utf-8")).names


def undisturbed(files: list[File], headers: Headers, size: int) -> Iterator[list[File]]:
    """The files in groups of at most `size` without names that mean another thing elsewhere."""
    groups: list[list[File]] = []
    for file in files:
        for members in groups:
            if len(members) < size and not any(
                headers.disturbs(names(member.source), names(file.source)) for member in members
            ):
                members.append(file)
                break
        else:
            groups.append([file])
    yield from groups


def group(files: list[File], kind: Kind, headers: Headers, size: int) -> Iterator[list[File]]:
    """Groups of at most `size` files that pass as one."""
    left = files
    for _ in range(ROUNDS):
        taken_out: list[File] = []
        for members in undisturbed(left, headers, size):
            while len(members) > 1:
                wrong = complaints(members, kind)
                if not wrong:
                    yield members
                    break
                taken_out += [file for file in members if file in wrong]
                members = [file for file in members if file not in wrong]
            else:
                taken_out += members
        if len(taken_out) == len(left):
            return
        left = taken_out


def kinds(tree: Path, only: str) -> dict[Kind, list[File]]:
    """The tree's files by what they must share."""
    journal = tree / ".torchfork" / "journal.json"
    # Ours are edited, and a group is compiled as a whole.
    ours = set(json.loads(journal.read_text())["entries"]) if journal.is_file() else set()
    found: dict[Kind, list[File]] = {}
    for target, path, arguments, directory in commands(tree / "build"):
        name = path.relative_to(tree).as_posix()
        copy = CAPABILITY.fullmatch(name)
        if not re.search(only, name) or (copy[1] if copy else name) in ours:
            continue
        source = tree / copy[1] if copy else path
        text = source.read_text(encoding="utf-8")
        kind = Kind(
            target, str(path.parent), tuple(sorted(set(ASSERTIONS.findall(text)))),
            tuple(arguments), directory,
        )  # fmt: skip
        found.setdefault(kind, []).append(File(path, source))
    return found


def headers_of(tree: Path) -> Headers:
    roots = ("aten/src", "c10", "torch/csrc")
    return Headers.read(path for root in roots for path in (tree / root).rglob("*.h*"))


def split(tree: Path, old: Path, size: int) -> Iterator[list[str]]:
    """Target and files of each group of an old list, taken apart where names ask for it."""
    headers = headers_of(tree)
    for line in old.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        target, *members = line.split()
        files = []
        for member in members:
            copy = CAPABILITY.fullmatch(member)
            files.append(File(tree / member, tree / (copy[1] if copy else member)))
        for kept in undisturbed(files, headers, size):
            if len(kept) > 1:
                yield [target, *(file.path.relative_to(tree).as_posix() for file in kept)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tree", type=Path)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--split", type=Path, metavar="OLD")
    options = parser.parse_args()
    tree = options.tree.resolve()
    if options.split:
        for words in split(tree, options.split, options.size):
            print(*words)
        return
    headers = headers_of(tree)

    def run(item: tuple[Kind, list[File]]) -> None:
        kind, files = item
        count = 0
        for members in group(sorted(files), kind, headers, options.size):
            names = [file.path.relative_to(tree).as_posix() for file in members]
            copies = all(CAPABILITY.fullmatch(name) for name in names)
            for capability in CAPABILITIES if copies else (TRIED,):
                print(kind.target, *(n.replace(TRIED, capability) for n in names), flush=True)
            count += len(members)
        print(f"{count} of {len(files)} of {kind.directory}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, kinds(tree, options.only).items()))


if __name__ == "__main__":
    main()
