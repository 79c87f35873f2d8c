"""A tree of sources for tests: the sample of upstream, laid out as a checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

from sample_files import GIT, commit_all, git, lay

from torchfork.upstream.pins import Release, Releases
from torchfork.upstream.tree import PACKAGED, SourceTree, open_tree, record_provenance

__all__ = ["GIT", "git"]
SAMPLE = Path(__file__).resolve().parents[1] / "sample_upstream"
VERSION = "9.1.0"
NATIVE = "aten/src/ATen/native/native_functions.yaml"
CAPITAL = "aten/src/ATen/native/Capital.cpp"
_IN_SOURCE = {
    f"torch/include/{name}": name for name in ("torch/csrc", "torch/headeronly", "ATen", "c10")
}
_LEFT_OUT = {".md", ".so", ".pyc", ".a"}


def write(root: Path, upstream: Path = SAMPLE) -> None:
    """Lay the sample, or an unpacked wheel, out as a source tree; no provenance, no git."""
    for path in sorted(upstream.rglob("*")):
        if path.is_file() and path.suffix not in _LEFT_OUT:
            name = path.relative_to(upstream).as_posix()
            for theirs, ours in [*_IN_SOURCE.items(), *PACKAGED.items()]:
                if name == theirs or name.startswith(theirs + "/"):
                    name = ours + name.removeprefix(theirs)
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, root / name)
    texts = {
        "version.txt": f"{VERSION}a0\n",
        "setup.py": "import os\nMAX_JOBS = os.getenv('MAX_JOBS')\n",
        "pyproject.toml": '[build-system]\nbuild-backend = "setuptools.build_meta:__legacy__"\n',
        "CMakeLists.txt": 'option(USE_CUDA "Use CUDA" ON)\n',
        "torchgen/gen.py": "",
        "torch/csrc/autograd/init.cpp": "// of libtorch_python\n",
        NATIVE: "- func: relu(Tensor self) -> Tensor\n",
        "aten/src/ATen/native/tags.yaml": "- tag: core\n  desc: none\n",
        "aten/src/ATen/templates/RegisterSchema.cpp": "// a template\n",
        CAPITAL: "// a kernel of upstream's\n",
        "tools/autograd/derivatives.yaml": "- name: relu(Tensor self) -> Tensor\n  self: grad\n",
        "tools/autograd/deprecated.yaml": "",
        "tools/autograd/templates/Functions.h": "// a template\n",
    }
    lay(root, {name: text for name, text in texts.items() if not (root / name).exists()})


def repository(root: Path, submodule: Path | None = None) -> str:
    """A git repository of the sample tree, with a submodule if one is named; its commit."""
    write(root)
    if submodule:
        git(root, "init", "-q", "-b", "main")
        git(root, "submodule", "--quiet", "add", str(submodule), "third_party/part")
    return commit_all(root, "upstream")


def part(root: Path) -> str:
    """A repository that serves as a submodule; its commit."""
    return commit_all(lay(root, {"part.h": "#pragma once\n"}), "part")


def unpacked(root: Path) -> SourceTree:
    write(root)
    record_provenance(root, "c0ffee" * 6 + "abcd", "a test")
    return open_tree(root)


def pins(path: Path, commit: str) -> Releases:
    return Releases(path, VERSION, (Release(VERSION, commit, ()),))


def state(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of a tree but git's own: contents and mode."""
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mode)
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(root).parts
    }
