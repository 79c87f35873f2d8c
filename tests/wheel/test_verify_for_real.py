"""The verification refuses broken wheels: real ones, each with one fault that builds can make."""

from __future__ import annotations

import csv
import hashlib
import io
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from subject import Archive, Subject

from torchfork.codegen.model import Manifest
from torchfork.errors import VerificationError
from torchfork.upstream.archives import record_hash
from torchfork.upstream.base import Base
from torchfork.util import cache, memo
from torchfork.wheel import pack, verify

RECORD = "dist-info/RECORD"


def rewritten(wheel: Archive, directory: Path, changes: Mapping[str, bytes]) -> Path:
    """A copy of a wheel in which some members are others; RECORD is right unless changed too."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / wheel.path.name
    told = {wheel.members[name].filename: data for name, data in changes.items()}
    if RECORD not in changes:
        told[wheel.members[RECORD].filename] = recorded(wheel, told)
    with (
        wheel.path.open("rb") as source, target.open("wb") as stream,
        zipfile.ZipFile(stream, "w") as archive,
    ):  # fmt: skip
        writer = pack.Writer(archive, stream, 0)
        for member in wheel.members.values():
            if member.filename in told:
                writer.add(member.filename, 0o755, told[member.filename])
            else:
                writer.copy(member.filename, member.external_attr >> 16 & 0o777, source, member)
    return target


def recorded(wheel: Archive, told: Mapping[str, bytes]) -> bytes:
    """RECORD with the rows of changed members brought up to date."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for row in csv.reader(io.StringIO(wheel.text(RECORD))):
        if row[0] in told:
            data = told[row[0]]
            row = [row[0], record_hash(hashlib.sha256(data).digest()), str(len(data))]
        rows.writerow(row)
    return text.getvalue().encode()


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


def test_an_operator_that_nobody_declared_is_refused(bench: Bench) -> None:
    fewer = tuple(op for op in bench.manifest.operators if op.base_name != "gdh")
    with pytest.raises(VerificationError) as caught:
        bench.verify(bench.wheel.path, replace(bench.manifest, operators=fewer))
    assert "not expected: aten::gdh(Tensor(a) self) -> Tensor(a)" in str(caught.value)


@pytest.mark.parametrize("fault", ["hash", "missing row"])
def test_a_wheel_whose_record_lies_is_refused(bench: Bench, fault: str) -> None:
    name = bench.wheel.members["torch/overrides.py"].filename
    lines = bench.wheel.text(RECORD).splitlines()
    (number,) = [n for n, line in enumerate(lines) if line.startswith(f"{name},")]
    path, digest, size = lines[number].split(",")
    wrong = {
        "hash": f"{path},{digest[:-1]}{'A' if digest[-1] != 'A' else 'B'},{size}",
        "missing row": "",
    }[fault]
    lines[number] = wrong
    record = "\n".join(filter(None, lines)) + "\n"
    said = bench.complaint(rewritten(bench.wheel, bench.root / fault, {RECORD: record.encode()}))
    assert "RECORD" in said
    assert name in said


def test_a_wheel_that_says_two_versions_is_refused(bench: Bench) -> None:
    text = bench.wheel.text("torch/version.py")
    other = text.replace(bench.wheel.version, bench.wheel.version + "7").encode()
    said = bench.complaint(
        rewritten(bench.wheel, bench.root / "version", {"torch/version.py": other})
    )
    assert "versions differ" in said
    assert f"torch.__version__: {bench.wheel.version}7" in said
