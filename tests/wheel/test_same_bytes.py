"""The same input gives the same bytes in any directory, time zone, locale, umask and home."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from subject import PROJECT, Archive, Subject

from torchfork.upstream.base import Base
from torchfork.util.files import sha256_file

SMALL = Path(__file__).with_name("small_additions")
# Kiritimati is 14 hours ahead and UTC-12 behind, so that the two never have the same date; Turkish
# has other capitals for i.
ELSEWHERE = {"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}
HERE = {"TZ": "Etc/GMT+12", "LC_ALL": "C", "LANG": "C"}

PACK = """
import json, sys
from pathlib import Path
from torchfork.upstream.base import Base, Interpreter
from torchfork.wheel import pack
told = json.loads(sys.argv[1])
paths = {key: Path(told["base"][key]) for key in ("root", "wheel")}
fields = {**told["base"], **paths, "interpreter": Interpreter(**told["base"]["interpreter"])}
print(pack.pack(Base(**fields), Path(told["overlay"]), told["version"], Path(told["out"]),
                pack.epoch_from()))
"""


def run_tooling(
    argv: list[str | Path], environment: Mapping[str, str], umask: int, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run torchfork's Python as another user's shell would have it."""
    kept = {k: v for k, v in os.environ.items() if k not in {"SOURCE_DATE_EPOCH", "MAX_JOBS"}}
    done = subprocess.run(
        [sys.executable, *map(str, argv)], umask=umask, cwd=cwd,
        env={**kept, "PYTHONPATH": str(PROJECT / "scripts" / "lib"), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def plain(base: Base) -> dict[str, Any]:
    """A base as JSON can tell it."""
    told: dict[str, Any] = json.loads(json.dumps(asdict(base), default=str))
    return told


@pytest.mark.parametrize(
    ("environment", "umask", "mode"),
    [(ELSEWHERE, 0o077, 0o600), (HERE, 0o000, 0o777)],
    ids=["elsewhere and private", "here and open"],
)
def test_packing_again_gives_the_very_wheel(
    wheel: Archive,
    base: Base,
    overlay: Path,
    foreign_place: Path,
    environment: dict[str, str],
    umask: int,
    mode: int,
) -> None:
    """From what the wheel has changed, so that this also shows that the packer adds nothing."""
    place = foreign_place / f"packed {umask:o}"
    shutil.copytree(overlay, place / "overlay")
    for path in (place / "overlay").rglob("*"):
        if path.is_file():
            # Modes come from the base's members, but for files that the base has not: 0o777 would
            # make those executable, so these get an ordinary mode.
            new = not (base.root / path.relative_to(place / "overlay")).exists()
            path.chmod(mode & 0o666 if new else mode)
            os.utime(path, (86400 * umask, 86400 * umask))
    told = {
        "base": plain(base), "overlay": str(place / "overlay"), "version": wheel.version,
        "out": str(place / "out"),
    }  # fmt: skip
    done = run_tooling(["-c", PACK, json.dumps(told)], environment, umask, place)
    packed = Path(done.stdout.strip())
    assert packed.name == wheel.path.name
    assert sha256_file(packed) == sha256_file(wheel.path)
    packed.unlink()


@pytest.mark.slow
def test_a_whole_build_elsewhere_gives_the_very_bytes(
    subject: Subject, base: Base, foreign_place: Path
) -> None:
    """Another home (so another cache, another path of the unpacked base), another copy of the
    additions, another build directory, and no compiler cache, which would hand out the first
    build's objects. Of small additions, as an overlay: a full wheel is packed above.
    """
    # Empty counts as unset: the cache is the home's.
    elsewhere = {**ELSEWHERE, "TORCHFORK_CACHE": "", "XDG_CACHE_HOME": "",
                 "HOME": str(foreign_place / "home"),
                 "CMAKE_CXX_COMPILER_LAUNCHER": ""}  # fmt: skip
    assert base.wheel is not None
    built = []
    for place, environment, umask in (
        (foreign_place / "here", HERE, 0o022), (foreign_place / "elsewhere", elsewhere, 0o027)
    ):  # fmt: skip
        shutil.copytree(SMALL, place / "additions")
        done = run_tooling(
            ["-m", "torchfork", "build", "--quiet", "--no-verify", "--overlay", "--name", "small",
             "--base", base.wheel, "--python", subject.python, "--additions", place / "additions",
             "--work", place / "work", "--out", place / "out"],
            environment, umask, place,
        )  # fmt: skip
        built.append(Archive(Path(done.stdout.strip().splitlines()[-1])))
        shutil.rmtree(place / "work")
    shutil.rmtree(foreign_place / "home")
    first, second = ({name: m.CRC for name, m in one.members.items()} for one in built)
    assert not {
        name for name in first.keys() | second.keys() if first.get(name) != second.get(name)
    }
    assert sha256_file(built[0].path) == sha256_file(built[1].path)


def test_no_path_of_this_machine_is_in_the_libraries_or_texts(
    wheel: Archive, overlay: Path, base: Base
) -> None:
    """What would make two builds differ, and tell strangers who built it where."""
    homes = {str(PROJECT), str(Path.home() / ".cache"), str(base.root), str(base.wheel)}
    files = [path for path in overlay.rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        assert not [home for home in homes if home.encode() in data], path
