"""A torch wheel as a base: its name and version, checked against the pins, unpacked once.

Nothing of it is imported.
"""

from __future__ import annotations

import os
import re
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import InvalidWheelFilename
from packaging.version import InvalidVersion, Version

from ..errors import BaseRefusedError, HashMismatchError
from ..util import blocks, files, memo
from . import archives
from .base import Base, Interpreter, read_text, require_python_tag
from .pins import Release, Releases, WheelName, WheelPin

VERSION_FILE, VERSION_LIMIT = "torch/version.py", 64 << 10
NATIVE_FUNCTIONS = "torchgen/packaged/ATen/native/native_functions.yaml"
NEEDED = ("torch/lib/libtorch.so", NATIVE_FUNCTIONS)
_LIBRARY = re.compile(r"\.(so(\.\d+)*|dylib)$")
_GRAFTED = re.compile(r"(?:^|\.)ext\d+$")
# torch/version.py is generated: a line 'name = …' or 'name: Type = …' for each of its values.
_ASSIGNMENT = re.compile(
    r"^((__version__|git_version|cuda)\b[^=\n]*= *)(?:None|(['\"])([^'\"\n]*)\3) *(?:#.*)?$", re.M
)


def name_of(path: Path) -> WheelName:
    """Read a wheel's file name; refuse what is not a wheel that is there."""
    archives.require_file(path)
    try:
        return WheelName.parse(path.name)
    except InvalidWheelFilename as error:
        raise BaseRefusedError(
            "this is not named as a wheel is",
            where=str(path),
            why=str(error),
            next="keep the name that the wheel was downloaded with: its tags are read from it",
        ) from error


def parse_name(path: Path) -> WheelName:
    """The same of a torch wheel; refuse any other."""
    name = name_of(path)
    if name.project != "torch":
        raise BaseRefusedError(f"this is a wheel of {name.project}, not of torch", where=str(path))
    if "." in name.python:
        raise BaseRefusedError("a torch wheel is for one Python", where=str(path))
    return name


@dataclass(frozen=True)
class VersionFile:
    """What torch/version.py assigns."""

    version: str
    git_version: str
    cuda: str | None


def read_version_file(text: str, where: str) -> VersionFile:
    """Read torch/version.py without running it; `where` names the file in errors."""
    values = {found[2]: found[4] for found in _ASSIGNMENT.finditer(text)}
    version, commit = values.get("__version__"), values.get("git_version")
    if not version or not commit:
        raise _no_version_file(where, "it assigns no __version__ or no git_version")
    try:
        Version(version)
    except InvalidVersion as error:
        raise _no_version_file(where, str(error)) from error
    return VersionFile(version, commit, values.get("cuda"))


def is_grafted(version: str) -> bool:
    """Whether a version is that of a wheel that torchfork made."""
    return bool(_GRAFTED.search(version.partition("+")[2]))


def grafted_version(version: str, number: int) -> str:
    """The version of the nth graft onto a base: '2.13.0+cpu' gives '2.13.0+cpu.ext1'.

    A local part is the one place that may change: `torch==2.13.0` in the requirements of
    torchvision and others stays satisfied by it (PEP 440), which a .postN would break.
    """
    local = Version(version).local
    public = version.partition("+")[0]
    return f"{public}+{local}.ext{number}" if local else f"{public}+ext{number}"


def replace_version(text: str, version: str, where: str) -> str:
    """torch/version.py with another __version__ and nothing else changed."""
    found = [
        match for match in _ASSIGNMENT.finditer(text) if match[2] == "__version__" and match[3]
    ]
    if len(found) != 1:
        why = f"__version__ is assigned {len(found)} times where once is expected"
        raise _no_version_file(where, why)
    return f"{text[: found[0].start(4)]}{version}{text[found[0].end(4) :]}"


def _no_version_file(where: str, why: str) -> BaseRefusedError:
    return BaseRefusedError("this is not torch's version file", where=where, why=why)


@dataclass(frozen=True)
class Opening:
    """What every torch is opened with: for which Python, trusted by which pins, kept where."""

    interpreter: Interpreter
    pins: Releases
    cache: Path


def open_wheel(
    path: Path, opening: Opening, *, unpinned: bool = False, foreign: bool = False,
    progress: archives.Progress | None = None,
) -> Base:  # fmt: skip
    """Check a wheel file, unpack it into the cache unless it is there, and say what it is.

    unpinned: accept a wheel whose commit no release pins (nightlies, wheels of one's own).
    foreign: accept a wheel for another Python or machine; nothing of it can be run then.
    """
    interpreter, pins, cache = opening.interpreter, opening.pins, opening.cache
    name = parse_name(path)
    if not foreign:
        require_python_tag(interpreter, name.interpreter, str(path))
    sha256 = hashed(path, cache)
    root = cache / "unpacked" / sha256
    if root.is_dir():
        where = root / VERSION_FILE
        version = read_version_file(read_text(where), str(where))
        _check_pins(path, sha256, version, pins, unpinned)
    else:
        lock = cache / "locks" / f"unpack-{sha256[:16]}.lock"
        with archives.opened(path) as archive:
            version = _read_version(archive, path)
            _check_pins(path, sha256, version, pins, unpinned)
            with files.lock(lock, f"unpacking {path.name}", 900):
                if not root.is_dir():
                    archives.unpack_wheel(path, archive, root, progress)
    dist_info = min((path.name for path in root.glob("torch-*.dist-info")), default="")
    note = cache / "texts" / f"{sha256}.json"
    texts = memo.remember(note, sha256, str, lambda: _texts(root / dist_info / "RECORD"))
    return Base(
        root=root,
        version=version.version,
        git_version=version.git_version,
        cuda=version.cuda,
        dist_info=dist_info,
        texts=texts,
        headers=_headers(root, texts, cache),
        wheel_tag=name.tag,
        wheel=path.absolute(),
        identity=sha256,
        interpreter=_as_named_in(root, interpreter) if foreign else interpreter,
    )


def _texts(record: Path) -> str:
    """One hash over what a wheel's RECORD lists, without libraries and metadata."""
    rows = archives.read_record(read_text(record), str(record))
    return files.sha256_text(
        *sorted(
            f"{name},{row.hash}"
            for name, row in rows.items()
            if ".dist-info/" not in name and not _LIBRARY.search(name)
        )
    )


def _headers(root: Path, texts: str, cache: Path) -> Path:
    """A link to the headers, at a path that wheels with the same texts share.

    It leads to the first of them that was opened for as long as that is there: the times of its
    files are those that objects are compared with.
    """
    link, target = cache / "include" / texts[:16], root / "torch" / "include"
    if not link.is_dir():
        with files.scratch_directory(link) as scratch:
            made = scratch / link.name
            try:
                made.symlink_to(os.path.relpath(target, link.parent))
                made.replace(link)
            except OSError as error:
                raise files.output_error(link, error) from error
    return link


def _as_named_in(root: Path, interpreter: Interpreter) -> Interpreter:
    """The interpreter, with the suffix of extension modules that a wheel for another one has."""
    extension = min((path.name for path in (root / "torch").glob("_C.*so")), default="")
    if not extension:
        return interpreter
    return replace(interpreter, extension_suffix=extension.removeprefix("_C"))


def official(path: Path, releases: Releases, *, new_release: bool = False) -> Release:
    """The release that a wheel belongs to, with the wheel as its one pin.

    Its commit must be that of a pinned release; new_release accepts a release as the wheel names
    it, for a user who has compared the commit with upstream's tag.
    """
    name = parse_name(path)
    version = read_version(path)
    release = releases.by_commit(version.git_version)
    if is_grafted(name.version):
        raise _grafted(path, name.version)
    if release is None and not new_release:
        raise _unknown_commit(
            path,
            version,
            releases,
            "compare the commit with upstream's tag, then "
            f"run scripts/torchfork pin --new-release {path}",
        )
    number = release.version if release else name.version.partition("+")[0]
    pin = WheelPin(path.name, files.sha256_file(path))
    return Release(number, version.git_version, (pin,))


def read_version(path: Path) -> VersionFile:
    """What an official wheel's torch/version.py says. Refuses a wheel that torchfork made."""
    with archives.opened(path) as archive:
        return _read_version(archive, path)


def _read_version(archive: zipfile.ZipFile, path: Path) -> VersionFile:
    """The version of a complete wheel that carries no additions."""
    archives.dist_info_of(archive)
    needed = [name.replace(".so", ".dylib") if "macosx" in path.name else name for name in NEEDED]
    if missing := [name for name in needed if name not in archive.NameToInfo]:
        raise BaseRefusedError(
            "this torch wheel is incomplete",
            where=str(path),
            why=f"it lacks {', '.join(missing)}",
            next="give an official wheel, or build this tree with --from-source",
        )
    text = archives.read_member(archive, VERSION_FILE, VERSION_LIMIT)
    version = read_version_file(text, f"{path}: {VERSION_FILE}")
    # Whatever its version says: the YAML of a graft has the additions between markers.
    if is_grafted(version.version) or blocks.BEGIN in archives.read_member(
        archive, NATIVE_FUNCTIONS
    ):
        raise _grafted(path, version.version)
    return version


def hashed(path: Path, cache: Path) -> str:
    """The sha256 of a large file, which is read again only when it has changed."""
    state = path.stat()
    seen = f"{state.st_size} {state.st_mtime_ns} {state.st_ino} {state.st_ctime_ns}"
    note = cache / "hashes" / f"{files.sha256_text(str(path.absolute()))[:32]}.json"
    return memo.remember(note, seen, str, lambda: files.sha256_file(path))


def _check_pins(
    path: Path, sha256: str, version: VersionFile, releases: Releases, unpinned: bool
) -> None:
    """Trust a wheel by its bytes; else, as the user gave the file, by the commit it names."""
    pinned = releases.by_sha256(sha256)
    if pinned and pinned[0].commit != version.git_version:
        raise BaseRefusedError(
            f"the pins of {pinned[0].version} contradict the wheel",
            where=str(releases.path),
            why=f"pinned commit: {pinned[0].commit}\n"
            f"the wheel's git_version: {version.git_version}",
            next="compare the commit with upstream's tag and correct it in the pins",
        )
    expected = releases.by_file(path.name)
    if not pinned and not unpinned and expected:
        raise HashMismatchError(
            "this wheel is not the one that its name says",
            where=str(path),
            why=f"sha256 {sha256}\npinned {' or '.join(pin.sha256 for pin in expected)}",
            next="download it again; if it comes from an index that rebuilds wheels, check its "
            "commit and add it:\nscripts/torchfork pin " + str(path),
        )
    check_commit(path, version, releases, unpinned)


def check_commit(path: Path, version: VersionFile, releases: Releases, unpinned: bool) -> None:
    """Refuse a torch that carries additions already, or that no pinned release vouches for."""
    if is_grafted(version.version):
        raise _grafted(path, version.version)
    if releases.by_commit(version.git_version) is None and not unpinned:
        raise _unknown_commit(
            path,
            version,
            releases,
            "use a pinned release, or say --unpinned to graft onto this one all the same",
        )


def _grafted(path: Path, version: str) -> BaseRefusedError:
    return BaseRefusedError(
        f"this torch carries additions already (its version is {version})",
        where=str(path),
        next="use the official wheel that it was made from",
    )


def _unknown_commit(
    path: Path, version: VersionFile, releases: Releases, what_next: str
) -> BaseRefusedError:
    return BaseRefusedError(
        f"this torch ({version.version}) is built from a commit that no release pins",
        where=str(path),
        why=f"git_version {version.git_version}; pinned are {', '.join(releases.versions)}",
        next=what_next,
    )
