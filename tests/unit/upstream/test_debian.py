"""Debian's pieces: pinned, fetched through a mirror, hashed before use, put together as a whole."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
import sample_tree as sample
from sample_files import lay, program

from torchfork.errors import (
    BaseRefusedError,
    DownloadError,
    HashMismatchError,
    UnknownReleaseError,
    UsageError,
)
from torchfork.upstream import archives, sources
from torchfork.upstream import tree as sourcetree
from torchfork.upstream.pins import Archive, DebianPins, debian_versions, load_debian
from torchfork.upstream.pins import load as load_releases
from torchfork.upstream.tree import SourceTree

FILE = "pool/main/p/pytorch/pytorch_9.1.0.orig.tar.gz"
PART = "pool/main/p/part/part_1.0.orig.tar.xz"


def quiet(*_: object) -> None:
    """Nobody looks."""


def tarball(path: Path, source: Path, top: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = "w:xz" if path.suffix == ".xz" else "w:gz"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        archive.add(source, top)


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    root = tmp_path / "mirror"
    sample.write(tmp_path / "upstream")
    tarball(root / FILE, tmp_path / "upstream", "pytorch-v9.1.0")
    lay(tmp_path / "part", {"sub/part.h": "#define VERSION 3\n", "other": "left out"})
    tarball(root / PART, tmp_path / "part", "part-1.0")
    return root


@pytest.fixture
def pins(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DebianPins:
    def source(file: str, more: str) -> str:
        data = (mirror / file).read_bytes()
        return (
            f'[[source]]\nfile = "{file}"\nsha256 = "{hashlib.sha256(data).hexdigest()}"\n'
            f"size = {len(data)}\n{more}\n"
        )

    text = (
        f'version = "9.1.0"\ncommit = "{"ab" * 20}"\nmachine = "x86_64"\n'
        + source(FILE, 'into = ""')
        + source(PART, 'into = "third_party/part"\nonly = "sub"')
        + '[[edit]]\nfile = "third_party/part/part.h"\nfind = "VERSION 3"\n'
        'replace = "VERSION 4"\nreason = "a test"\n'
        '[[directory]]\npath = "third_party/empty/deep"\n'
    )
    lay(tmp_path / "ci", {"debian-9.1.0.toml": text})
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    return load_debian("9.1.0", tmp_path / "ci")


def fetched(pins: DebianPins, mirror: Path, cache: Path) -> dict[Archive, Path]:
    environment = {sources.MIRROR: f"file://{mirror}"}
    return sources.fetch(pins, cache, environment, quiet)


def assembled(pins: DebianPins, mirror: Path, tmp_path: Path) -> SourceTree:
    pieces = fetched(pins, mirror, tmp_path / "c")
    return sources.assemble(pins, pieces, tmp_path / "trees", quiet).tree


def test_the_pieces_are_put_where_upstreams_submodules_would_lie(
    pins: DebianPins, mirror: Path, tmp_path: Path
) -> None:
    tree = assembled(pins, mirror, tmp_path)
    assert (tree.version, tree.commit, tree.is_git) == ("9.1.0", "ab" * 20, False)
    assert (tree.root / "third_party/part/part.h").read_text() == "#define VERSION 4\n"
    assert not (tree.root / "third_party/part/other").exists()
    assert (tree.root / "third_party/empty/deep").is_dir()
    assert sourcetree.hand_edits(tree, {}) == []
    (tree.root / "setup.py").write_text("edited")
    assert sourcetree.hand_edits(tree, {}) == ["setup.py"]
    shutil.rmtree(mirror)
    assert assembled(pins, mirror, tmp_path) == tree, "it is not fetched again"
    assert (tree.root / "setup.py").read_text() == "edited"


def test_another_file_than_the_pinned_one_is_refused_and_not_kept(
    pins: DebianPins, mirror: Path, tmp_path: Path
) -> None:
    (mirror / PART).write_bytes(b"something else")
    with pytest.raises(HashMismatchError, match=r"part_1\.0") as caught:
        fetched(pins, mirror, tmp_path / "c")
    assert re.search(r"sha256 \w{64}\npinned \w{64}", caught.value.why)
    kept = [path.name for path in (tmp_path / "c" / "sources").rglob("*") if path.is_file()]
    assert kept == ["pytorch_9.1.0.orig.tar.gz"]  # what came whole before it stays


def test_a_damaged_file_in_the_cache_is_fetched_again_and_never_unpacked(
    pins: DebianPins, mirror: Path, tmp_path: Path
) -> None:
    found = fetched(pins, mirror, tmp_path / "c")
    path = next(iter(found.values()))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BaseRefusedError, match="damaged"):
        archives.unpack_tar(path, tmp_path / "tree")
    assert fetched(pins, mirror, tmp_path / "c") == found
    assert path.stat().st_size > 200


def test_a_mirror_without_the_file_is_reported_with_the_other_sources(
    pins: DebianPins, mirror: Path, tmp_path: Path
) -> None:
    (mirror / FILE).unlink()
    with pytest.raises(DownloadError, match="no mirror gave") as caught:
        fetched(pins, mirror, tmp_path / "c")
    assert str(mirror) in caught.value.why
    assert sources.MIRROR in caught.value.next and "--source git" in caught.value.next


def test_an_edit_that_does_not_match_is_refused_and_leaves_no_tree(
    pins: DebianPins, mirror: Path, tmp_path: Path
) -> None:
    pins.path.write_text(pins.path.read_text().replace("VERSION 3", "VERSION 33"))
    with pytest.raises(BaseRefusedError, match="does not match"):
        assembled(load_debian("9.1.0", tmp_path / "ci"), mirror, tmp_path)
    assert [path for path in (tmp_path / "trees").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('into = "third_party/part"', 'into = "../part"'),
        ('file = "pool/main/p/part', 'file = "/etc/part'),
        ('file = "pool/main/p/part', 'file = "pool/../p/part'),
        ('path = "third_party/empty', 'path = "/third_party/empty'),
        ("size = ", "bytes = "),
    ],
)
def test_pins_that_lead_out_are_refused(
    pins: DebianPins, tmp_path: Path, old: str, new: str
) -> None:
    text = pins.path.read_text()
    assert old in text
    pins.path.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match="malformed"):
        load_debian("9.1.0", tmp_path / "ci")


def test_the_projects_own_pins_are_of_the_commits_of_its_releases() -> None:
    with pytest.raises(UnknownReleaseError, match=r"no torch 1\.0\.0") as caught:
        load_debian("1.0.0")
    assert debian_versions()[-1] in caught.value.why
    versions = debian_versions()
    assert versions
    for version in versions:
        own = load_debian(version)
        assert load_releases().get(version).commit == own.commit
        assert own.archives and own.requirements and own.options
        assert all("==" in requirement.name for requirement in own.requirements)


@pytest.mark.parametrize(
    ("name", "link", "good"),
    [
        ("top/../../out", None, False),
        ("top/link/../../../out", None, False),
        ("top/d/link", "../a", True),
        ("top/d/link", "../../../a", False),
        ("top/d/link", "/etc", False),
    ],
)
def test_nothing_may_lead_out_of_an_archive(
    tmp_path: Path, name: str, link: str | None, good: bool
) -> None:
    path, tree = tmp_path / "a.tar", tmp_path / "target" / "tree"
    member = tarfile.TarInfo(name)
    if link is not None:
        member.type, member.linkname = tarfile.SYMTYPE, link
    with tarfile.open(path, "w") as archive:
        archive.addfile(member)
    if good:
        archives.unpack_tar(path, tree)
        assert (tree / "d" / "link").is_symlink()
        return
    with pytest.raises(BaseRefusedError, match="damaged, or has a member"):
        archives.unpack_tar(path, tree)
    assert not (tmp_path / "out").exists() and not (tmp_path / "target" / "out").exists()


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="needs dpkg-deb")
def test_a_package_is_unpacked_and_its_programs_find_their_libraries(tmp_path: Path) -> None:
    package = tmp_path / "package"
    control = "Package: p\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: d\n"
    lay(package, {"DEBIAN/control": control, "usr/lib/machine/x": ""})
    program(package / "DEBIAN" / "postinst", f"touch {tmp_path / 'installed'}")
    program(package / "usr" / "bin" / "tool", 'echo "$LD_LIBRARY_PATH" "$1"')
    deb = tmp_path / "p.deb"
    subprocess.run(["dpkg-deb", "--build", package, deb], check=True, capture_output=True)
    prefix = tmp_path / "pre fix"
    archives.unpack_deb(deb, prefix)
    sources._wrap_programs(prefix)
    printed = subprocess.run(
        [prefix / "usr/bin/tool", "x"], check=True, capture_output=True, text=True
    ).stdout
    assert "lib/machine" in printed and printed.endswith("x\n")
    assert not (tmp_path / "installed").exists()
