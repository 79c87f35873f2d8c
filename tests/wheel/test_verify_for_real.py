"""The verification refuses broken wheels: real ones, each with one fault that builds can make."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from subject import Archive, Subject

from torchfork.codegen.model import Manifest
from torchfork.errors import VerificationError
from torchfork.upstream.base import Base
from torchfork.util import cache, memo
from torchfork.wheel import pack, verify


@dataclass(frozen=True)
class Bench:
    """One kept environment for all wheels."""

    root: Path
    wheel: Archive
    base: Base
    manifest: Manifest

    def verify(self, wheel: Path, manifest: Manifest | None = None) -> verify.Report:
        return verify.verify(
            wheel, self.base, manifest or self.manifest, self.root / "work", self.root / "cache"
        )

    def complaint(self, wheel: Path) -> str:
        with pytest.raises(VerificationError) as caught:
            self.verify(wheel)
        assert caught.value.exit_code == 40
        return str(caught.value)

    def without(self, overlay: Path, *names: str) -> Path:
        """The wheel of a build that forgot files of the overlay."""
        forgetful = self.root / "overlay"
        shutil.rmtree(forgetful, ignore_errors=True)
        shutil.copytree(overlay, forgetful)
        for name in names:
            (forgetful / name).unlink()
        out = self.root / "out"
        return pack.pack(self.base, forgetful, self.wheel.version, out, pack.DEFAULT_EPOCH)


@pytest.fixture(scope="module")
def bench(
    subject: Subject, base: Base, added: Manifest, tmp_path_factory: pytest.TempPathFactory
) -> Bench:
    """A cache of its own, into which the base's true operator set is copied where it is known."""
    root = tmp_path_factory.mktemp("verify")
    known = cache.directory() / "schemas"
    if known.is_dir():
        shutil.copytree(known, root / "cache" / "schemas")
    return Bench(root, subject.wheel, base, added)


def test_the_wheel_passes_and_a_changed_upstream_schema_is_named(bench: Bench) -> None:
    """Invariant 1, both ways: the base's list as it is, and with one schema of it edited."""
    report = bench.verify(bench.wheel.path)
    assert report.version == bench.wheel.version
    assert set(report.added) >= {"aten::" + op.name for op in bench.manifest.operators
                                 if not op.overload}  # fmt: skip
    note = bench.root / "cache" / "schemas" / f"{bench.base.identity}.json"
    key = bench.base.identity
    true = memo.recall(note, key, dict[str, str])
    assert true is not None and len(true) == report.upstream_operators > 1000
    relu = "aten::relu(Tensor self) -> Tensor"
    assert true["aten::relu"] == relu
    memo.keep(note, key, {**true, "aten::relu": relu.replace("self", "input")})
    try:
        said = bench.complaint(bench.wheel.path)
    finally:
        memo.keep(note, key, true)
    assert f"changed: {relu}" in said
    assert "was: aten::relu(Tensor input) -> Tensor" in said
    assert said.count("changed: ") == 1


def test_a_wheel_without_its_python_bindings_is_refused(bench: Bench, overlay: Path) -> None:
    """Its operators are registered, the function and the method are not there.

    Nor are the docstrings, which a patch gives to the functions on import.
    """
    forgotten = (str(bench.base.extension), "torch/_torch_docs.py", "torch/nn/functional.py")
    said = bench.complaint(bench.without(overlay, *forgotten))
    assert "gdh lacks" in said
    assert "torch._C._VariableFunctions.gdh" in said
    assert "Tensor.gdh" in said


def test_a_wheel_without_its_kernels_is_refused(bench: Bench, overlay: Path) -> None:
    """The bindings name symbols that only the replaced libtorch.so has."""
    said = bench.complaint(bench.without(overlay, "torch/lib/libtorch.so"))
    assert "cannot be imported" in said
    assert "undefined symbol" in said
