"""The environment of a source build: the user's own values win, and each value says its origin."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import sample_tree as sample

from torchfork.native import toolchain
from torchfork.pipelines import settings
from torchfork.pipelines.settings import Setting
from torchfork.upstream.tree import SourceTree


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    return sample.unpacked(tmp_path / "tree")


def resolve(
    tree: SourceTree, environment: dict[str, str], source: tuple[Setting, ...] = ()
) -> dict[str, Setting]:
    chosen = settings.defaults(
        tree, version="9.1.0+ext1", prefixes=[Path("/env"), Path("/more")],
        environment={"PATH": "/nowhere", "CUDA_HOME": "/nowhere", **environment},
        source=source, epoch=1_600_000_000,
    )  # fmt: skip
    assert len({setting.name for setting in chosen}) == len(chosen)
    return {setting.name: setting for setting in chosen}


def test_everything_that_users_know_is_set_with_its_origin(tree: SourceTree) -> None:
    chosen = resolve(tree, {})
    for name in ("USE_CUDA", "GEN_TO_SOURCE", "CMAKE_PREFIX_PATH", "MAX_JOBS", "BLAS",
                 "PYTORCH_BUILD_VERSION", "PYTORCH_BUILD_NUMBER", "SOURCE_DATE_EPOCH"):  # fmt: skip
        assert chosen[name].value and chosen[name].reason and chosen[name].origin != "user"
    assert chosen["USE_CUDA"].value == "0"
    assert chosen["PYTORCH_BUILD_VERSION"].value == "9.1.0+ext1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("USE_CUDA", "1"), ("GEN_TO_SOURCE", "0"), ("MAX_JOBS", "7"), ("BLAS", "OpenBLAS"),
        ("SOURCE_DATE_EPOCH", "1"), ("PYTORCH_BUILD_VERSION", "9"), ("USE_MKLDNN", "ON"),
        ("TORCH_CUDA_ARCH_LIST", "9.0"), ("CMAKE_CXX_COMPILER_LAUNCHER", "icecc"),
        ("CXX", "g++-13"),
    ],
)  # fmt: skip
def test_a_users_own_value_wins(tree: SourceTree, name: str, value: str) -> None:
    needs = (Setting("USE_MKLDNN", "0", "source", "it lacks ideep"),)
    chosen = resolve(tree, {name: value}, needs)[name]
    assert (chosen.value, chosen.origin) == (value, "user")


def test_the_users_prefixes_come_first_and_what_the_source_lacks_is_off(tree: SourceTree) -> None:
    chosen = resolve(tree, {"CMAKE_PREFIX_PATH": "/mine:/other;/third"})["CMAKE_PREFIX_PATH"]
    assert chosen.value == "/mine;/other;/third;/env;/more" and chosen.origin == "user"
    chosen = resolve(tree, {}, (Setting("USE_CUDA", "0", "source", "no cutlass"),))["USE_CUDA"]
    assert (chosen.value, chosen.origin, chosen.reason) == ("0", "source", "no cutlass")


def test_each_variable_is_looked_up_in_the_tree(tree: SourceTree) -> None:
    chosen = resolve(tree, {"USE_NOTHING": "1"})
    assert chosen["USE_CUDA"].read_by == "CMakeLists.txt:1"
    assert chosen["MAX_JOBS"].read_by == "setup.py:2"
    assert chosen["CMAKE_PREFIX_PATH"].read_by == "cmake"
    assert chosen["GEN_TO_SOURCE"].read_by == "" and chosen["USE_NOTHING"].read_by == ""
    (tree.root / "tools" / "gen.py").write_text("import os\n\nos.getenv('GEN_TO_SOURCE')\n")
    assert resolve(tree, {})["GEN_TO_SOURCE"].read_by == "tools/gen.py:3"


@pytest.mark.parametrize(
    ("gigabytes", "cuda", "jobs"), [(64.0, "0", 2), (4.0, "0", 1), (9.0, "1", 1), (0.5, "0", 1)]
)
def test_jobs_follow_from_cores_and_memory(
    tree: SourceTree, monkeypatch: pytest.MonkeyPatch, gigabytes: float, cuda: str, jobs: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(toolchain, "available_memory", lambda: int(gigabytes * 1e9))
    assert resolve(tree, {"USE_CUDA": cuda})["MAX_JOBS"].value == str(jobs)


def test_a_compiler_cache_that_is_there_is_used_and_made_to_forget_paths(
    tree: SourceTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "find_launcher", lambda env: "/usr/bin/ccache")
    chosen = resolve(tree, {"USE_CUDA": "1"})
    for language in ("C", "CXX", "CUDA"):
        assert chosen[f"CMAKE_{language}_COMPILER_LAUNCHER"].value == "/usr/bin/ccache"
    assert chosen["CCACHE_BASEDIR"].value == str(tree.root.parent)
    beside = settings.defaults(
        tree, version=None, prefixes=[tree.root.parent / "env"], environment={"PATH": ""},
        source=(), epoch=0,
    )  # fmt: skip
    assert {s.name: s.value for s in beside}["CCACHE_BASEDIR"] == str(tree.root.parent)
    monkeypatch.setattr(toolchain, "find_launcher", lambda env: "")
    assert "CCACHE_BASEDIR" not in resolve(tree, {})


def test_a_shell_reads_the_lines_as_they_were_meant(tree: SourceTree) -> None:
    value = "a b;$HOME 'c'\\"
    line = Setting("X_Y", value, "user", "").line
    chosen = subprocess.run(
        ["sh", "-c", f'{line}; printf %s "$X_Y"'], check=True, capture_output=True, text=True
    ).stdout
    assert chosen == value and shlex.split(line)[0] == "export"
