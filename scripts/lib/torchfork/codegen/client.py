"""Runs a tree's code generator in a child process, translates its errors, and chooses what of its
output the graft compiles."""

from __future__ import annotations

import errno
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..additions.load import Additions
from ..additions.merge import MergedTree
from ..additions.yaml_file import Entry, YamlFile, words
from ..errors import (
    AdditionsError,
    BaseRefusedError,
    DerivativeError,
    ForkError,
    InternalError,
    KilledError,
    combined,
)
from ..upstream.base import Upstream
from ..util import memo, process
from ..util.files import (
    DISK_FULL,
    output_error,
    read_json,
    scratch_directory,
    write_if_changed,
    write_json,
)
from .model import FinishedOperator, Manifest
from .templates import GLUE_INCLUDE, SYMBOLIC_SOURCE

PACKAGE_PATH = Path(__file__).resolve().parents[2]
_LOCATION = re.compile(r"(native_functions|derivatives|deprecated)\.yaml:(\d+)")
# Enumerations and lists that libtorch has compiled in and that must keep its values; and files
# for builds of another kind.
NEVER = re.compile(
    r"^(ATenOpList|python_enum_tag|TensorMethods|Functions_hand|RedispatchFunctions|"
    r"RegisterCodegenUnboxedKernels|UnboxingFunctions|annotated_fn_args)"
)
_SHARD = re.compile(r"^(?P<stem>.*)_\d+$")
_CUDA_KEY = re.compile(r"^(Register\w*CUDA|Ufunc\w*CUDA)")
_OTHER_DEVICE = re.compile(r"^Register\w*(MPS|XPU|MTIA|HIP|VE|IPU|HPU|Vulkan|PrivateUse1)")
_AGAIN = "run the same command again; if it stays, report it with this text"
# What some of the generator's messages ask for, in words of the YAML. plain: the operator's name
# without the underscore at its end; functional: it, or with _functional where there was none.
_CURES = {
    "non-modifying function": "give it a functional form: by an entry, or, where it ends with _ or "
    "returns a tensor, by 'autogen: {functional}, {plain}.out'",
    "nondeterministic_seeded tag missing": "add 'tags: nondeterministic_seeded'",
    "dtype in tensor_options_args without output arg": "a function that makes a tensor and takes "
    "none has the parameters '*, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
    "bool? pin_memory=None'",
    "expects a line: 'autogen: '": "delete the line: entries declare the variants already",
}


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
    _surroundings(reply if isinstance(reply, dict) else {}, outcome, scratch)
    if not isinstance(reply, dict):
        raise InternalError(
            f"the code generator ended with status {outcome.returncode} and no answer",
            where=outcome.command,
            why=outcome.stderr[-2000:],
            next=_AGAIN,
        )
    if "error" in reply:
        raise CodegenRefusal(reply["error"])
    return reply


def _surroundings(reply: dict[str, Any], outcome: process.Outcome, scratch: Path) -> None:
    """Raise what the machine refused the generator, or any of its processes."""
    reports = [r for r in (reply.get("error"), *reply.get("refused", [])) if r]
    said = [r["message"] for r in reports if r["type"] == "OSError"]
    if any(DISK_FULL in text for text in (outcome.stderr, *said)):
        raise output_error(scratch, OSError(errno.ENOSPC, DISK_FULL))
    if outcome.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        reason = "by signal 9, which the kernel sends where memory runs out"
        reports.append({"type": "Killed", "message": reason})
    for report in reports:
        if report["type"] in ("MemoryError", "Killed", "Crashed"):
            crashed = report["type"] == "Crashed"
            raise KilledError(
                "PyTorch's code generator was killed",
                where=outcome.command,
                why=report["message"] or report["type"],
                next=_AGAIN if crashed else "free some memory, then run the same command again",
            )


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
    manifest = memo.load(Manifest, reply["manifest"])
    if errors := list(_not_generated(manifest, additions)):
        raise combined(errors)
    return manifest


def _not_generated(manifest: Manifest, additions: Additions) -> Iterator[AdditionsError]:
    """Names after autogen of which the generator makes nothing, and says nothing.

    Those of operators that are made of others do no harm: upstream's own have some.
    """
    known = {operator.qualified for operator in manifest.operators}
    composite = {op.qualified for op in manifest.operators if op.composite_implicit}
    for entry in additions.native.entries:
        if entry.name in composite:
            continue
        plain = entry.name.partition(".")[0].removesuffix("_")
        made = [op.qualified for op in manifest.operators if op.generated
                and op.base_name in {plain, f"{plain}_functional"}]  # fmt: skip
        for name in words(entry.fields.get("autogen", "")):
            if name not in known:
                yield AdditionsError(
                    f"the code generator makes no '{name}' of '{entry.name}'",
                    where=entry.where("autogen"),
                    why=f"under these names it makes {', '.join(made) or 'nothing'}",
                    next="correct the name, delete it, or declare the operator by an entry",
                )


def try_sources(
    tree: MergedTree,
    additions: Additions,
    manifest: Manifest,
    scratch: Path,
    symbolic_meta: Path | None = None,
) -> None:
    """Raise all that the generator refuses only when it makes the added functions' sources.

    symbolic_meta: gets the one file of them that a tree's own build does not make.
    """
    with scratch_directory(scratch / "trial") as out:
        request = {
            "task": "trial",
            "packaged": str(tree.packaged),
            "out": str(out),
            "added": [op.qualified for op in manifest.operators],
            "formulas": {
                entry.name: yaml.safe_dump([entry.fields], allow_unicode=True)
                for entry in additions.derivatives.entries
            },
        }
        refused = run_driver(tree.root, request, scratch)["refused"]
        if refused:
            raise combined([translate(CodegenRefusal(r), tree, additions) for r in refused])
        if symbolic_meta:
            write_if_changed(symbolic_meta, (out / "ATen" / SYMBOLIC_SOURCE).read_bytes())


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
    """Generate the headers that the additions change (out/all), and the added functions' sources
    (out/added, none) and headers (out/own).
    """
    as_base = not any(name.startswith("torchgen/") for name in tree.patched)
    request = {
        "task": "sources",
        "packaged": str(tree.packaged),
        "templates": str(templates),
        "out": str(out),
        "added": [op.qualified for op in manifest.operators],
        "base_names": sorted({op.base_name for op in manifest.operators}) if as_base else None,
    }
    try:
        run_driver(tree.root, request, scratch)
    except CodegenRefusal as refusal:
        raise translate(refusal, tree, additions) from refusal


def translate(refusal: CodegenRefusal, tree: MergedTree, additions: Additions) -> ForkError:
    """The generator's error as one that names the line of our file."""
    message = str(refusal)
    named = [e for e in additions.derivatives.entries if e.name == refusal.report.get("formula")]
    entry = next(iter(named), None) or (
        _located(message, tree, additions) or _mentioned(message, additions)
    )
    if entry and refusal.report.get("autograd"):  # says it of the declaration, by its place
        entry = next((e for e in additions.derivatives.entries if e.name == entry.name), entry)
    derivative = entry is not None and entry.file == additions.derivatives.path
    name = entry.name.partition(".")[0] if entry else ""
    plain = name.removesuffix("_")
    names = {"plain": plain, "functional": plain if plain != name else f"{name}_functional"}
    kind = DerivativeError if derivative else AdditionsError
    error = kind(
        f"PyTorch's code generator refuses '{entry.name}'"
        if entry
        else "PyTorch's code generator refuses the additions",
        where=entry.where() if entry else str(additions.native.path),
        why=_cause(message) or refusal.report["type"],
        next="; ".join([cure.format(**names) for text, cure in _CURES.items() if text in message])
        or "correct the entry; scripts/torchfork check runs this test alone, in seconds",
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


@dataclass(frozen=True)
class Generated:
    """A generated source that has something of ours in it."""

    name: str  # 'ATen/RegisterCPUEverything.cpp'
    python: bool  # belongs into torch/_C, the others into libtorch


def choose(generated: Path, sources: Path, *, cuda: bool) -> list[Generated]:
    """Adapt and copy every source that differs between "the added functions" and "none".

    Of files that are also generated in shards the unsharded one is taken: the additions are few.
    A file whose text stays the same keeps its mtime; files of an earlier choice are removed.
    """
    chosen: list[Generated] = []
    for path in sorted((generated / "added").rglob("*.c*")):
        relative = path.relative_to(generated / "added")
        if "aoti" in relative.parts or not _wanted(path, cuda):
            continue
        twin = generated / "none" / relative
        text = path.read_text(encoding="utf-8")
        if not (twin.is_file() and twin.read_text(encoding="utf-8") == text):
            target = sources / relative.parent.name / relative.name
            write_if_changed(target, adapt(relative.stem, text))
            python = relative.stem.startswith("python_") or "PythonBinding" in relative.stem
            chosen.append(Generated(f"{relative.parent.name}/{relative.name}", python))
    keep = {sources / item.name for item in chosen}
    for stale in [p for p in sources.rglob("*.c*") if p not in keep]:
        stale.unlink()
    return chosen


def _wanted(path: Path, cuda: bool) -> bool:
    if path.suffix not in {".cpp", ".cu"} or NEVER.match(path.stem):
        return False
    shard = _SHARD.match(path.stem)
    if shard and path.with_name(f"{shard['stem']}Everything{path.suffix}").exists():
        return False
    if path.stem == "Functions" and path.parent.name == "ATen":
        return False
    return (cuda or not _CUDA_KEY.match(path.stem)) and not _OTHER_DEVICE.match(path.stem)


def adapt(stem: str, text: str) -> str:
    """The text as a second library beside libtorch can hold it."""
    if stem == "RegisterSchema":
        # One TORCH_LIBRARY a namespace is allowed in a process, and libtorch has it.
        text = re.sub(r"\bTORCH_LIBRARY\(", "TORCH_LIBRARY_FRAGMENT(", text)
        text = re.sub(r"^.*m\.def\(\"get_gradients\(.*\n", "", text, flags=re.MULTILINE)
    if stem == "python_return_types":
        # Overloads beside an added one keep the type that they have: isinstance, pytrees and vmap
        # know only one type of a name.
        text = re.sub(
            r"(PyTypeObject\* get_(\w+)_structseq\(\) \{.*?return )(&\w+);",
            r'\1torchfork::return_type("\2", \3);',
            text,
            flags=re.DOTALL,
        )
    if stem == "ViewMetaClassesPythonBinding":
        text = (
            GLUE_INCLUDE
            + text
            + "\nstatic torchfork::Initializer torchfork_initializer(\n"
            + '    "_functionalization", &torch::functionalization::initGenerated, nullptr);\n'
        )
    return text
