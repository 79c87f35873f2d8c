"""Additions written into a directory by a test, and a base that is just a directory."""

from __future__ import annotations

import sys
from pathlib import Path

from sample_files import lay

from torchfork.additions.load import Additions, load
from torchfork.additions.merge import MERGED_FILES
from torchfork.upstream.base import Base, Interpreter

NATIVE = """\
# two operators
- func: swing(Tensor self) -> Tensor
  variants: function, method
  dispatch:
    CPU: swing_cpu
  autogen: swing.out

- func: sway.more(Tensor self, int n=1) -> (Tensor left, Tensor right)
  dispatch:
    CompositeExplicitAutograd: sway
"""
DERIVATIVES = """\
- name: swing(Tensor self) -> Tensor
  self: grad * 2
"""


def write(root: Path, native: str = NATIVE, derivatives: str = "", **sources: str) -> Additions:
    """Additions with the given files; keyword `native__X_cpp` is aten_src/native/X.cpp."""
    files = {"native_functions_additions.yaml": native}
    if derivatives:
        files["derivatives_additions.yaml"] = derivatives
    for name, text in sources.items():
        stem, _, suffix = name.replace("__", "/").rpartition("_")
        files[f"aten_src/{stem}.{suffix}"] = text
    lay(root, files)
    return load(root)


def base(root: Path, *, version: str = "9.1.0+cpu", cuda: str | None = None) -> Base:
    """A base with nothing in it but the YAML files, whose entries are upstream's."""
    entry = "- func: relu(Tensor self) -> Tensor\n"
    lay(root, {name: f"# upstream's {key}\n{entry}" for key, name in MERGED_FILES.items()})
    interpreter = Interpreter(
        Path(sys.executable), "3.11.7", ".cpython-311-x86_64-linux-gnu.so",
        root / "python-include", root / "site",
    )  # fmt: skip
    return Base(
        root, version, "c0ffee" * 6 + "abcd", "0" * 64, interpreter, cuda,
        "torch-9.1.0.dist-info", "cp311-cp311-linux_x86_64",
    )  # fmt: skip
