"""The directories of a build, all below one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BuildDir:
    """Where each step of a build reads and writes."""

    root: Path

    @property
    def build(self) -> Path:
        """Objects, libraries and build.ninja."""
        return self.root / "build"

    @property
    def overlay(self) -> Path:
        """What the wheel gets: a tree as site-packages has it, with changed and new files only."""
        return self.root / "overlay"

    @property
    def private(self) -> Path:
        """Generated headers that wheels leave out, as they would lie below torch/include."""
        return self.root / "private"

    @property
    def additions_include(self) -> Path:
        """Holds a link ATen to aten_src, so that <ATen/native/X.h> finds the additions' own."""
        return self.root / "include"

    @property
    def support(self) -> Path:
        """A copy of the hand-written C++ that every graft has."""
        return self.root / "support"

    @property
    def mirror(self) -> Path:
        """Of a source tree: its code generator as a wheel has it."""
        return self.root / "mirror"

    @property
    def tree(self) -> Path:
        """The merged copy of torchgen."""
        return self.root / "tree"

    @property
    def templates(self) -> Path:
        """The autograd templates of the graft."""
        return self.root / "templates"

    @property
    def generated(self) -> Path:
        """What the code generator made."""
        return self.root / "generated"

    @property
    def symbolic_meta(self) -> Path:
        """Of a source tree: the generated file of Meta kernels that know symbolic shapes."""
        return self.root / "symbolic_meta.cpp"

    @property
    def sources(self) -> Path:
        """The generated sources that are compiled, adapted."""
        return self.root / "sources"
