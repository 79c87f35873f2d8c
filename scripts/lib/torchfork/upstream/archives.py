"""Unpacking archives of sources and Debian packages, without anything that leads out of them."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..errors import BaseRefusedError, ToolMissingError
from ..util import files, process


def unpack_tar(path: Path, target: Path, only: str = "") -> None:
    """Unpack a tar archive without its own top directory.

    only: the directory below the top one that is taken, instead of all.
    Raises BaseRefusedError for a damaged archive and for members that lead out of it.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(path) as archive:
            members = list(_members(archive, only))
            if not members:
                raise BaseRefusedError(
                    f"the archive has no directory {only}" if only else "the archive is empty",
                    where=str(path),
                )
            # What Python's own filter refuses, and all that this code relies on, in any version.
            options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(target, members, **options)  # type: ignore[arg-type]
    except (tarfile.TarError, EOFError) as error:
        raise BaseRefusedError(
            "this archive is damaged, or has a member that no archive of sources should have",
            where=str(path),
            why=str(error),
            next="fetch it again",
        ) from error
    except OSError as error:
        raise files.output_error(target, error) from error


def _members(archive: tarfile.TarFile, only: str) -> Iterator[tarfile.TarInfo]:
    """The members by their names below the archive's top directory."""
    for member in archive:
        parts = PurePosixPath(member.name).parts[1:]
        if only:
            parts = parts[1:] if parts[:1] == (only,) else ()
        if not parts:
            continue
        if ".." in parts or not (member.isreg() or member.isdir() or member.issym()):
            raise tarfile.TarError(f"{member.name}: leads out of the archive, or is no plain file")
        if member.issym() and (".." in _landing(parts, member.linkname)):
            raise tarfile.TarError(f"{member.name}: a link out of the archive")
        member.name = "/".join(parts)
        yield member


def _landing(parts: tuple[str, ...], link: str) -> tuple[str, ...]:
    """Where a link leads, from the top; '..' is left in it where it leads out."""
    if link.startswith("/"):
        return ("..",)
    landed = list(parts[:-1])
    for part in PurePosixPath(link).parts:
        if part == ".." and landed and landed[-1] != "..":
            landed.pop()
        else:
            landed.append(part)
    return tuple(landed)


def unpack_deb(path: Path, target: Path) -> None:
    """Unpack a Debian package; nothing is installed and none of its scripts run."""
    if not shutil.which("dpkg-deb"):
        raise ToolMissingError(
            "no dpkg-deb, which unpacks Debian's packages",
            where="PATH",
            next="apt-get install dpkg, or use another source: --source git, --source PATH",
        )
    target.mkdir(parents=True, exist_ok=True)
    outcome = process.run(["dpkg-deb", "--extract", path, target], check=False)
    if outcome.returncode and files.DISK_FULL in outcome.stderr:
        raise files.output_error(target, OSError(28, files.DISK_FULL))
    if outcome.returncode:
        raise BaseRefusedError(
            "this package is damaged",
            where=str(path),
            why=outcome.stderr.strip(),
            next="fetch it again",
        )
