"""Packing: unchanged members copied, the new version everywhere, the same bytes from anywhere."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import sample_wheel as sample
from sample_files import lay, snapshot

from torchfork.errors import BaseRefusedError, OutputError, UsageError
from torchfork.upstream.archives import read_record, record_hash
from torchfork.upstream.base import Base
from torchfork.upstream.wheel import Opening, open_wheel
from torchfork.wheel.pack import DEFAULT_EPOCH, LATEST, Writer, epoch_from, pack, wheel_name

NEW = "9.1.0+cpu.ext1"


def based(tmp_path: Path, files: dict[str, bytes] | None = None, **name: str) -> Base:
    wheel = sample.write_wheel(tmp_path / "base", files, **name)
    pins = sample.releases(tmp_path / "releases.toml", wheel)
    return open_wheel(wheel, Opening(sample.this_python(), pins, tmp_path / "cache"))


def overlaid(tmp_path: Path) -> Path:
    overlay = tmp_path / "overlay"
    lay(overlay, {
        "torch/lib/libtorch.so": "a library with operators\n" * 50,
        "torch/include/ATen/ops/gdh.h": "#pragma once\n", "torch/lib/new.so": "another",
    })  # fmt: skip
    return overlay


def packed(base: Base, overlay: Path) -> Path:
    return pack(base, overlay, NEW, overlay.parent / "dist", DEFAULT_EPOCH)


def read(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_new_wheel_is_the_base_and_the_overlay(tmp_path: Path) -> None:
    base, overlay = based(tmp_path), overlaid(tmp_path)
    made = packed(base, overlay)
    assert made.name == f"torch-{NEW}-{sample.TAG}.whl"
    found = read(made)
    info = f"torch-{NEW}.dist-info"
    expected = {
        name.replace("torch-9.1.0+cpu.dist-info", info): data
        for name, data in sample.contents().items()
    }
    expected |= snapshot(overlay)
    changed = {f"{info}/METADATA", "torch/version.py"}
    assert found.keys() == expected.keys() | {f"{info}/RECORD"}
    assert {name for name in expected if found[name] != expected[name]} == changed
    # they say the new version and differ in nothing else
    old, new = (f"Version: {version}\n".encode() for version in ("9.1.0+cpu", NEW))
    assert found[f"{info}/METADATA"] == expected[f"{info}/METADATA"].replace(old, new, 1)
    assert found["torch/version.py"].decode() == sample.version_file(NEW)


def test_a_cuda_wheel_whose_metadata_lacks_the_local_part_gets_one_version(tmp_path: Path) -> None:
    files = sample.with_record(sample.contents("9.1.0+cu130", metadata_version="9.1.0"))
    base = based(tmp_path, files, version="9.1.0")
    new = "9.1.0+cu130.ext1"
    found = read(pack(base, overlaid(tmp_path), new, tmp_path / "dist", DEFAULT_EPOCH))
    assert f"Version: {new}\n" in found[f"torch-{new}.dist-info/METADATA"].decode()
    assert f"__version__ = '{new}'" in found["torch/version.py"].decode()


def test_record_lists_every_file_also_one_that_the_bases_forgot(tmp_path: Path) -> None:
    files = {**sample.with_record(sample.contents()), "torch/forgotten.py": b"x\n"}
    found = read(packed(based(tmp_path, files), overlaid(tmp_path)))
    own = f"torch-{NEW}.dist-info/RECORD"
    record = read_record(found[own].decode())
    assert record.pop(own) == ("", "")
    found.pop(own)
    assert record == {
        name: (record_hash(hashlib.sha256(data).digest()), str(len(data)))
        for name, data in found.items()
    }


def test_a_build_number_goes_with_the_old_version(tmp_path: Path) -> None:
    files = sample.contents()
    files["torch-9.1.0+cpu.dist-info/WHEEL"] += b"Build: 3\n"
    base = based(tmp_path, sample.with_record(files), build="3")
    made = packed(base, overlaid(tmp_path))
    assert made.name == wheel_name(base, NEW) == f"torch-{NEW}-{sample.TAG}.whl"
    wheel = read(made)[f"torch-{NEW}.dist-info/WHEEL"].decode()
    assert wheel == sample.contents()["torch-9.1.0+cpu.dist-info/WHEEL"].decode()


def test_order_times_and_modes_are_normal(tmp_path: Path) -> None:
    made = pack(based(tmp_path), overlaid(tmp_path), NEW, tmp_path / "dist", 1_000_000_000)
    with zipfile.ZipFile(made) as archive:
        infos = archive.infolist()
    names = [info.filename for info in infos]
    main = [name for name in names if ".dist-info/" not in name]
    assert main == sorted(main) and names[: len(main)] == main
    assert names[-1].endswith("/RECORD")
    assert {info.date_time for info in infos} == {(2001, 9, 9, 1, 46, 40)}
    modes = {info.filename: info.external_attr >> 16 for info in infos}
    assert modes["torch/lib/libtorch.so"] == 0o100755
    assert modes["torch/__init__.py"] == 0o100644


def test_pip_installs_the_wheel_and_counts_it_as_the_release(tmp_path: Path) -> None:
    made = packed(based(tmp_path), overlaid(tmp_path))
    interpreter = sample.environment(tmp_path / "venv")

    def pip(*arguments: str) -> str:
        command = [sys.executable, "-m", "pip", "--python", str(interpreter.executable)]
        done = subprocess.run(
            [*command, *arguments, "--disable-pip-version-check"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout

    pip("install", "--no-index", "--no-deps", str(made))
    assert "already satisfied" in pip("install", "--no-index", "--no-deps", "torch==9.1.0")
    question = "import torch; from importlib.metadata import version as v\n"
    question += "print(torch.__version__, v('torch'))"
    command = [str(interpreter.executable), "-I", "-c", question]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == [NEW, NEW]


def test_an_output_that_cannot_be_written_and_a_lost_base_are_named(tmp_path: Path) -> None:
    base, overlay = based(tmp_path), overlaid(tmp_path)
    (tmp_path / "dist").write_text("a file where a directory should be")
    with pytest.raises(OutputError) as caught:
        packed(base, overlay)
    assert "--out" in caught.value.next and base.wheel is not None
    base.wheel.unlink()
    with pytest.raises(BaseRefusedError, match="changed or removed"):
        packed(base, overlay)


def test_source_date_epoch_is_honoured_and_checked() -> None:
    assert epoch_from({"SOURCE_DATE_EPOCH": "1700000000"}) == 1_700_000_000
    assert epoch_from({}) == epoch_from({"SOURCE_DATE_EPOCH": ""}) == DEFAULT_EPOCH
    assert epoch_from({"SOURCE_DATE_EPOCH": str(LATEST)}) == LATEST
    for text in ("yesterday", "-1", "1e9", "²", "9" * 5000, str(LATEST + 1), " 1"):
        with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
            epoch_from({"SOURCE_DATE_EPOCH": text})


@pytest.mark.parametrize(
    ("epoch", "date"), [(0, (1980, 1, 1, 0, 0, 0)), (LATEST, (2107, 12, 31, 23, 59, 58))]
)
def test_times_are_those_that_an_archive_can_have(epoch: int, date: tuple[int, ...]) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        Writer(made, stream, epoch).add("a", 0o644, b"")
    with zipfile.ZipFile(stream) as archive:
        assert archive.getinfo("a").date_time == date


# Sums of what the writer gave before it was built on the standard library's.
KNOWN = "0f3832f64f11311dd31709472a8ccf6051e1bcafe4c2268448026b70ee47fcd4"


def test_the_bytes_of_an_archive_are_those_of_earlier_versions() -> None:
    source = io.BytesIO()
    with zipfile.ZipFile(source, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("old", b"0123456789" * 50)
        member = archive.getinfo("old")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        writer = Writer(made, stream, DEFAULT_EPOCH)
        writer.add("stored", 0o644, b"x")
        writer.copy("copied", 0o755, source, member)
        writer.add("ä/name", 0o644, b"")
    assert hashlib.sha256(stream.getvalue()).hexdigest() == KNOWN


def test_large_sizes_are_written_as_zip64(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the limit lowered, every field goes through its 64-bit form."""
    source = io.BytesIO()
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("old", b"0123456789" * 50)
        member = archive.getinfo("old")
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 20)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        writer = Writer(made, stream, DEFAULT_EPOCH)
        writer.add("first", 0o644, os.urandom(100))
        writer.copy("copied", 0o755, source, member)
        writer.add("small", 0o644, b"x")
    with zipfile.ZipFile(stream) as archive:
        assert archive.testzip() is None
        assert archive.read("copied") == b"0123456789" * 50
        assert archive.getinfo("copied").extract_version == 45
