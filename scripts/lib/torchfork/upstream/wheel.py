"""A wheel file as a base: checked against the pins, unpacked once, read without importing it."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from ..errors import BaseRefusedError, HashMismatchError
from ..util import files
from . import unpack, versions
from .base import Base, Interpreter
from .interpreter import require_python_tag
from .pins import Releases, WheelPin, add_pin

VERSION_FILE = "torch/version.py"


@dataclass(frozen=True)
class WheelName:
    """What a wheel's file name says; the build number is left out, it is no part of a base."""

    version: str
    python_tag: str
    tag: str  # 'cp311-cp311-manylinux_2_28_x86_64'


def open_wheel(
    path: Path,
    interpreter: Interpreter,
    releases: Releases,
    cache: Path,
    *,
    unpinned: bool = False,
    foreign: bool = False,
    progress: unpack.Progress | None = None,
    on_wait: unpack.OnWait = unpack.wait_silently,
) -> Base:
    """Check a wheel file, unpack it into the cache unless it is there, and say what it is.

    unpinned: accept a wheel whose commit no release pins (nightlies, wheels of one's own).
    foreign: accept a wheel for another Python or machine; nothing of it can be run then.
    """
    name = parse_name(path)
    if not foreign:
        require_python_tag(interpreter, name.python_tag, str(path))
    sha256 = hashed(path, cache)
    with unpack.opened(path) as archive:
        dist_info = _dist_info(archive, path)
        said = _version_file(archive, path)
        _check_pins(path, sha256, said, releases, unpinned)
    root = unpack.unpack_once(path, sha256, dist_info, cache, progress, on_wait)
    if foreign:
        interpreter = _as_named_in(root, interpreter)
    return Base(
        root=root,
        version=said.version,
        git_version=said.git_version,
        cuda=said.cuda,
        dist_info=dist_info,
        wheel_tag=name.tag,
        wheel=path.absolute(),
        identity=sha256,
        interpreter=interpreter,
    )


def _as_named_in(root: Path, interpreter: Interpreter) -> Interpreter:
    """The interpreter, with the suffix of extension modules that a wheel for another one has."""
    found = sorted(p.name for p in (root / "torch").glob("_C.*so"))
    return (
        replace(interpreter, extension_suffix=found[0].removeprefix("_C")) if found else interpreter
    )


def pin(path: Path, releases: Releases, *, new_release: bool = False) -> tuple[WheelPin, Releases]:
    """Add a wheel's sha256 to the pins once its commit has been checked.

    Its commit must be that of a pinned release; new_release adds a release as the wheel names it,
    which is for somebody who has compared the commit with upstream's tag.
    """
    name = parse_name(path)
    with unpack.opened(path) as archive:
        _dist_info(archive, path)
        said = _version_file(archive, path)
    release = releases.by_commit(said.git_version)
    if release is None and not new_release:
        raise _unknown_commit(
            path,
            said,
            releases,
            "compare the commit with upstream's tag, then "
            f"run scripts/torchfork pin --new-release {path}",
        )
    added = WheelPin(path.name, files.sha256_file(path))
    version = release.version if release else name.version.partition("+")[0]
    return added, add_pin(releases, version, said.git_version, added)


def read_version(path: Path) -> versions.VersionFile:
    """What a wheel's torch/version.py says."""
    with unpack.opened(path) as archive:
        _dist_info(archive, path)
        return _version_file(archive, path)


def parse_name(path: Path) -> WheelName:
    """Read a wheel's file name; refuse what is not a torch wheel that is there."""
    if not path.is_file():
        raise BaseRefusedError(
            "there is no such wheel file" if not path.exists() else "this is not a file",
            where=str(path),
            next="give the path of a .whl file, or a version with --torch",
        )
    try:
        project, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise BaseRefusedError(
            "this is not named as a wheel is",
            where=str(path),
            why=str(error),
            next="keep the name that the wheel was downloaded with: its tags are read from it",
        ) from error
    if project != "torch":
        raise BaseRefusedError(f"this is a wheel of {project}, not of torch", where=str(path))
    *_, python_tag, abi, platform_tag = path.name.removesuffix(".whl").split("-")
    if len(tags) != 1 and "." in python_tag:
        raise BaseRefusedError("a torch wheel is for one Python", where=str(path))
    return WheelName(str(version), python_tag, f"{python_tag}-{abi}-{platform_tag}")


def hashed(path: Path, cache: Path) -> str:
    """The sha256 of a large file; remembered, so that it is read once."""
    state = path.stat()
    key = files.sha256_text(str(path.absolute()))[:32]
    seen = [state.st_size, state.st_mtime_ns, state.st_ino, state.st_ctime_ns]
    note = cache / "hashes" / f"{key}.json"
    known = files.read_json(note)
    if isinstance(known, dict) and known.get("seen") == seen:
        return str(known["sha256"])
    sha256 = files.sha256_file(path)
    files.write_json(note, {"seen": seen, "sha256": sha256})
    return sha256


def _dist_info(archive: zipfile.ZipFile, path: Path) -> str:
    found = {
        name.split("/")[0]
        for name in archive.namelist()
        if name.count("/") == 1 and name.startswith("torch-") and name.endswith(".dist-info/RECORD")
    }
    needed = ["torch/lib/libtorch.so", "torchgen/packaged/ATen/native/native_functions.yaml"]
    if "macosx" in path.name:
        needed[0] = "torch/lib/libtorch.dylib"
    missing = [name for name in needed if name not in archive.NameToInfo]
    if len(found) == 1 and not missing:
        return found.pop()
    raise BaseRefusedError(
        "this is not a whole torch wheel",
        where=str(path),
        why=f"it lacks {', '.join(missing) or 'its .dist-info/RECORD'}",
        next="give an official wheel, or build this tree with --from-source",
    )


def _version_file(archive: zipfile.ZipFile, path: Path) -> versions.VersionFile:
    where = f"{path}: {VERSION_FILE}"
    try:
        text = archive.read(VERSION_FILE).decode()
    except (KeyError, UnicodeDecodeError) as error:
        raise BaseRefusedError("this is not a torch wheel", where=where, why=str(error)) from error
    return versions.read_version_file(text, where)


def _check_pins(
    path: Path, sha256: str, said: versions.VersionFile, releases: Releases, unpinned: bool
) -> None:
    """Trust a wheel by its bytes; else, as the user gave the file, by the commit it names."""
    pinned = releases.by_sha256(sha256)
    if pinned and pinned[0].commit != said.git_version:
        raise BaseRefusedError(
            f"the pins of {pinned[0].version} contradict the wheel",
            where=str(releases.path),
            why=f"pinned commit: {pinned[0].commit}\nthe wheel's git_version: {said.git_version}",
            next="compare the commit with upstream's tag and correct it in the pins",
        )
    if not pinned and not unpinned:
        check_name(path, sha256, releases)
    check_commit(path, said, releases, unpinned)


def check_commit(
    path: Path, said: versions.VersionFile, releases: Releases, unpinned: bool
) -> None:
    """Refuse a torch that carries additions already, or that no pinned release vouches for."""
    if versions.is_grafted(said.version):
        raise BaseRefusedError(
            f"this torch carries additions already (its version is {said.version})",
            where=str(path),
            next="graft onto the official wheel that it was made from",
        )
    if releases.by_commit(said.git_version) is None and not unpinned:
        raise _unknown_commit(
            path,
            said,
            releases,
            "use a pinned release, or say --unpinned to graft onto this one all the same",
        )


def check_name(path: Path, sha256: str, releases: Releases) -> None:
    """Refuse a file that bears a pinned wheel's name and has other bytes."""
    expected = releases.by_file(path.name)
    if expected and sha256 not in {pin.sha256 for pin in expected}:
        raise HashMismatchError(
            "this wheel is not the one that its name says",
            where=str(path),
            why=f"sha256 {sha256}\npinned {' or '.join(pin.sha256 for pin in expected)}",
            next="download it again; if it comes from an index that rebuilds wheels, check its "
            "commit and add it:\nscripts/torchfork pin " + str(path),
        )


def _unknown_commit(
    path: Path, said: versions.VersionFile, releases: Releases, what_next: str
) -> BaseRefusedError:
    return BaseRefusedError(
        f"this torch ({said.version}) is built from a commit that no release pins",
        where=str(path),
        why=f"git_version {said.git_version}; pinned are {', '.join(releases.versions)}",
        next=what_next,
    )
