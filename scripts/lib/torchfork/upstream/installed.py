"""The torch installed in an environment as a base.

The base's root is a tree of links in the cache, at a path that stays the same: each leads to the
file that the wheel brought, which `--develop` may have moved aside. So headers, libraries and YAML
are always upstream's, and compile commands do not change between runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BaseRefusedError
from ..state import installed_journal
from ..util import files, process
from . import versions
from .base import Base, Interpreter
from .interpreter import require_python_tag
from .pins import Releases
from .unpack import read_record, record_hash
from .wheel import VERSION_FILE, check_commit

# Read closely by everything that follows, so compared with RECORD byte for byte; of all the other
# files (700 MB) only the sizes are compared.
_CLOSELY = re.compile(r"torchgen/.*|torch/version\.py|torch/lib/libtorch\.so|torch/_C\.[^/]*\.so")

_QUESTION = """
import importlib.metadata, json
try:
    found = importlib.metadata.distribution("torch")
    print(json.dumps({"site": str(found.locate_file("")), "info": str(found._path)}))
except importlib.metadata.PackageNotFoundError:
    print("{}")
"""


@dataclass(frozen=True)
class Installation:
    """Where an environment's torch lies."""

    site: Path  # the site-packages directory
    dist_info: str

    @property
    def record(self) -> Path:
        """The list of installed files."""
        return self.site / self.dist_info / "RECORD"


def locate(interpreter: Interpreter) -> Installation:
    """Find the torch that an interpreter would import."""
    outcome = process.run([interpreter.executable, "-c", _QUESTION], cwd=Path(os.sep))
    answer = json.loads(outcome.stdout.strip().splitlines()[-1])
    if not answer:
        raise BaseRefusedError(
            "no torch is installed here",
            where=str(interpreter.executable),
            next=f"install one: {interpreter.executable} -m pip install torch\n"
            "or leave out --base installed, and the official wheel is fetched",
        )
    info = Path(answer["info"])
    found = Installation(Path(answer["site"]), info.name)
    if info.suffix != ".dist-info" or not found.record.is_file():
        raise BaseRefusedError(
            "this torch was not installed from a wheel",
            where=str(info),
            why="it has no .dist-info/RECORD that lists its files",
            next="install an official wheel into this environment, or use --from-source",
        )
    return found


def open_installed(
    interpreter: Interpreter, releases: Releases, cache: Path, *, unpinned: bool = False
) -> Base:
    """Check the installed torch and say what it is, with everything as its wheel brought it.

    unpinned: accept a torch whose commit no release pins.
    """
    found = locate(interpreter)
    changed = installed_journal.load(found.site)
    text = _read(found, f"{found.dist_info}/RECORD", changed)
    record = {name: row for name, row in read_record(text).items() if _of_wheel(name)}
    _check_complete(found, record)
    said = versions.read_version_file(
        _read(found, VERSION_FILE, changed), str(found.site / VERSION_FILE)
    )
    check_commit(found.site / "torch", said, releases, unpinned)
    tag = _wheel_tag(_read(found, f"{found.dist_info}/WHEEL", changed), found)
    require_python_tag(interpreter, tag.split("-")[0], str(found.site / found.dist_info))
    _check_files(found, record, changed)
    identity = record_identity(record)
    return Base(
        root=_linked_tree(found, record, changed, identity, cache),
        version=said.version,
        git_version=said.git_version,
        cuda=said.cuda,
        dist_info=found.dist_info,
        wheel_tag=tag,
        wheel=None,
        identity=identity,
        interpreter=interpreter,
    )


def record_identity(record: dict[str, tuple[str, str]]) -> str:
    """One hash over what the wheel brought; what an installer adds does not count."""
    rows = sorted(
        f"{name},{row[0]}" for name, row in record.items() if ".dist-info/" not in name and row[0]
    )
    return files.sha256_text(*rows)


def _of_wheel(name: str) -> bool:
    return not name.startswith(("/", "..")) and not name.endswith(".pyc")


def _read(found: Installation, name: str, changed: installed_journal.Journal | None) -> str:
    try:
        return installed_journal.as_installed(found.site, name, changed).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BaseRefusedError(
            "the installed torch is incomplete", where=str(found.site / name), why=str(error)
        ) from error


def _check_complete(found: Installation, record: dict[str, tuple[str, str]]) -> None:
    needed = ["torch/lib/libtorch.so", "torchgen/packaged/ATen/native/native_functions.yaml"]
    missing = [name for name in needed if name not in record]
    if missing:
        raise BaseRefusedError(
            "the installed torch is not that of an official wheel",
            where=str(found.site / "torch"),
            why=f"its RECORD does not list {', '.join(missing)}",
            next="install an official wheel into this environment, or use --from-source",
        )


def _wheel_tag(text: str, found: Installation) -> str:
    tag = re.search(r"(?m)^Tag: *(\S+)", text)
    if not tag:
        where = str(found.site / found.dist_info / "WHEEL")
        raise BaseRefusedError("the installed torch names no wheel tag", where=where)
    return tag[1]


def _check_files(
    found: Installation,
    record: dict[str, tuple[str, str]],
    changed: installed_journal.Journal | None,
) -> None:
    """Compare the installed files with RECORD."""
    wrong = [
        name
        for name, (expected, size) in record.items()
        if size
        and not _as_recorded(
            installed_journal.as_installed(found.site, name, changed), name, expected, int(size)
        )
    ]
    if wrong:
        shown = "\n".join(wrong[:10]) + (f"\nand {len(wrong) - 10} more" if len(wrong) > 10 else "")
        raise BaseRefusedError(
            "files of the installed torch are not those that its wheel brought",
            where=str(found.site),
            why=shown,
            next="put them back: pip install --force-reinstall --no-deps torch==VERSION",
        )


def _as_recorded(path: Path, name: str, expected: str, size: int) -> bool:
    try:
        if path.stat().st_size != size:
            return False
    except OSError:
        return False
    if not expected.startswith("sha256=") or not _CLOSELY.fullmatch(name):
        return True
    return record_hash(bytes.fromhex(files.sha256_file(path))) == expected.rstrip("=")


def _linked_tree(
    found: Installation,
    record: dict[str, tuple[str, str]],
    changed: installed_journal.Journal | None,
    identity: str,
    cache: Path,
) -> Path:
    """Make or bring up to date the tree of links that stands for the wheel's own files."""
    tree = cache / "installed" / files.sha256_text(str(found.site))[:16]
    note = tree / ".identity"
    try:
        if not note.is_file() or note.read_text(encoding="utf-8") != identity:
            shutil.rmtree(tree, ignore_errors=True)
            _make_directories(tree, record)
        for name in record:
            _link(installed_journal.as_installed(found.site, name, changed), tree / name)
        # A CUDA build finds its libraries beside torch/.
        if (found.site / "nvidia").is_dir():
            _link(found.site / "nvidia", tree / "nvidia")
    except OSError as error:
        raise files.output_error(tree, error) from error
    files.write_if_changed(note, identity)
    return tree


def _make_directories(tree: Path, names: Iterable[str]) -> None:
    for directory in {name.rpartition("/")[0] for name in names}:
        (tree / directory).mkdir(parents=True, exist_ok=True)


def _link(target: Path, link: Path) -> None:
    try:
        if str(link.readlink()) == str(target):
            return
        link.unlink()
    except FileNotFoundError:
        pass
    link.symlink_to(target)
