"""Runs a tree's code generator in a child process, and translates its errors."""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..additions.load import Additions
from ..additions.merge import MergedTree
from ..additions.yaml_file import Entry, YamlFile
from ..errors import AdditionsError, BaseRefusedError, DerivativeError, ForkError, InternalError
from ..upstream.base import Upstream
from ..util import memo, process
from ..util.files import DISK_FULL, output_error, read_json, write_json
from .model import FinishedOperator, Manifest

PACKAGE_PATH = Path(__file__).resolve().parents[2]
_LOCATION = re.compile(r"(native_functions|derivatives|deprecated)\.yaml:(\d+)")


class CodegenRefusal(Exception):
    """The generator refused its input; carries its report."""

    def __init__(self, report: dict[str, str]) -> None:
        super().__init__(report["message"])
        self.report = report


def run_driver(torchgen_home: Path, request: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Run one task of codegen.driver with the torchgen below torchgen_home.

    scratch receives the request, the answer and Python's bytecode (never the base's directory).
    """
    task = request["task"]
    question, answer = scratch / f"{task}.request.json", scratch / f"{task}.answer.json"
    answer.unlink(missing_ok=True)
    write_json(question, request)
    outcome = process.run(
        [sys.executable, "-m", "torchfork.codegen.driver", question, answer],
        env={
            "PYTHONPATH": f"{torchgen_home}:{PACKAGE_PATH}",
            "PYTHONPYCACHEPREFIX": str(scratch / "pycache"),
            "PYTHONHASHSEED": "0",
        },
        cwd=scratch,
        check=False,
        supervised=True,
    )
    reply = read_json(answer)
    if DISK_FULL in outcome.stderr or (isinstance(reply, dict) and _disk_is_full(reply)):
        raise output_error(scratch, OSError(errno.ENOSPC, DISK_FULL))
    if not isinstance(reply, dict):
        raise InternalError(
            f"the code generator ended with status {outcome.returncode} and no answer",
            where=outcome.command,
            why=outcome.stderr[-2000:],
            next="run the same command again; if it stays, report it with this text",
        )
    if "error" in reply:
        raise CodegenRefusal(reply["error"])
    return reply


def _disk_is_full(reply: dict[str, Any]) -> bool:
    error = reply.get("error", {})
    return error.get("type") == "OSError" and DISK_FULL in error["message"]


def regenerate_base(
    torchgen_home: Path, out: Path, scratch: Path, devices: Sequence[str] = ()
) -> Upstream:
    """Generate all headers of an unmodified base into `out`; say what the base has.

    devices: options of the generator's for devices that the base was built for ('mps').
    """
    request = {"task": "headers", "out": str(out), "devices": list(devices)}
    return _upstream(torchgen_home, request, scratch)


def list_operators(torchgen_home: Path, scratch: Path) -> Upstream:
    """What operators an unmodified tree has. Raises BaseRefusedError where its generator lacks
    something that the driver needs.
    """
    return _upstream(torchgen_home, {"task": "operators"}, scratch)


def _upstream(torchgen_home: Path, request: dict[str, Any], scratch: Path) -> Upstream:
    packaged = torchgen_home / "torchgen" / "packaged"
    request = {**request, "packaged": str(packaged)}
    try:
        reply = run_driver(torchgen_home, request, scratch)
    except CodegenRefusal as refusal:
        raise BaseRefusedError(
            "the base's own code generator fails on the base's own YAML",
            where=str(packaged),
            why=str(refusal),
            next="use an official wheel: scripts/build_torch.sh --torch VERSION",
            kind="code generator fails",
        ) from refusal
    if reply.get("missing"):
        raise BaseRefusedError(
            "this code generator has another interface than the driver expects",
            where=str(torchgen_home / "torchgen"),
            why="\n".join(reply["missing"]),
            next="adapt scripts/lib/torchfork/codegen/driver.py to what upstream has now",
            kind="code generator changed",
        )
    return Upstream(
        tuple(reply["schemas"]), frozenset(reply["tags"]), frozenset(reply["dispatch_keys"])
    )


def describe(
    tree: MergedTree, additions: Additions, base_schemas: Sequence[str], scratch: Path
) -> Manifest:
    """Have the generator parse the merged tree; the manifest of what the additions add."""
    request = {
        "task": "describe",
        "packaged": str(tree.packaged),
        "base_schemas": list(base_schemas),
        "formulas": formulas(additions),
        "deprecated": [entry.fields for entry in additions.deprecated.entries],
    }
    try:
        reply = run_driver(tree.root, request, scratch)
    except CodegenRefusal as refusal:
        raise translate(refusal, tree, additions) from refusal
    return memo.load(Manifest, reply["manifest"])


def formulas(additions: Additions) -> list[str]:
    """The schemas that derivatives_additions.yaml has an entry for."""
    return [entry.key for entry in additions.derivatives.entries]


def describe_finished(
    torchgen_home: Path, names: Sequence[str], formulas: Sequence[str], scratch: Path
) -> list[FinishedOperator]:
    """What a finished torch's generator says of operators by name; unknown names are left out.

    formulas: the schemas that have a derivative formula.
    """
    request = {
        "task": "finished",
        "packaged": str(torchgen_home / "torchgen" / "packaged"),
        "names": list(names),
        "formulas": list(formulas),
    }
    try:
        found = run_driver(torchgen_home, request, scratch)["operators"]
    except CodegenRefusal as refusal:
        raise BaseRefusedError(
            "this torch's code generator fails on its own YAML",
            where=str(torchgen_home),
            why=str(refusal),
            next="build it again: scripts/build_torch.sh",
        ) from refusal
    return memo.load(list[FinishedOperator], found)


def generate(
    tree: MergedTree,
    additions: Additions,
    manifest: Manifest,
    templates: Path,
    out: Path,
    scratch: Path,
) -> None:
    """Generate merged headers (out/all) and the added functions' sources (out/added, none)."""
    request = {
        "task": "sources",
        "packaged": str(tree.packaged),
        "templates": str(templates),
        "out": str(out),
        "added": [op.schema for op in manifest.operators],
    }
    try:
        run_driver(tree.root, request, scratch)
    except CodegenRefusal as refusal:
        raise translate(refusal, tree, additions) from refusal


def translate(refusal: CodegenRefusal, tree: MergedTree, additions: Additions) -> ForkError:
    """The generator's error as one that names the line of our file."""
    message = str(refusal)
    entry = _located(message, tree, additions) or _mentioned(message, additions)
    derivative = entry is not None and entry.file == additions.derivatives.path
    kind = DerivativeError if derivative else AdditionsError
    error = kind(
        f"PyTorch's code generator refuses '{entry.name}'"
        if entry
        else "PyTorch's code generator refuses the additions",
        where=entry.where() if entry else str(additions.native.path),
        why=_cause(message) or refusal.report["type"],
        next="correct the entry; scripts/torchfork check runs this test alone, in seconds",
    )
    error.__cause__ = RuntimeError(refusal.report.get("trace", ""))
    return error


def _cause(message: str) -> str:
    """The message itself, without the place in a merged file that may follow it."""
    location = _LOCATION.search(message)
    if location is None:
        return message.strip()
    before = message[: location.start()].rpartition("\n")[0] or message[: location.start()]
    return re.sub(r"\s*\bin \S*$", "", before).strip()


def _located(message: str, tree: MergedTree, additions: Additions) -> Entry | None:
    """The entry of ours whose place in a merged file the message names."""
    files = {"native_functions": "native", "derivatives": "derivatives", "deprecated": "deprecated"}
    for name, line in _LOCATION.findall(message):
        key = files[name]
        ours = tree.merged[key].our_line(int(line))
        yaml_file: YamlFile = getattr(additions, key)
        if ours is not None and (entry := yaml_file.entry_at(ours)):
            return entry
    return None


def _mentioned(message: str, additions: Additions) -> Entry | None:
    """The entry whose operator the message mentions by name, the longest name first."""
    yamls = (additions.derivatives, additions.native, additions.deprecated)
    entries = [entry for yaml_file in yamls for entry in yaml_file.entries]
    for entry in sorted(entries, key=lambda e: -len(e.name)):
        if re.search(rf"\b{re.escape(entry.name.split('.')[0])}\b", message):
            return entry
    return None
