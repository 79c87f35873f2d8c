"""A wheel file as a base: trusted by its bytes or its commit, unpacked whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sys
import zipfile
from pathlib import Path

import pytest
import sample_wheel as sample
from hypothesis import given, settings
from hypothesis import strategies as st

from torchfork.errors import BaseRefusedError, HashMismatchError, OutputError, UsageError
from torchfork.upstream import wheel as module
from torchfork.upstream.base import Base, Interpreter
from torchfork.upstream.interpreter import probe
from torchfork.upstream.pins import Releases, WheelPin
from torchfork.util import files


@pytest.fixture(scope="module")
def interpreter() -> Interpreter:
    return probe(sys.executable, headers=False)


def opened(
    tmp_path: Path,
    interpreter: Interpreter,
    wheel: Path,
    pins: Releases | None = None,
    *,
    unpinned: bool = False,
    foreign: bool = False,
) -> Base:
    pins = pins or sample.releases(tmp_path / "releases.toml", wheel)
    cache = tmp_path / "cache"
    return module.open_wheel(wheel, interpreter, pins, cache, unpinned=unpinned, foreign=foreign)


def test_a_pinned_wheel_is_unpacked_and_described(tmp_path: Path, interpreter: Interpreter) -> None:
    wheel = sample.write_wheel(tmp_path / "ä b")
    base = opened(tmp_path, interpreter, wheel)
    assert (base.version, base.public_version) == ("9.1.0+cpu", "9.1.0")
    assert base.git_version == sample.COMMIT
    assert base.cuda is None
    assert base.dist_info == "torch-9.1.0+cpu.dist-info"
    assert base.wheel_tag == sample.TAG
    assert base.identity == sample.sha256(wheel)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            assert (base.root / name).read_bytes() == archive.read(name)


def test_a_second_opening_writes_nothing(tmp_path: Path, interpreter: Interpreter) -> None:
    wheel = sample.write_wheel(tmp_path)
    first = opened(tmp_path, interpreter, wheel)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*")}
    assert opened(tmp_path, interpreter, wheel) == first
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").rglob("*")} == before


def test_a_wheel_that_replaced_another_is_hashed_anew(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    wheel = sample.write_wheel(tmp_path)
    first = opened(tmp_path, interpreter, wheel)
    files = {**sample.contents(), "torch/more.py": b"more\n"}
    sample.write_wheel(tmp_path, sample.with_record(files))
    pins = sample.releases(tmp_path / "releases.toml", wheel)
    assert opened(tmp_path, interpreter, wheel, pins).identity != first.identity


def test_metadata_and_torch_may_name_different_local_versions(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    files = sample.with_record(sample.contents("9.1.0+cu130", metadata_version="9.1.0"))
    base = opened(tmp_path, interpreter, sample.write_wheel(tmp_path, files, version="9.1.0"))
    assert (base.version, base.dist_info) == ("9.1.0+cu130", "torch-9.1.0.dist-info")


def test_a_build_number_is_no_part_of_the_tag(tmp_path: Path, interpreter: Interpreter) -> None:
    wheel = sample.write_wheel(tmp_path, build="3")
    assert opened(tmp_path, interpreter, wheel).wheel_tag == sample.TAG


def test_other_bytes_under_a_pinned_name_are_refused(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    wheel = sample.write_wheel(tmp_path)
    pins = sample.releases(tmp_path / "releases.toml", wheel)
    files = {**sample.contents(), "torch/evil.py": b"evil\n"}
    sample.write_wheel(tmp_path, sample.with_record(files))
    with pytest.raises(HashMismatchError) as caught:
        opened(tmp_path, interpreter, wheel, pins)
    assert caught.value.exit_code == 22 and sample.sha256(wheel) in caught.value.why
    assert not (tmp_path / "cache" / "unpacked").exists()


def test_an_unknown_wheel_of_a_pinned_commit_is_accepted(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    pins = sample.releases(tmp_path / "releases.toml")
    assert opened(tmp_path, interpreter, sample.write_wheel(tmp_path), pins).version == "9.1.0+cpu"


def test_an_unknown_commit_needs_the_users_word(tmp_path: Path, interpreter: Interpreter) -> None:
    wheel = sample.write_wheel(tmp_path)
    pins = sample.releases(tmp_path / "releases.toml", commit=sample.OTHER_COMMIT)
    with pytest.raises(BaseRefusedError, match="no release pins") as caught:
        opened(tmp_path, interpreter, wheel, pins)
    assert sample.COMMIT in caught.value.why and "--unpinned" in caught.value.next
    assert opened(tmp_path, interpreter, wheel, pins, unpinned=True).git_version == sample.COMMIT


def test_pins_that_contradict_the_wheel_are_named(tmp_path: Path, interpreter: Interpreter) -> None:
    wheel = sample.write_wheel(tmp_path)
    pins = sample.releases(tmp_path / "releases.toml", wheel, commit=sample.OTHER_COMMIT)
    with pytest.raises(BaseRefusedError, match="contradict") as caught:
        opened(tmp_path, interpreter, wheel, pins)
    assert sample.COMMIT in caught.value.why and sample.OTHER_COMMIT in caught.value.why


def test_a_grafted_wheel_is_not_grafted_again(tmp_path: Path, interpreter: Interpreter) -> None:
    wheel = sample.write_wheel(tmp_path, version="9.1.0+cpu.ext1")
    with pytest.raises(BaseRefusedError, match="additions already"):
        opened(tmp_path, interpreter, wheel)


def test_another_python_is_refused_unless_nothing_is_to_be_run(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    wheel = sample.write_wheel(tmp_path, tag="cp39-cp39-macosx_11_0_arm64")
    with pytest.raises(BaseRefusedError, match=r"Python 3\.9"):
        opened(tmp_path, interpreter, wheel)
    files = {
        name.replace("libtorch.so", "libtorch.dylib"): data
        for name, data in sample.contents().items()
    }
    sample.write_wheel(tmp_path, sample.with_record(files), tag="cp39-cp39-macosx_11_0_arm64")
    assert opened(tmp_path, interpreter, wheel, foreign=True).wheel_tag.startswith("cp39")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_wheel_is_refused(
    tmp_path: Path, interpreter: Interpreter, share: float
) -> None:
    wheel = sample.write_wheel(tmp_path)
    wheel.write_bytes(wheel.read_bytes()[: int(wheel.stat().st_size * share)])
    with pytest.raises(BaseRefusedError, match="damaged or was not downloaded completely"):
        opened(tmp_path, interpreter, wheel)


def test_a_flipped_byte_leaves_nothing_unpacked(tmp_path: Path, interpreter: Interpreter) -> None:
    files = {**sample.contents(), "torch/data": bytes(range(256)) * 64}
    wheel = sample.write_wheel(tmp_path, sample.with_record(files))
    with zipfile.ZipFile(wheel) as archive:
        place = archive.getinfo("torch/data").header_offset + 60
    data = bytearray(wheel.read_bytes())
    data[place] ^= 0xFF
    wheel.write_bytes(bytes(data))
    with pytest.raises(BaseRefusedError, match="damaged"):
        opened(tmp_path, interpreter, wheel)
    assert list((tmp_path / "cache" / "unpacked").iterdir()) == []


def test_a_file_that_is_not_as_record_says_is_named(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    files = {**sample.with_record(sample.contents()), "torch/overrides.py": b"changed\n"}
    with pytest.raises(BaseRefusedError, match="RECORD") as caught:
        opened(tmp_path, interpreter, sample.write_wheel(tmp_path, files))
    assert caught.value.where.endswith("torch/overrides.py")


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py",
        "/evil.py",
        "torch/../../evil.py",
        "torch\\evil.py",
        "c:/evil.py",
        "",
        ".",
        "torch//evil.py",
        "torch/./evil.py",
        "torch/version.py/evil.py",
    ],
)
def test_members_that_lead_out_of_the_wheel_are_refused(
    tmp_path: Path, interpreter: Interpreter, name: str
) -> None:
    files = {**sample.with_record(sample.contents()), name: b"evil\n"}
    with pytest.raises(BaseRefusedError, match="no wheel should have"):
        opened(tmp_path, interpreter, sample.write_wheel(tmp_path, files))
    assert not list(tmp_path.rglob("evil.py"))


def test_links_in_a_wheel_are_refused(tmp_path: Path, interpreter: Interpreter) -> None:
    wheel = sample.write_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a") as archive:
        link = zipfile.ZipInfo("torch/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(BaseRefusedError) as caught:
        opened(tmp_path, interpreter, wheel)
    assert "link" in caught.value.why


def test_wheels_of_other_projects_and_other_files_are_refused(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    numpy = tmp_path / f"numpy-2.0.0-{sample.TAG}.whl"
    sample.write_wheel(tmp_path).rename(numpy)
    odd = tmp_path / "torch.whl"
    odd.write_bytes(b"")
    for path, word in (
        (numpy, "numpy, not of torch"),
        (odd, "not named as a wheel"),
        (tmp_path / "torch-1-cp311-cp311-x.whl", "no such wheel file"),
        (tmp_path, "not a file"),
    ):
        with pytest.raises(BaseRefusedError, match=word):
            opened(tmp_path, interpreter, path, sample.releases(tmp_path / "releases.toml"))


def test_a_wheel_without_the_stub_library_is_refused(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    files = sample.contents()
    del files["torch/lib/libtorch.so"]
    with pytest.raises(BaseRefusedError) as caught:
        opened(tmp_path, interpreter, sample.write_wheel(tmp_path, sample.with_record(files)))
    assert "torch/lib/libtorch.so" in caught.value.why


def test_a_cache_that_cannot_be_written_is_an_output_error(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    (tmp_path / "cache").write_text("a file where a directory should be")
    with pytest.raises(OutputError):
        opened(tmp_path, interpreter, sample.write_wheel(tmp_path))


def test_a_second_run_waits_for_the_first_and_is_told_who_it_is(
    tmp_path: Path, interpreter: Interpreter
) -> None:
    wheel = sample.write_wheel(tmp_path)
    pins = sample.releases(tmp_path / "releases.toml", wheel)
    guard = tmp_path / "cache" / "locks" / f"unpack-{sample.sha256(wheel)[:16]}.lock"
    holders: list[str] = []
    with contextlib.ExitStack() as first:
        first.enter_context(files.lock(guard, "unpacking it", holders.append, 1))

        def told(holder: str) -> None:
            holders.append(holder)
            first.close()

        base = module.open_wheel(wheel, interpreter, pins, tmp_path / "cache", on_wait=told)
    assert base.root.is_dir()
    assert holders == [f"process {os.getpid()} (unpacking it)"]


def test_pinning_a_wheel_checks_its_commit(tmp_path: Path) -> None:
    wheel = sample.write_wheel(tmp_path)
    pins = sample.releases(tmp_path / "releases.toml")
    release = module.official(wheel, pins)
    assert (release.version, release.commit) == ("9.1.0", sample.COMMIT)
    assert release.wheels == (WheelPin(wheel.name, sample.sha256(wheel)),)
    strange = sample.write_wheel(
        tmp_path, sample.with_record(sample.contents("9.2.0", commit=sample.OTHER_COMMIT)),
        version="9.2.0",
    )  # fmt: skip
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
def test_a_wheel_with_additions_is_not_pinned_as_official(
    tmp_path: Path, version: str, contents: dict[str, bytes]
) -> None:
    wheel = sample.write_wheel(tmp_path, sample.with_record(contents), version=version)
    with pytest.raises(BaseRefusedError, match="additions already"):
        module.official(wheel, sample.releases(tmp_path / "releases.toml"))


def hostile(tmp_path: Path, **changed: bytes) -> Path:
    """A wheel whose RECORD fits, with members that differ from the sample's."""
    contents = sample.contents()
    named = {name.replace("__", "/").replace("_py", ".py"): d for name, d in changed.items()}
    return sample.write_wheel(tmp_path, sample.with_record({**contents, **named}))


@pytest.mark.parametrize(
    "text",
    [
        b"x = " + b"(" * 10_000,
        b"x = " + b"-" * 50_000 + b"1",
        b"x = 1" + b"0" * 20_000,
        b"x = '\0'\n",
        b"\xff\xfe",
        b"# " + b"x" * (1 << 20),
        b"__version__ = '9'\n__version__ = None\ngit_version = 3\n",
        b"__version__ = 'nine'\ngit_version = 'x'\n",
    ],
    ids=["nested", "unary", "digits", "NUL", "not UTF-8", "large", "of other types", "no version"],
)
def test_a_version_file_that_is_none_is_refused(
    tmp_path: Path, interpreter: Interpreter, text: bytes
) -> None:
    wheel = hostile(tmp_path, torch__version_py=text)
    with pytest.raises(BaseRefusedError):
        opened(tmp_path, interpreter, wheel)


@pytest.mark.parametrize(
    "record", [b"torch/version.py,sha256=\xff,1\n", b'a,"' + b"x" * 200_000 + b'",1\n', b"a\0,,\n"]
)
def test_a_record_that_cannot_be_read_is_refused(
    tmp_path: Path, interpreter: Interpreter, record: bytes
) -> None:
    files = {**sample.contents(), "torch-9.1.0+cpu.dist-info/RECORD": record}
    with contextlib.suppress(BaseRefusedError):  # NUL is no error for every Python
        opened(tmp_path, interpreter, sample.write_wheel(tmp_path, files))
        assert b"\0" in record


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_compression_that_wheels_do_not_use_is_refused(
    tmp_path: Path, interpreter: Interpreter, method: int
) -> None:
    wheel = sample.write_wheel(tmp_path)
    with zipfile.ZipFile(wheel, "a", method) as archive:
        archive.writestr("torch/more.py", "x = 1\n" * 100)
    with pytest.raises(BaseRefusedError, match="no wheel should have") as caught:
        opened(tmp_path, interpreter, wheel)
    assert "compressed" in caught.value.why


def test_a_wheel_that_unpacks_to_too_much_is_refused_before_it_is_read(
    tmp_path: Path, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros deflate to a thousandth of their size."""
    monkeypatch.setattr("torchfork.upstream.archives.ALWAYS_ALLOWED", 1 << 20)
    files = {**sample.contents(), "torch/zeros": bytes(4 << 20)}
    wheel = sample.write_wheel(tmp_path, sample.with_record(files))
    with pytest.raises(BaseRefusedError, match="unpacks to too much"):
        opened(tmp_path, interpreter, wheel)


def test_pipes_and_devices_are_no_wheels(tmp_path: Path, interpreter: Interpreter) -> None:
    """They are refused unread: a pipe that nobody writes into, a device without an end."""
    name = sample.write_wheel(tmp_path / "w").name
    pipe, endless = tmp_path / "p" / name, tmp_path / "z" / name
    pipe.parent.mkdir()
    endless.parent.mkdir()
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    for path in (pipe, endless):
        with pytest.raises(BaseRefusedError, match="not a file"):
            opened(tmp_path, interpreter, path, sample.releases(tmp_path / "releases.toml"))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_damage_of_an_archive_is_an_internal_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    tmp_path = tmp_path_factory.mktemp("damaged")
    wheel = sample.write_wheel(tmp_path)
    raw = bytearray(wheel.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    wheel.write_bytes(raw)
    pins = sample.releases(tmp_path / "releases.toml")
    with contextlib.suppress(BaseRefusedError, UsageError):
        opened(tmp_path, probe(sys.executable, headers=False), wheel, pins)
