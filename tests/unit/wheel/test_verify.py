"""The verification: passes a whole wheel, and names what differs in any other."""

from __future__ import annotations

import re
import shutil
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sample_wheel as sample
from sample_manifest import method, operator

from torchfork.codegen.model import Manifest
from torchfork.errors import DownloadError, VerificationError
from torchfork.upstream.base import Base
from torchfork.upstream.wheel import Opening, open_wheel
from torchfork.util import venv
from torchfork.wheel.pack import pack
from torchfork.wheel.verify import Report, verify

NEW = "9.1.0+cpu.ext1"
GDH = "aten::gdh(Tensor(a) self) -> Tensor(a)"
MANIFEST = Manifest(
    (
        operator(
            "gdh(Tensor(a) self) -> Tensor(a)",
            kind="view", view_of="self", composite_implicit=True, **method("gdh"),
        ),
    )
)  # fmt: skip
KERNELS = {"aten::gdh": ["CompositeImplicitAutograd"]}


@dataclass(frozen=True)
class Bench:
    """One base, one kept environment, many wheels."""

    root: Path
    base: Base

    def wheel(self, operators: str, **more: str) -> Path:
        overlay = self.root / "overlay"
        for name, text in {"torch/operators.json": operators, **more}.items():
            (overlay / name).parent.mkdir(parents=True, exist_ok=True)
            (overlay / name).write_text(text)
        return pack(self.base, overlay, NEW, self.root / "dist", 1_600_000_000)

    def verify(self, wheel: Path, manifest: Manifest = MANIFEST) -> Report:
        return verify(wheel, self.base, manifest, self.root / "work", self.root / "cache")

    def failure(self, operators: str, **more: str) -> VerificationError:
        with pytest.raises(VerificationError) as caught:
            self.verify(self.wheel(operators, **more))
        assert caught.value.exit_code == 40
        return caught.value


def whole(schemas: tuple[str, ...] = (sample.RELU, GDH), **changes: Any) -> str:
    """What a torch with gdh in it tells, unless changed."""
    told: dict[str, Any] = {"functions": ("gdh",), "methods": ("gdh",), "kernels": KERNELS}
    return sample.operators_file(list(schemas), **{**told, **changes})


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp("ü verify")
    wheel = sample.write_wheel(root / "base")
    pins = sample.releases(root / "releases.toml", wheel)
    base = open_wheel(wheel, Opening(sample.this_python(), pins, root / "cache"))
    return Bench(root, base)


@pytest.fixture(scope="module")
def template(kept: Bench) -> Path:
    """An environment as venv makes it; making one takes seconds, copying this one none."""
    root, neutral = kept.root / "template", kept.root / "neutral"
    neutral.mkdir()
    venv.make(root, kept.base.interpreter, neutral, "to verify the wheel in")
    return root


@pytest.fixture
def bench(kept: Bench, template: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    def make(root: Path, *arguments: object) -> None:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(template, root, symlinks=True)

    monkeypatch.setattr(venv, "make", make)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    return kept


def test_a_whole_wheel_passes_and_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A torch in the current directory, or on PYTHONPATH, must not be the one that is verified.
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    wheel = bench.wheel(whole())
    report = bench.verify(wheel)
    assert (report.wheel, report.version, report.added) == (wheel, NEW, ("aten::gdh",))
    assert report.upstream_operators == 1
    assert report.files == len(sample.contents())
    assert report.python.is_relative_to(bench.root)
    assert not list(bench.base.root.rglob("__pycache__")), "nothing is written beside the base"


def test_the_environment_is_kept_and_the_wheel_installed_anew(bench: Bench) -> None:
    first = bench.verify(bench.wheel(whole()))
    made = first.python.parent.parent.stat().st_ctime_ns
    marker = first.python.parent.parent / "kept"
    marker.write_text("")
    error = bench.failure(whole(methods=()))
    assert "Tensor.gdh" in error.why
    assert bench.verify(bench.wheel(whole())).python == first.python
    assert marker.exists() and made


def test_an_environment_of_a_killed_run_is_made_anew(bench: Bench) -> None:
    root = bench.verify(bench.wheel(whole())).python.parent.parent
    (root / ".whole").unlink()
    (root / "leaving").write_text("")
    bench.verify(bench.wheel(whole()))
    assert not (root / "leaving").exists()


STRAY = "aten::stray(Tensor self) -> Tensor"
OTHER = "aten::gdh(Tensor self) -> Tensor"
CHANGED = "aten::relu(Tensor self, int x=0) -> Tensor"


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (whole((OTHER, STRAY)), ["missing: aten::relu", f"not expected: {STRAY}",
                                 f"changed: {OTHER}\n    was: {GDH}"]),
        (whole((CHANGED, GDH)), [f"changed: {CHANGED}\n    was: {sample.RELU}"]),
        (whole(functions=(), methods=(), kernels={}),
         ["the function torch._C._VariableFunctions.gdh", "the method Tensor.gdh",
          "a kernel for CompositeImplicitAutograd"]),
    ],
)  # fmt: skip
def test_all_that_differs_is_named(bench: Bench, found: str, named: list[str]) -> None:
    why = bench.failure(found).why
    assert all(text in why for text in named)


def test_an_operator_with_a_formula_and_no_autograd_kernel_is_named(bench: Bench) -> None:
    changed = replace(MANIFEST.operators[0], composite_implicit=False, differentiable=True)
    wheel = bench.wheel(whole(kernels={"aten::gdh": ["CPU"]}))
    with pytest.raises(VerificationError) as caught:
        bench.verify(wheel, Manifest((changed,)))
    assert "aten::gdh lacks a kernel for Autograd" in caught.value.why


def test_a_wheel_that_does_not_import_shows_why(bench: Bench) -> None:
    error = bench.failure("{ not json")
    assert error.what == "the wheel cannot be imported"
    assert "JSONDecodeError" in error.why


def test_a_wheel_whose_versions_differ_is_refused(bench: Bench) -> None:
    init = bench.root / "overlay" / "torch" / "__init__.py"
    text = sample.contents()["torch/__init__.py"].decode() + "__version__ = '9.1.0+cpu'\n"
    try:
        error = bench.failure(whole(), **{"torch/__init__.py": text})
    finally:
        init.unlink()
    assert error.what == "the wheel's versions differ"
    assert "torch.__version__: 9.1.0+cpu" in error.why and f"METADATA: {NEW}" in error.why


def test_a_record_that_is_wrong_is_found(bench: Bench) -> None:
    wheel, name = bench.wheel(whole()), f"torch-{NEW}.dist-info/RECORD"
    with zipfile.ZipFile(wheel) as archive:
        files = {member: archive.read(member) for member in archive.namelist()}
    unlisted = sample.write_wheel(bench.root, {**files, "torch/more.py": b""}, version=NEW)
    with pytest.raises(VerificationError, match="RECORD does not list") as caught:
        bench.verify(unlisted)
    assert caught.value.why == "torch/more.py"
    row = re.compile(rb"(?<=^torch/overrides.py,sha256=)\w", re.MULTILINE)
    record = row.sub(lambda found: b"A" if found[0] != b"A" else b"B", files[name])
    wrong = sample.write_wheel(bench.root, {**files, name: record}, version=NEW)
    with pytest.raises(VerificationError, match="not those that RECORD lists") as caught:
        bench.verify(wrong)
    assert caught.value.why == "torch/overrides.py"


def test_dependencies_that_cannot_be_had_are_a_download_error(bench: Bench) -> None:
    files = sample.contents()
    name = "torch-9.1.0+cpu.dist-info/METADATA"
    head = files[name].decode().replace("Summary", "Requires-Dist: not-there-at-all\nSummary")
    files[name] = head.encode()
    wheel = sample.write_wheel(bench.root / "needy", sample.with_record(files))
    with pytest.raises(DownloadError, match="dependencies"):
        bench.verify(wheel)
