"""A wheel file as a base: trusted by its bytes or its commit, unpacked whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sample_wheel as sample
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from sample_files import eventually

from torchfork.errors import BaseRefusedError, HashMismatchError, OutputError
from torchfork.upstream import wheel as module
from torchfork.upstream.base import Base
from torchfork.upstream.pins import Releases, WheelPin
from torchfork.util import files


def opened(
    tmp_path: Path, wheel: Path, pins: Releases | None = None, *, unpinned: bool = False,
    foreign: bool = False,
) -> Base:  # fmt: skip
    pins = pins or sample.releases(tmp_path / "releases.toml", wheel)
    opening = module.Opening(sample.this_python(), pins, tmp_path / "cache")
    return module.open_wheel(wheel, opening, unpinned=unpinned, foreign=foreign)


def recorded(tmp_path: Path, changed: dict[str, bytes], **options: str) -> Path:
    """A wheel with other files than the sample's, whose RECORD fits; without those that are b''."""
    kept = {n: d for n, d in {**sample.contents(), **changed}.items() if d}
    return sample.write_wheel(tmp_path, sample.with_record(kept), **options)


def raw(tmp_path: Path, changed: dict[str, bytes]) -> Path:
    """A wheel with files that its RECORD knows nothing of."""
    return sample.write_wheel(tmp_path, {**sample.with_record(sample.contents()), **changed})


def refused(tmp_path: Path, wheel: Path, message: str) -> BaseRefusedError:
    with pytest.raises(BaseRefusedError, match=message) as caught:
        opened(tmp_path, wheel)
    return caught.value


def test_a_pinned_wheel_is_unpacked_and_described(tmp_path: Path) -> None:
    wheel = sample.write_wheel(tmp_path / "ä b", build="3")
    base = opened(tmp_path, wheel)
    assert (base.version, base.public_version) == ("9.1.0+cpu", "9.1.0")
    assert base.git_version == sample.COMMIT and base.cuda is None
    assert base.dist_info == "torch-9.1.0+cpu.dist-info"
    assert base.wheel_tag == sample.TAG, "without the build number"
    assert base.identity == sample.sha256(wheel)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            assert (base.root / name).read_bytes() == archive.read(name)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*")}
    assert opened(tmp_path, wheel) == base, "a second opening writes nothing"
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*")} == before


def test_wheels_that_differ_in_libraries_alone_share_headers_and_identity(tmp_path: Path) -> None:
    """As those of one release for several Pythons: what is compiled for one serves all."""
    first = opened(tmp_path, recorded(tmp_path, {}))
    second = opened(tmp_path, recorded(tmp_path, {"torch/lib/libtorch_cpu.so": b"another"}))
    assert second.root != first.root and second.identity != first.identity
    assert second.shared_identity == first.shared_identity and second.include == first.include
    assert second.include.resolve() == first.root / "torch" / "include"
    third = opened(tmp_path, recorded(tmp_path, {"torch/include/ATen/ops/relu.h": b"another"}))
    assert third.shared_identity != first.shared_identity and third.include != first.include


def test_headers_are_found_again_when_the_wheel_they_came_from_is_gone(tmp_path: Path) -> None:
    first = opened(tmp_path, recorded(tmp_path, {}))
    shutil.rmtree(first.root)
    second = opened(tmp_path, recorded(tmp_path, {"torch/lib/libtorch_cpu.so": b"another"}))
    assert second.include == first.include
    assert second.include.resolve() == second.root / "torch" / "include"


def test_metadata_and_torch_may_name_different_local_versions(tmp_path: Path) -> None:
    files = sample.with_record(sample.contents("9.1.0+cu130", metadata_version="9.1.0"))
    base = opened(tmp_path, sample.write_wheel(tmp_path, files, version="9.1.0"))
    assert (base.version, base.dist_info) == ("9.1.0+cu130", "torch-9.1.0.dist-info")
    other = recorded(tmp_path, {"torch/more.py": b"more\n"}, version="9.1.0")
    assert opened(tmp_path, other).identity != base.identity, "one that replaced it is hashed anew"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "cache").write_text("a file where a directory should be")
    with pytest.raises(OutputError):
        opened(tmp_path / "full", other)


def test_other_bytes_under_a_pinned_name_are_refused(tmp_path: Path) -> None:
    pins = sample.releases(tmp_path / "releases.toml", sample.write_wheel(tmp_path))
    wheel = recorded(tmp_path, {"torch/evil.py": b"evil\n"})
    with pytest.raises(HashMismatchError) as caught:
        opened(tmp_path, wheel, pins)
    assert caught.value.exit_code == 22 and sample.sha256(wheel) in caught.value.why
    assert not (tmp_path / "cache" / "unpacked").exists()


def test_an_unpinned_wheel_is_trusted_by_its_commit_or_the_users_word(tmp_path: Path) -> None:
    wheel = sample.write_wheel(tmp_path)
    assert opened(tmp_path, wheel, sample.releases(tmp_path / "a.toml")).version == "9.1.0+cpu"
    pins = sample.releases(tmp_path / "b.toml", commit=sample.OTHER_COMMIT)
    with pytest.raises(BaseRefusedError, match="no release pins") as caught:
        opened(tmp_path, wheel, pins)
    assert sample.COMMIT in caught.value.why and "--unpinned" in caught.value.next
    assert opened(tmp_path, wheel, pins, unpinned=True).git_version == sample.COMMIT
    contradicting = sample.releases(tmp_path / "c.toml", wheel, commit=sample.OTHER_COMMIT)
    with pytest.raises(BaseRefusedError, match="contradict") as caught:
        opened(tmp_path, wheel, contradicting)
    assert sample.COMMIT in caught.value.why and sample.OTHER_COMMIT in caught.value.why


def test_another_python_is_refused_unless_nothing_is_to_be_run(tmp_path: Path) -> None:
    library = sample.contents()["torch/lib/libtorch.so"]
    files = {"torch/lib/libtorch.so": b"", "torch/lib/libtorch.dylib": library}
    wheel = recorded(tmp_path, files, tag="cp39-cp39-macosx_11_0_arm64")
    refused(tmp_path, wheel, r"Python 3\.9")
    assert opened(tmp_path, wheel, foreign=True).wheel_tag.startswith("cp39")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_wheel_is_refused(tmp_path: Path, share: float) -> None:
    wheel = sample.write_wheel(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[: int(wheel.stat().st_size * share)])
    refused(tmp_path, wheel, "damaged or was not downloaded completely")


def test_a_flipped_byte_leaves_nothing_unpacked(tmp_path: Path) -> None:
    wheel = recorded(tmp_path, {"torch/data": bytes(range(256)) * 64})
    with zipfile.ZipFile(wheel) as archive:
        place = archive.getinfo("torch/data").header_offset + 60
    data = bytearray(wheel.read_bytes())
    data[place] ^= 0xFF
    wheel.write_bytes(bytes(data))
    refused(tmp_path, wheel, "damaged")
    assert list((tmp_path / "cache" / "unpacked").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["../evil.py", "/evil.py", "torch/../../evil.py", "torch\\evil.py", "c:/evil.py", "", ".",
     "torch//evil.py", "torch/./evil.py", "torch/version.py/evil.py"],
)  # fmt: skip
def test_members_that_lead_out_of_the_wheel_are_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path, raw(tmp_path, {name: b"evil\n"}), "no wheel should have")
    assert not list(tmp_path.rglob("evil.py"))


@pytest.mark.parametrize(
    ("mode", "method", "why"),
    [
        (0o120777, zipfile.ZIP_STORED, "link"),
        (0, zipfile.ZIP_LZMA, "compressed"),
        (0, zipfile.ZIP_BZIP2, "compressed"),
    ],
)
def test_odd_members_are_refused(tmp_path: Path, mode: int, method: int, why: str) -> None:
    wheel = sample.write_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        member = zipfile.ZipInfo("torch/more")
        member.external_attr, member.compress_type = mode << 16, method
        archive.writestr(member, "/etc/passwd" * 100)
    assert why in refused(tmp_path, wheel, "no wheel should have").why


def test_a_wheel_that_unpacks_to_too_much_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros deflate to a thousandth of their size."""
    monkeypatch.setattr("torchfork.upstream.archives.ALWAYS_ALLOWED", 1 << 20)
    refused(tmp_path, recorded(tmp_path, {"torch/zeros": bytes(4 << 20)}), "unpacks to too much")


def test_a_file_that_is_missing_or_not_as_record_says_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path, raw(tmp_path, {"torch/overrides.py": b"changed\n"}), "RECORD")
    assert error.where.endswith("torch/overrides.py")
    error = refused(tmp_path, recorded(tmp_path, {"torch/lib/libtorch.so": b""}), "incomplete")
    assert "torch/lib/libtorch.so" in error.why


@pytest.mark.parametrize(
    ("name", "make", "word"),
    [
        (f"numpy-2.0.0-{sample.TAG}.whl", Path.touch, "numpy, not of torch"),
        ("torch.whl", Path.touch, "not named as a wheel"),
        ("torch-1-cp311-cp311-x.whl", lambda path: None, "no such wheel file"),
        (f"torch-9.1.0-{sample.TAG}.whl", Path.mkdir, "not a file"),
        # refused unread: nobody writes into a pipe, and a device may have no end
        (f"torch-9.1.0-{sample.TAG}.whl", os.mkfifo, "not a file"),
        (f"torch-9.1.0-{sample.TAG}.whl", lambda path: path.symlink_to("/dev/zero"), "not a file"),
    ],
)
def test_what_is_no_torch_wheel_is_refused(
    tmp_path: Path, name: str, make: Callable[[Path], object], word: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(BaseRefusedError, match=word):
        opened(tmp_path, tmp_path / name, sample.releases(tmp_path / "releases.toml"))


def test_a_second_run_waits_for_the_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wheel = sample.write_wheel(tmp_path)
    guard = tmp_path / "cache" / "locks" / f"unpack-{sample.sha256(wheel)[:16]}.lock"
    with ThreadPoolExecutor(1) as pool, files.lock(guard, "unpacking it", 1):
        second = pool.submit(opened, tmp_path, wheel)
        assert eventually(lambda: caplog.messages)
        assert not second.done() and not (tmp_path / "cache" / "unpacked").exists()
    assert second.result().root.is_dir()


def test_pinning_a_wheel_checks_its_commit(tmp_path: Path) -> None:
    wheel = sample.write_wheel(tmp_path)
    pins = sample.releases(tmp_path / "releases.toml")
    release = module.official(wheel, pins)
    assert (release.version, release.commit) == ("9.1.0", sample.COMMIT)
    assert release.wheels == (WheelPin(wheel.name, sample.sha256(wheel)),)
    contents = sample.with_record(sample.contents("9.2.0", commit=sample.OTHER_COMMIT))
    strange = sample.write_wheel(tmp_path, contents, version="9.2.0")
    with pytest.raises(BaseRefusedError, match="no release pins") as caught:
        module.official(strange, pins)
    assert "--new-release" in caught.value.next
    assert module.official(strange, pins, new_release=True).version == "9.2.0"


MARKED = {**sample.contents(), module.NATIVE_FUNCTIONS: b"# torchfork:begin\n# torchfork:end\n"}


@pytest.mark.parametrize(
    ("version", "contents"),
    [
        ("9.1.0+cpu.ext1", sample.contents("9.1.0+cpu.ext1")),
        ("9.1.0+cpu", sample.contents("9.1.0+cpu.ext1")),
        ("9.1.0+ext2", sample.contents()),
        ("9.1.0+cpu", MARKED),
    ],
    ids=["all say so", "version.py says so", "the name says so", "the YAML has our markers"],
)
def test_a_wheel_with_additions_is_neither_pinned_nor_grafted_again(
    tmp_path: Path, version: str, contents: dict[str, bytes]
) -> None:
    wheel = sample.write_wheel(tmp_path, sample.with_record(contents), version=version)
    with pytest.raises(BaseRefusedError, match="additions already"):
        module.official(wheel, sample.releases(tmp_path / "releases.toml"))
    if version != "9.1.0+ext2":  # a base's version is what torch/version.py says
        refused(tmp_path, wheel, "additions already")


@pytest.mark.parametrize(
    "text",
    [
        b"x = '\0'\n", b"\xff\xfe", b"# " + b"x" * (1 << 20), b"def",
        b"__version__ = '9'\n__version__ = None\ngit_version = 3\n",
        b"__version__ = '2.0'\n", b"git_version = 'a'\n",
        b"__version__ = 'nine'\ngit_version = 'x'\n",
    ],
    ids=["NUL", "not UTF-8", "large", "other", "types", "no commit", "no version", "no number"],
)  # fmt: skip
def test_a_version_file_that_is_none_is_refused(tmp_path: Path, text: bytes) -> None:
    refused(tmp_path, recorded(tmp_path, {"torch/version.py": text}), "version file|a text in")


@pytest.mark.parametrize(
    "record", [b"torch/version.py,sha256=\xff,1\n", b'a,"' + b"x" * 200_000 + b'",1\n', b"a\0,,\n"]
)
def test_a_record_that_cannot_be_read_is_refused(tmp_path: Path, record: bytes) -> None:
    files = {**sample.contents(), "torch-9.1.0+cpu.dist-info/RECORD": record}
    with contextlib.suppress(BaseRefusedError):  # NUL is no error for every Python
        opened(tmp_path, sample.write_wheel(tmp_path, files))
        assert b"\0" in record


# Versions


@pytest.mark.parametrize(
    ("base", "grafted"),
    [
        ("2.13.0+cpu", "2.13.0+cpu.ext1"),
        ("2.13.0", "2.13.0+ext1"),
        ("2.16.0.dev20261101+cpu", "2.16.0.dev20261101+cpu.ext1"),
    ],
)
def test_a_graft_changes_the_local_part_alone(base: str, grafted: str) -> None:
    assert module.grafted_version(base, 1) == grafted == str(Version(grafted))
    assert Version(grafted) > Version(base)
    assert module.is_grafted(grafted) and not module.is_grafted(base)
    # so that the requirements of other packages stay satisfied, and it is no later release
    public = Version(base).public
    for requirement, met in ((f"=={public}", True), (f"<={public}", True), (f">{public}", False)):
        assert SpecifierSet(requirement).contains(grafted, prereleases=True) is met


def test_the_version_file_is_read_without_being_run_and_changed_in_one_line() -> None:
    text = sample.version_file("2.13.0+cu130", cuda="13.0") + "raise SystemExit\n"
    read = module.read_version_file(text, "version.py")
    assert (read.version, read.git_version, read.cuda) == ("2.13.0+cu130", sample.COMMIT, "13.0")
    after = module.replace_version(text, "2.13.0+cu130.ext1", "version.py")
    changed = [(a, b) for a, b in zip(text.split("\n"), after.split("\n"), strict=True) if a != b]
    assert changed == [("__version__ = '2.13.0+cu130'", "__version__ = '2.13.0+cu130.ext1'")]
    with pytest.raises(BaseRefusedError, match="2 times"):
        module.replace_version("__version__ = '1'\n__version__ = '2'\n", "3", "version.py")
