"""A grafted and a source-built wheel of one release give the same operators (issue: equivalence).

TORCHFORK_GRAFTED and TORCHFORK_BUILT name the two wheels. Each is installed into an environment of
its own and asked by describe.py and outputs.py; everything that differs must be in REASONS, and
everything in REASONS must differ.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
NATIVE = "torchgen/packaged/ATen/native/native_functions.yaml"

# What differs and must, by the key of describe.py's answer, with the reason.
REASONS = {
    "symbols": "c10::aten::<name> constants are numbered at compile time inside libtorch; a graft "
    "makes its symbols at run time",
}


def _additions() -> list[str]:
    """Names with overload of our operators, from the project's own YAML."""
    text = (PROJECT / "native_functions_additions.yaml").read_text(encoding="utf-8")
    return [entry["func"].partition("(")[0] for entry in yaml.safe_load(text)]


@pytest.fixture(scope="module")
def wheels() -> dict[str, Path]:
    found = {}
    for name in ("TORCHFORK_GRAFTED", "TORCHFORK_BUILT"):
        path = os.environ.get(name, "")
        if not path:
            pytest.skip(f"needs both wheels of one release: {name} names none")
        found[name] = Path(path)
    versions = {path.name.split("-")[1].partition("+")[0] for path in found.values()}
    assert len(versions) == 1, f"wheels of different releases: {versions}"
    return found


@pytest.fixture(scope="module")
def pythons(
    wheels: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    made = {}
    for name, wheel in wheels.items():
        root = tmp_path_factory.mktemp(name)
        subprocess.run([sys.executable, "-m", "venv", root], check=True)
        made[name] = root / "bin" / "python"
        install: list[str | Path] = [
            made[name],
            "-m",
            "pip",
            "install",
            "-q",
            str(wheel),
            "numpy",
            "expecttest",
        ]
        subprocess.run(install, check=True)
    return made


def ask(python: Path, script: str, tmp_path: Path, *arguments: str) -> Any:
    """Run one of the scripts beside this file in an environment; its JSON."""
    done = subprocess.run(
        [python, "-I", "-W", "ignore", HERE / script, *arguments],
        cwd=tmp_path, capture_output=True, text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def told(
    pythons: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    neutral = tmp_path_factory.mktemp("neutral")
    names = sorted({name.partition(".")[0] for name in _additions()})
    return {
        name: ask(python, "describe.py", neutral, json.dumps(names))
        for name, python in pythons.items()
    }


KEYS = (
    "schemas", "tags", "dispatch", "nodes", "signatures", "docstrings", "overrides", "symbols",
    "namespaces",
)  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_what_both_lanes_say_of_our_operators_is_the_same(
    told: Mapping[str, dict[str, Any]], key: str
) -> None:
    grafted, built = told["TORCHFORK_GRAFTED"][key], told["TORCHFORK_BUILT"][key]
    if key in REASONS:
        assert grafted != built, f"REASONS says that {key} differs, and it does not"
        return
    assert grafted and grafted == built


def test_no_other_native_function_is_missing_or_changed(
    wheels: Mapping[str, Path], told: Mapping[str, dict[str, Any]]
) -> None:
    """Against the YAML that the source-built wheel carries: all of it is registered in both."""
    with zipfile.ZipFile(wheels["TORCHFORK_BUILT"]) as archive:
        functions = yaml.safe_load(archive.read(NATIVE))
    names = {entry["func"].partition("(")[0] for entry in functions}
    for name in wheels:
        registered = told[name]["native"]
        missing = sorted(n for n in names if f"aten::{n}" not in registered)
        assert missing == [], name
    both = told["TORCHFORK_GRAFTED"]["native"].keys() & told["TORCHFORK_BUILT"]["native"].keys()
    changed = [
        name
        for name in sorted(both)
        if told["TORCHFORK_GRAFTED"]["native"][name] != told["TORCHFORK_BUILT"]["native"][name]
    ]
    assert changed == []


def test_generated_headers_of_our_operators_are_the_same_bytes(
    wheels: Mapping[str, Path],
) -> None:
    bases = {name.partition(".")[0] for name in _additions()}
    wanted = re.compile(rf"torch/include/ATen/ops/({'|'.join(sorted(bases))})(_\w+)?\.h")
    found: dict[str, dict[str, bytes]] = {}
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.namelist() if wanted.fullmatch(m)]
            found[name] = {m: archive.read(m) for m in members}
    grafted, built = found["TORCHFORK_GRAFTED"], found["TORCHFORK_BUILT"]
    cuda = {name for name in grafted.keys() ^ built.keys() if "_cuda_dispatch" in name}
    assert built and (grafted.keys() ^ built.keys()) == cuda  # a CPU build makes none for CUDA
    differing = [name for name in grafted.keys() & built.keys() if grafted[name] != built[name]]
    assert differing == []


def test_the_same_inputs_give_bitwise_equal_outputs(
    pythons: Mapping[str, Path], tmp_path: Path
) -> None:
    answers = {name: ask(python, "outputs.py", tmp_path) for name, python in pythons.items()}
    grafted, built = answers["TORCHFORK_GRAFTED"], answers["TORCHFORK_BUILT"]
    assert grafted.keys() == built.keys() and len(grafted) > 30
    differing = [name for name in grafted if grafted[name] != built[name]]
    assert differing == []
