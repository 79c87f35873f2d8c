"""A tree of sources for tests: the sample of upstream, laid out as a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from torchfork.upstream.pins import Release, Releases
from torchfork.upstream.tree import PACKAGED, SourceTree, open_tree, record_provenance

SAMPLE = Path(__file__).resolve().parents[1] / "sample_upstream"
VERSION = "9.1.0"
NATIVE = "aten/src/ATen/native/native_functions.yaml"
CAPITAL = "aten/src/ATen/native/Capital.cpp"
_IN_SOURCE = {
    f"torch/include/{name}": name for name in ("torch/csrc", "torch/headeronly", "ATen", "c10")
}
_LEFT_OUT = {".md", ".so", ".pyc", ".a"}
# git's own settings of whoever runs the tests must not count.
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z",
}  # fmt: skip


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
    for name, text in texts.items():
        if not (root / name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)


def git(root: Path, *arguments: str) -> str:
    """Run git in a directory; its output."""
    command = ["git", "-C", str(root), "-c", "protocol.file.allow=always", *arguments]
    environment = {**os.environ, **GIT}
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout.strip()


def repository(root: Path, submodule: Path | None = None) -> str:
    """A git repository of the sample tree, with a submodule if one is named; its commit."""
    write(root)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    if submodule:
        git(root, "submodule", "--quiet", "add", str(submodule), "third_party/part")
    git(root, "commit", "-q", "-m", "upstream")
    return git(root, "rev-parse", "HEAD")


def part(root: Path) -> str:
    """A repository that serves as a submodule; its commit."""
    root.mkdir(parents=True)
    (root / "part.h").write_text("#pragma once\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "part")
    return git(root, "rev-parse", "HEAD")


def unpacked(root: Path, commit: str = "c0ffee" * 6 + "abcd") -> SourceTree:
    """The sample tree as torchfork unpacks one."""
    write(root)
    record_provenance(root, commit, "a test")
    return open_tree(root)


def pins(path: Path, commit: str) -> Releases:
    """Pins that know the sample tree's commit."""
    return Releases(path, VERSION, (Release(VERSION, commit, ()),))


def state(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file of a tree but git's own: contents and mode."""
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mode)
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(root).parts
    }
