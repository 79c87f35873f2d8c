"""A static package index of wheels in a directory, which any web server or a file:// URL serves.

After PEP 503 (HTML), PEP 691 (JSON, for servers that choose a page by what a client accepts), and
PEP 658 and 714 (METADATA beside each wheel, so that a resolver reads a few kilobytes and not a
wheel).
"""

from __future__ import annotations

import html
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from packaging.metadata import parse_email
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from ..errors import BaseRefusedError, UsageError
from ..upstream import archives
from ..util import files

SIMPLE = "simple"
# The name of the index in uv's settings.
INDEX = "additions"


@dataclass(frozen=True)
class Entry:
    """One wheel of the index."""

    file: str
    project: str
    sha256: str
    metadata_sha256: str
    requires_python: str
    size: int


def make(directory: Path) -> list[Entry]:
    """Write the index of all wheels that lie in a directory; what is in it, by project and name.

    Adds DIR/simple/ and a METADATA file beside each wheel. Raises UsageError where there is no
    wheel, or a file that is not one.
    """
    wheels = sorted(directory.glob("*.whl"))
    if not wheels:
        raise UsageError(
            "there is no wheel to make an index of",
            where=str(directory),
            next="scripts/build_torch.sh and scripts/build_torch.sh --overlay make some",
        )
    entries = [_entry(wheel) for wheel in wheels]
    projects: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        projects[entry.project].append(entry)
    for project, members in projects.items():
        place = directory / SIMPLE / project
        files.write_text(place / "index.html", _page(project, members))
        files.write_text(place / "index.json", _json(_listing(project, members)))
    # Of wheels that are gone: a resolver would be sent to what is not there.
    pages = (directory / SIMPLE).glob("*/index.*")
    stale = [page for page in pages if page.parent.name not in projects]
    stale += [m for m in directory.glob("*.whl.metadata") if not m.with_suffix("").exists()]
    for path in stale:
        path.unlink()
    links = "".join(f'<a href="{name}/">{name}</a><br>\n' for name in sorted(projects))
    files.write_text(directory / SIMPLE / "index.html", _html("Simple index", links))
    listed = [{"name": name} for name in sorted(projects)]
    files.write_text(directory / SIMPLE / "index.json", _json({"projects": listed}))
    return entries


def constrain(wheel: Path, torch: str) -> tuple[Path, str]:
    """Keep what a later installation must not replace, for pip and for uv.

    torch: the version of the torch that the wheel goes beside; its own where it is torch.
    Writes DIR/NAME-VERSION.constraints.txt beside the wheel, which pip takes with --constraint.
    Returns its path, and what pyproject.toml needs for uv.
    """
    project, version, _, _ = parse_wheel_filename(wheel.name)
    pins = {"torch": torch, project: str(version)}
    lines = [f"{name}=={pinned}" for name, pinned in pins.items()]
    place = wheel.with_name("-".join(wheel.name.split("-")[:2]) + ".constraints.txt")
    files.write_text(place, "\n".join(lines) + "\n")
    needed = ", ".join(f'"{line}"' for line in lines)
    flat = f"[project]\ndependencies = [{needed}]\n\n{uv_sources([project], wheel.parent, 'flat')}"
    if project != "torch" and "+" in torch:
        flat += f"# and the index that has torch {torch}, where uv's default index lacks it\n"
    return place, flat


def uv_sources(projects: Iterable[str], index: Path, form: str = "simple") -> str:
    """Settings with which uv takes packages from an index and from nowhere else.

    Each must be a direct dependency: uv ignores the source of any other.
    form: "simple" as `make` writes it, "flat" for a directory of wheels.
    """
    sources = "\n".join(f'{name} = {{ index = "{INDEX}" }}' for name in projects)
    return (
        f"[tool.uv.sources]\n{sources}\n\n"
        f'[[tool.uv.index]]\nname = "{INDEX}"\nurl = "{index.absolute().as_uri()}"\n'
        f'format = "{form}"\nexplicit = true\n'
    )


def _entry(wheel: Path) -> Entry:
    try:
        project = canonicalize_name(parse_wheel_filename(wheel.name)[0])
        with archives.opened(wheel) as archive:
            name = f"{archives.dist_info_of(archive)}/METADATA"
            metadata = archives.read_member(archive, name).encode()
    except (InvalidWheelFilename, BaseRefusedError) as error:
        raise UsageError(
            "this file is no wheel",
            where=str(wheel),
            why=str(error),
            next="remove it, or give it the name that it was built with",
        ) from error
    beside = wheel.with_name(f"{wheel.name}.metadata")
    files.write_bytes(beside, metadata)
    required = parse_email(metadata)[0].get("requires_python", "")
    return Entry(
        wheel.name, project, files.sha256_file(wheel), files.sha256_file(beside), required,
        wheel.stat().st_size,
    )  # fmt: skip


def _page(project: str, entries: list[Entry]) -> str:
    lines = []
    for entry in entries:
        hashed = f"sha256={entry.metadata_sha256}"
        attributes = f' data-dist-info-metadata="{hashed}" data-core-metadata="{hashed}"'
        if entry.requires_python:
            attributes += f' data-requires-python="{html.escape(entry.requires_python)}"'
        link = f"../../{quote(entry.file)}#sha256={entry.sha256}"
        lines.append(f'<a href="{link}"{attributes}>{html.escape(entry.file)}</a><br>\n')
    return _html(f"Links for {project}", "".join(lines))


def _html(title: str, body: str) -> str:
    return (
        "<!DOCTYPE html>\n<html>\n<head>\n"
        '<meta name="pypi:repository-version" content="1.1">\n'
        f"<title>{title}</title>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _listing(project: str, entries: list[Entry]) -> dict[str, object]:
    listed = [
        {
            "filename": entry.file,
            "url": f"../../{quote(entry.file)}",
            "hashes": {"sha256": entry.sha256},
            "core-metadata": {"sha256": entry.metadata_sha256},
            "size": entry.size,
            **({"requires-python": entry.requires_python} if entry.requires_python else {}),
        }
        for entry in entries
    ]
    versions = sorted({str(parse_wheel_filename(entry.file)[1]) for entry in entries})
    return {"name": project, "versions": versions, "files": listed}


def _json(page: dict[str, object]) -> str:
    return json.dumps({"meta": {"api-version": "1.1"}, **page}, indent=1, sort_keys=True) + "\n"
