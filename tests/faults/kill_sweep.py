"""Kills commands at any of their changes of files: each file is then old or new, nothing that they
started lives on, and the next run makes all of it new. As a script, which goes on where it stopped:

    python tests/faults/kill_sweep.py --kills 1000 --seed 7 --state DIR
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

sys.path.append(str(Path(__file__).parents[1] / "invariants"))
sys.path.append(str(Path(__file__).parents[1] / "unit"))
sys.path.append(str(Path(__file__).parents[2] / "scripts" / "lib"))

import killing
import sample_tree
from command import PROJECT, SMALL, Command

from torchfork.additions.load import load
from torchfork.codegen import build_dir
from torchfork.errors import StateError
from torchfork.state import installed_torch
from torchfork.upstream import base as bases
from torchfork.upstream import fetch, pins, wheel
from torchfork.upstream.base import Base
from torchfork.upstream.tree import record_provenance
from torchfork.util import cache as user_cache
from torchfork.util import files

IN_A_ROW = 6
# By name, how often each is killed.
SHARES = {
    "check": 8, "build": 20, "overlay": 8, "develop": 16, "undo": 10, "apply": 12, "unapply": 8,
    "rebase": 4, "pin": 4, "index": 3, "sbom": 2, "edit": 2, "refresh": 3, "clean": 2, "unpack": 1,
}  # fmt: skip
Files = dict[str, tuple[int, bytes]]
Words = list[str | Path]
# A compiler launcher: an object is that of the finished build, as it is the same wherever the
# headers of a base lie. Runs that are killed compile the kernels.
LAUNCHER = """#!/bin/sh
for word; do [ "$before" = -o ] && object=$word; before=$word; done
case $KILLED$object in 1*WheelTestStep*) exec "$@" ;; esac
[ -f "$FINISHED/$object" ] && exec cp "$FINISHED/$object" "$object"
exec "$@"
"""


@cache
def sha256(path: str, *identity: int) -> bytes:
    """The hash of a file's contents, read once for each state of the file."""
    return hashlib.sha256(Path(path).read_bytes()).digest()


def snapshot(root: Path) -> Files:
    """The mode and the hash of every file but hidden ones, by name."""
    found: Files = {}
    for directory, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name[0] != "." and name != "__pycache__"]
        for path in (f"{directory}/{name}" for name in names if name[0] != "."):
            stat = os.stat(path)  # noqa: PTH116 - a Path for each of 12,000 files costs most of it
            state = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
            found[path[len(str(root)) + 1 :]] = (stat.st_mode, sha256(path, *state))
    return found


def differing(one: Files, other: Files) -> list[str]:
    """The files that are not the same."""
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


@dataclass
class Scenario:
    """A command, the directory that it is to change, and how that gets to be as it was before.

    changes: the most that a run made of files.
    """

    argv: Words
    watched: Path
    reset: Callable[[random.Random], object]
    environment: Mapping[str, str] = field(default_factory=dict)
    before: Files = field(default_factory=dict)
    after: Files = field(default_factory=dict)
    changes: int = 0


class Sweep:
    """A project of its own below a directory, with everything that its commands change.

    finished: a build of the same additions, whose generated code and objects are taken over.
    """

    def __init__(self, root: Path, finished: Command) -> None:
        self.root, self.project, base = root, root / "project", finished.base
        self.finished = finished.layout()
        variables = {
            "SWEPT": str(root), "FINISHED": str(self.finished / "build"),
            "CMAKE_CXX_COMPILER_LAUNCHER": str(root / "launcher"),
            # Most of a run that is killed early would be compiling Python.
            "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(root / "pycache"),
        }  # fmt: skip
        self.command = Command(root, base, environment=variables)
        self.known: dict[str, Scenario] = {}
        self.pristine: dict[Path, Files] = {}
        shutil.rmtree(root, ignore_errors=True)
        for name in ("scripts", "ci"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(PROJECT / name, self.project / name, ignore=ignored)
        (root / "launcher").write_text(LAUNCHER)
        (root / "launcher").chmod(0o755)
        known = pins.load()
        opening = wheel.Opening(bases.probe(headers=False), known, user_cache.directory())
        self.wheel = Path(base[1]) if base else fetch.fetch_wheel(known.get(), opening)
        opened = wheel.open_wheel(self.wheel, opening)
        self.base = opened.root
        self.take_over(opened)

    def sweep(self, kills: int, seed: int, done: dict[str, int], save: Callable[[], None]) -> None:
        """Add to `done` until it counts so many kills; `episode` in it is where to go on."""
        while sum(done[name] for name in SHARES) < kills:
            rng = random.Random(f"{seed}/{done['episode']}")
            [name] = rng.choices(list(SHARES), list(SHARES.values()))
            left = kills - sum(done[name] for name in SHARES)
            done[name] += self.episode(name, rng, min(left, IN_A_ROW))
            done["episode"] += 1
            save()

    def episode(self, name: str, rng: random.Random, most: int) -> int:
        """Kill a command a few times in a row, then let it end; how often it was killed."""
        scenario = self.scenario(name)
        scenario.reset(rng)
        wrong = differing(snapshot(scenario.watched), scenario.before)
        assert not wrong, f"{name}, taken back: {wrong}"
        kills = 0
        for _ in range(rng.randint(1, most)):
            # Rather early than late: an earlier run has done part of it.
            allowed = int(scenario.changes ** rng.random()) - 1
            seconds = rng.choice([0, 0, rng.expovariate(1)])
            if self.run(scenario, allowed, seconds) is not None:
                break  # it had less left to do, and did it
            kills += 1
            now = snapshot(scenario.watched)
            for file in now.keys() | scenario.before.keys() | scenario.after.keys():
                known = (scenario.before.get(file), scenario.after.get(file))
                assert now.get(file) in known, f"{name}, {allowed}, {seconds}: {file}"
        else:
            self.run(scenario)
        wrong = differing(snapshot(scenario.watched), scenario.after)
        assert not wrong, f"{name}, finished: {wrong}"
        folders = [scenario.watched, *self.root.glob("work/*/"), *self.root.glob("fresh/*/")]
        left = [path for folder in folders for path in folder.glob(".*[!k]")]  # but for .lock
        assert not left, f"{name}: {left}"
        return kills

    def run(self, scenario: Scenario, allowed: int = sys.maxsize, seconds: float = 0) -> int | None:
        """The changes that a run makes; None if it is killed."""
        report = self.root / "report"
        program: Words = [sys.executable, killing.__file__, report, str(allowed), str(seconds)]
        lib = {
            "PYTHONPATH": str(self.project / "scripts" / "lib"),
            "KILLED": "1" if allowed < sys.maxsize else "", **scenario.environment,
        }  # fmt: skip
        done = subprocess.run(
            [*program, "-m", "torchfork", *scenario.argv], env=self.command.env(lib), cwd=self.root,
            capture_output=True, text=True, check=False, timeout=1800,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while alive := self.processes():
            assert time.monotonic() < deadline, f"{scenario.argv[0]}: {alive} live on"
            time.sleep(0.02)
        if done.returncode == -signal.SIGKILL:
            return None
        if done.returncode == StateError.exit_code and snapshot(scenario.watched) == scenario.after:
            return 0  # there was nothing left to take back
        assert done.returncode == 0, f"{scenario.argv}: {done.stdout}{done.stderr}"
        made = int(report.read_text())
        scenario.changes = max(scenario.changes, made)
        return made

    def processes(self) -> list[str]:
        """What runs of this sweep started and still runs."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if f"SWEPT={self.root}\0".encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:  # another user's, or gone
                continue
        return found

    def scenario(self, name: str) -> Scenario:
        """A scenario, whose command has run once from its start to its end."""
        if name not in self.known:
            made = self.make(name)
            made.watched.mkdir(parents=True, exist_ok=True)
            made.reset(random.Random(0))
            made.before = snapshot(made.watched)
            self.run(made)
            made.after = snapshot(made.watched)
            self.known[name] = made
        return self.known[name]

    def take_over(self, base: Base) -> None:
        """Give the build directory of a base what the finished build generated."""
        with patch.dict(os.environ, self.command.env()):
            layout = build_dir.for_base(base, load(SMALL), self.command.work)
        for part in ("generated", "templates"):
            shutil.copytree(self.finished / part, layout.root / part, symlinks=True)

    def make(self, name: str) -> Scenario:
        """What is needed for it, and it."""
        root = self.root
        small: Words = ["--additions", SMALL]
        places: Words = [*small, "--work", self.command.work]
        build: Words = ["build", *self.command.base, *places, "--no-verify", "--out", root / name]
        match name:
            case "check":
                return self.fresh(["check", *self.command.base, *small])
            case "build":
                return Scenario(build, root / name, partial(self.undone, root / name))
            case "overlay":
                overlay = [*build, "--overlay", "--name", "swept"]
                return Scenario(overlay, root / name, partial(self.undone, root / name))
            case "develop" | "undo":
                python, site = self.environment()
                options: Words = ["--python", python]
                develop: Words = ["build", "--develop", *places, *options]
                return self.pair(name == "undo", site, develop, ["build", "--undo", *options])
            case "apply" | "unapply":
                tree = self.tree()
                apply: Words = ["apply", tree, *places, "--unpinned"]
                return self.pair(name == "unapply", tree, apply, ["unapply", tree])
            case "rebase":
                onto: Words = ["rebase", "--onto", pins.load().default, "--to", "a"]
                return self.fresh([*onto, *small, "--report", root / name])
            case "pin":
                file = self.project / "ci" / "releases.toml"
                unpinned = [
                    x for x in file.read_text().splitlines(True) if self.wheel.name not in x
                ]
                return Scenario(
                    ["pin", self.wheel], file.parent, lambda rng: file.write_text("".join(unpinned))
                )
            case "index" | "sbom":
                build_out = self.scenario("build").watched
                [built] = build_out.glob("*.whl")
                folder = root / name
                folder.mkdir()
                (folder / built.name).hardlink_to(built)
                sbom: Words = ["sbom", built, "--out", folder]
                argv: Words = ["index", folder] if name == "index" else sbom

                def emptied(rng: random.Random) -> None:
                    for made in [path for path in folder.iterdir() if path.suffix != ".whl"]:
                        files.remove(made)

                return Scenario(argv, folder, emptied)
            case "edit" | "refresh":
                return self.patches(name)
            case "clean":
                place = root / "cache" / "torchfork"

                def filled(rng: random.Random) -> None:
                    tagged = user_cache.directory({"TORCHFORK_CACHE": str(place)})
                    for number in range(20):
                        file = tagged / "unpacked" / str(number) / "file"
                        file.parent.mkdir(parents=True, exist_ok=True)
                        file.write_text("kept")

                variables = {"TORCHFORK_CACHE": str(place)}
                return Scenario(["clean", "--cache"], place.parent, filled, variables)
            case "unpack":
                return self.fresh(["check", "--base", self.wheel, *small], cold=True)
        raise ValueError(name)

    def fresh(self, argv: Words, *, cold: bool = False) -> Scenario:
        """A command that misses one result of earlier runs, or all; cold: those of the cache."""
        work, place = self.root / "fresh", self.root / "cold"

        def reset(rng: random.Random) -> None:
            results = [*work.glob("torch-*/*"), work]
            files.remove(rng.choice(results))
            for folder in (place, self.project / ".torchfork"):
                shutil.rmtree(folder, ignore_errors=True)

        variables = {"TORCHFORK_CACHE": str(place)} if cold else {}
        return Scenario([*argv, "--work", work], self.root / "nothing", reset, variables)

    def undone(self, out: Path, rng: random.Random) -> None:
        """No wheel, no object of the kernel, now and then no result of a step, or of none."""
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        parts = [self.command.work, *self.command.work.glob("torch-*/[!t]*")]
        if len(parts) > 1 and not rng.randrange(4):
            files.remove(rng.choice(parts))
        for made in self.command.work.glob("*/build/**/WheelTestStep*.o"):
            made.unlink()

    def pair(self, back: bool, watched: Path, do: Words, undo: Words) -> Scenario:
        """A command before which the one that takes it back has run, or the other way round."""
        pristine = self.pristine.setdefault(watched, snapshot(watched))

        def reset(rng: random.Random) -> None:
            if (snapshot(watched) == pristine) == back:
                self.run(Scenario(do if back else undo, watched, reset))

        return Scenario(undo if back else do, watched, reset)

    def environment(self) -> tuple[Path, Path]:
        """A Python with the official torch, and its site-packages."""
        root = self.root / "env"
        if not root.exists():
            venv.create(root, symlinks=True)
            [site] = root.glob("lib/*/site-packages")
            shutil.copytree(self.base, site, copy_function=os.link, dirs_exist_ok=True)
            python = bases.probe(root / "bin" / "python", headers=False)
            opening = wheel.Opening(python, pins.load(), user_cache.directory())
            self.take_over(installed_torch.open_base(opening))
        [site] = root.glob("lib/*/site-packages")
        return root / "bin" / "python", site

    def tree(self) -> Path:
        """What the wheel has of a tree of sources, laid out as one."""
        root = self.root / "tree"
        if not root.exists():
            root.mkdir()
            (root / "version.txt").write_text(f"{pins.load().default}a0\n")
            sample_tree.write(root, self.base)
            record_provenance(root, pins.load().get().commit, "a wheel")
        return root

    def patches(self, name: str) -> Scenario:
        """The workbench is made, or what was edited in it comes back into the additions."""
        bench, additions = self.root / "bench", self.root / "additions"
        kept = self.root / "bench.kept"
        options: Words = ["--bench", bench, "--additions", additions]
        edit: Words = ["patch", "edit", "--torch", self.base, *options]

        def fresh(rng: random.Random) -> None:
            for folder in (bench, additions):
                shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(SMALL, additions)

        def edited(rng: random.Random) -> None:
            fresh(rng)
            if not kept.exists():
                self.run(Scenario(edit, bench, fresh))
                changed = bench / "torch" / "wheel_test_name.py"
                changed.write_text(changed.read_text() + "more = 1\n")
                sample_tree.git(bench, "commit", "--quiet", "--all", "--amend", "--no-edit")
                bench.rename(kept)
            shutil.copytree(kept, bench, symlinks=True)

        if name == "edit":
            return Scenario(edit, additions, fresh)
        return Scenario(["patch", "refresh", *options], additions, edited)


def main() -> int:
    """Sweep; the number of kills, by command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, required=True, metavar="DIR")
    parser.add_argument("--base", type=Path, metavar="WHEEL", help="an official wheel")
    options = parser.parse_args()
    place = options.state.absolute() / f"seed-{options.seed}"
    notes = place / "done.json"
    done = dict.fromkeys([*SHARES, "episode"], 0)
    if notes.exists():
        done |= json.loads(notes.read_text())

    def save() -> None:
        notes.write_text(json.dumps(done))
        print(described(done), flush=True)

    base = ("--base", str(options.base.absolute())) if options.base else ()
    place.mkdir(parents=True, exist_ok=True)
    finished = Command(options.state.absolute() / "finished", base)
    finished.root.mkdir(parents=True, exist_ok=True)
    assert finished.run().code == 0
    Sweep(place / "sweep", finished).sweep(options.kills, options.seed, done, save)
    print(described(done))
    return 0


def described(done: Mapping[str, int]) -> str:
    """The count, in all and by command."""
    by_name = ", ".join(f"{name} {done[name]}" for name in SHARES if done[name])
    return f"{sum(done[name] for name in SHARES)} kills in {done['episode']} episodes: {by_name}"


if __name__ == "__main__":
    sys.exit(main())
