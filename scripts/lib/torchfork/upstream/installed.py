"""The torch installed in an environment as a base.

The base's root is a tree of links in the cache, at a path that stays the same: each leads to the
file that the wheel brought, which `--develop` may have moved aside. So headers, libraries and YAML
are always upstream's, and compile commands do not change between runs.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.tags import parse_tag

from ..errors import BaseRefusedError, listed
from ..util import files
from .archives import Recorded, is_of_wheel, read_record
from .base import Base, Interpreter, ask, read_text, require_python_tag
from .pins import interpreter_tag
from .wheel import NEEDED, VERSION_FILE, Opening, check_commit, read_version_file

# Where the file is that the wheel brought under a name.
Original = Callable[[str], Path]
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
    """Where an environment's torch is."""

    site: Path  # the site-packages directory
    dist_info: str

    @property
    def record(self) -> Path:
        """The list of installed files."""
        return self.site / self.dist_info / "RECORD"


def locate(interpreter: Interpreter) -> Installation:
    """Find the torch that an interpreter would import."""
    answer = ask(interpreter.executable, _QUESTION)
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
    found: Installation, opening: Opening, original: Original, *, unpinned: bool
) -> Base:
    """Check the installed torch and say what it is, with everything as its wheel brought it.

    original: where each file of the wheel is, by its name: --develop may have moved it aside.
    unpinned: accept a torch whose commit no release pins.
    """
    listed = read_record(read_text(original(f"{found.dist_info}/RECORD")), str(found.record))
    record = {name: row for name, row in listed.items() if is_of_wheel(name)}
    _check_complete(found, record)
    version = read_version_file(read_text(original(VERSION_FILE)), str(found.site / VERSION_FILE))
    check_commit(found.site / "torch", version, opening.pins, unpinned)
    tag = _wheel_tag(read_text(original(f"{found.dist_info}/WHEEL")), found)
    wheel_for = min(interpreter_tag(one.interpreter, one.abi) for one in parse_tag(tag))
    require_python_tag(opening.interpreter, wheel_for, str(found.site / found.dist_info))
    _check_files(found, record, original)
    identity = record_identity(record)
    return Base(
        root=_linked_tree(found, record, original, identity, opening.cache),
        version=version.version,
        git_version=version.git_version,
        cuda=version.cuda,
        dist_info=found.dist_info,
        wheel_tag=tag,
        identity=identity,
        interpreter=opening.interpreter,
    )


def record_identity(record: Mapping[str, Recorded]) -> str:
    """One hash over what the wheel brought; what an installer adds does not count."""
    rows = sorted(
        f"{name},{row.hash}"
        for name, row in record.items()
        if ".dist-info/" not in name and row.hash
    )
    return files.sha256_text(*rows)


def _check_complete(found: Installation, record: Mapping[str, Recorded]) -> None:
    missing = [name for name in NEEDED if name not in record]
    if missing:
        raise BaseRefusedError(
            "the installed torch is not that of an official wheel",
            where=str(found.site / "torch"),
            why=f"its RECORD does not list {', '.join(missing)}",
            next="install an official wheel into this environment, or use --from-source",
        )


def _wheel_tag(text: str, found: Installation) -> str:
    tag = re.search(r"(?m)^Tag: *(\S+-\S+-\S+)", text)
    if not tag:
        where = str(found.site / found.dist_info / "WHEEL")
        raise BaseRefusedError("the installed torch names no wheel tag", where=where)
    return tag[1]


def _check_files(found: Installation, record: Mapping[str, Recorded], original: Original) -> None:
    """Compare the installed files with RECORD."""
    wrong = [
        name
        for name, row in record.items()
        if row.size and not _as_recorded(original(name), name, row)
    ]
    if wrong:
        raise BaseRefusedError(
            "files of the installed torch are not those that its wheel brought",
            where=str(found.site),
            why=listed(wrong),
            next="put them back: pip install --force-reinstall --no-deps torch==VERSION",
        )


def _as_recorded(path: Path, name: str, row: Recorded) -> bool:
    try:
        if str(path.stat().st_size) != row.size:
            return False
    except OSError:
        return False
    return not _CLOSELY.fullmatch(name) or row.matches(bytes.fromhex(files.sha256_file(path)))


def _linked_tree(
    found: Installation, record: Mapping[str, Recorded], original: Original, identity: str,
    cache: Path,
) -> Path:  # fmt: skip
    """Make or bring up to date the tree of links that stands for the wheel's own files."""
    tree = cache / "installed" / files.sha256_text(str(found.site))[:16]
    note = tree / ".identity"
    try:
        if not note.is_file() or note.read_text(encoding="utf-8") != identity:
            shutil.rmtree(tree, ignore_errors=True)
            for directory in {(tree / name).parent for name in record}:
                directory.mkdir(parents=True, exist_ok=True)
        for name in record:
            _link(original(name), tree / name)
        # A CUDA build finds its libraries beside torch/.
        if (found.site / "nvidia").is_dir():
            _link(found.site / "nvidia", tree / "nvidia")
    except OSError as error:
        raise files.output_error(tree, error) from error
    files.write_if_changed(note, identity)
    return tree


def _link(target: Path, link: Path) -> None:
    try:
        if str(link.readlink()) == str(target):
            return
        link.unlink()
    except FileNotFoundError:
        pass
    link.symlink_to(target)
