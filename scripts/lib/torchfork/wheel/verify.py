"""Verify a finished wheel in a clean environment, from a neutral directory.

The base's own operator set is asked from the base, once, and kept under its identity.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from ..codegen.model import Manifest
from ..errors import UsageError, VerificationError, listed
from ..upstream import archives
from ..upstream.archives import Recorded
from ..upstream.base import Base
from ..upstream.pins import WheelName
from ..util import files, memo, process, venv

_PROBE = Path(__file__).with_name("probe.py")


@dataclass(frozen=True)
class Report:
    """What was verified."""

    wheel: Path
    version: str
    python: Path  # of the environment that the wheel is installed in
    added: tuple[str, ...]  # qualified names, generated operators among them
    upstream_operators: int  # that are there unchanged
    files: int  # whose hashes equal RECORD's
    seconds: float


@dataclass(frozen=True)
class FoundOperator:
    """An added operator as the wheel has it; `missing` names what the manifest claims in vain."""

    name: str  # 'aten::add.Tensor'
    schema: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Probed:
    """What the probe found in an environment's torch."""

    file: str
    version: str
    metadata_version: str | None
    schemas: dict[str, str]  # by qualified name
    operators: tuple[FoundOperator, ...]


def verify(
    wheel: Path,
    base: Base,
    manifest: Manifest,
    workdir: Path,
    cache: Path,
    *,
    upstream: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Install the wheel and hold it against its base and its manifest.

    An overlay (any wheel that is not torch's) is installed beside the base's wheel.

    workdir: keeps the environment between runs, and serves one of them at a time;
    cache: keeps the base's operator set.
    upstream: for a wheel that was built from source, the schemas of the tree's own functions: there
        is no other torch to ask then. The base's operators are asked where it is empty.
    Raises VerificationError with what differs, UsageError for an overlay whose base is no wheel.
    """
    started = time.monotonic()
    wheel, workdir = wheel.absolute(), workdir.absolute()
    with archives.opened(wheel) as archive:
        metadata = archives.metadata_of(archive)
        members = {info.filename for info in archive.infolist() if not info.is_dir()}
        own, record = f"{archives.dist_info_of(archive)}/RECORD", archives.record_of(archive)
    if members != set(record):
        odd = sorted(members ^ set(record))
        raise _failed("RECORD does not list exactly the wheel's files", listed(odd), str(wheel))
    if is_overlay := metadata["name"] != "torch":
        workdir /= metadata["name"]  # two overlays in one environment are refused
    neutral = workdir / "neutral"
    neutral.mkdir(parents=True, exist_ok=True)
    guard = workdir / "verify.lock"
    with files.lock(guard, f"verifying {wheel.name}"):
        if is_overlay:
            python = _beside_official(wheel, base, workdir, neutral, say)
        else:
            required = metadata.get("requires_dist", [])
            python = venv.with_wheel(wheel, base.interpreter, required, workdir, neutral, say)
        say("files, operators, requirements")
        listed_files = {name: row for name, row in record.items() if name != own}
        version = base.version if is_overlay else str(metadata["version"])
        questions = [asdict(op) for op in manifest.operators]
        # These only read, and each is one process for most of its time: two at once.
        with ThreadPoolExecutor(2) as pool:
            asked = None if upstream else pool.submit(_base_schemas, base, python, neutral, cache)
            probing = pool.submit(_probe, python, neutral, None, questions)
            consistent = pool.submit(_pip_check, python, neutral)
            same_files = pool.submit(_check_files, wheel, listed_files, python, neutral)
            required_as = pool.submit(_check_requirement, python, neutral, base, version)
            consistent.result()
            same_files.result()
            probed = probing.result()
            _check_version(wheel, version, probed, python)
            schemas = asked.result() if asked else _tree_schemas(upstream, probed, python, neutral)
            _check_operators(wheel, schemas, probed)
            required_as.result()
    added = tuple(sorted(op.name for op in probed.operators))
    seconds = time.monotonic() - started
    return Report(wheel, probed.version, python, added, len(schemas), len(record) - 1, seconds)


def require_wheel(base: Base) -> Path:
    """The wheel of a base, to verify an overlay beside. Raises UsageError where it has none."""
    if base.wheel is None:
        raise UsageError(
            "an overlay is verified beside an official wheel, and this base is an installed torch",
            where=str(base.root),
            next="say --no-verify, or name the wheel: --base FILE.whl",
        )
    return base.wheel


def _beside_official(
    wheel: Path, base: Base, workdir: Path, neutral: Path, say: Callable[[str], None]
) -> Path:
    """An environment with the base's wheel and the overlay; its interpreter."""
    require_wheel(base)
    key = files.sha256_text(str(base.interpreter.executable), base.identity)
    python = venv.with_requirements(
        workdir / f"venv-{base.interpreter.tag}-{key[:12]}", base.interpreter,
        [f"torch=={base.metadata_version}"], "torch and what it requires", say, "--no-compile",
        # CUDA's libraries, some GB, are the same for each Python.
        at_hand=[base.root, *workdir.glob("venv-*/lib/python*/site-packages")],
    )  # fmt: skip
    options = ("--no-deps", "--force-reinstall", "--no-index")
    outcome = venv.pip_run(python, neutral, "install", *options, str(wheel))
    if outcome.returncode:
        raise _failed("pip does not install the overlay", outcome.stderr.strip(), str(wheel))
    return python


def _pip_check(python: Path, neutral: Path) -> None:
    outcome = venv.pip_run(python, neutral, "check")
    if outcome.returncode:
        raise _failed("pip check complains about the wheel", outcome.stdout.strip())


def _check_files(wheel: Path, record: Mapping[str, Recorded], python: Path, neutral: Path) -> None:
    """Every file is installed with the bytes that RECORD says."""
    question = "import sysconfig; print(sysconfig.get_path('platlib'))"
    site = Path(process.run([python, "-I", "-c", question], cwd=neutral).stdout.strip())
    with ThreadPoolExecutor(2) as pool:
        good = pool.map(lambda name: _as_recorded(site / name, record[name]), record)
        wrong = sorted(name for name, same in zip(record, good, strict=True) if not same)
    if wrong:
        raise _failed("files are not those that RECORD lists", listed(wrong), str(wheel))


def _as_recorded(path: Path, recorded: Recorded) -> bool:
    if not recorded.hash or not path.is_file() or str(path.stat().st_size) != recorded.size:
        return False
    return recorded.matches(bytes.fromhex(files.sha256_file(path)))


def _probe(
    python: Path, neutral: Path, root: Path | None, operators: Sequence[Mapping[str, object]]
) -> Probed:
    """Ask a torch: the installed one, or the one below `root`."""
    question = json.dumps({"root": str(root) if root else None, "operators": list(operators)})
    # -I: nothing of the user's environment or directory; -B: nothing is written beside a base.
    command: list[str | Path] = [python, "-I", "-B", _PROBE]
    # A base is asked without an overlay that the environment may have.
    outcome = process.run(
        command, cwd=neutral, input_text=question, check=False, supervised=True,
        env={"TORCHFORK_OVERLAY": "0"} if root else None,
    )  # fmt: skip
    lines = outcome.stdout.strip().splitlines()
    try:
        if outcome.returncode == 0:
            return memo.load(Probed, json.loads(lines[-1]))
    except (ValueError, IndexError):
        pass
    what = "the base cannot be imported" if root else "the wheel cannot be imported"
    why = "\n".join((outcome.stderr or outcome.stdout).strip().splitlines()[-12:])
    if outcome.returncode < 0:
        why += f"\nended by signal {-outcome.returncode}"
    raise _failed(what, why, str(root or python))


def _base_schemas(base: Base, python: Path, neutral: Path, cache: Path) -> dict[str, str]:
    def ask() -> dict[str, str]:
        probed = _probe(python, neutral, base.root, [])
        if not Path(probed.file).is_relative_to(base.root):
            what = "another torch than the base was imported"
            raise _failed(what, probed.file, str(base.root))
        return probed.schemas

    note = cache / "schemas" / f"{base.identity}.json"
    return memo.remember(note, base.identity, dict[str, str], ask)


def _tree_schemas(
    schemas: Sequence[str], probed: Probed, python: Path, neutral: Path
) -> dict[str, str]:
    """The tree's own functions as torch words them, and what no native function declares.

    prim, quantized and other operators that C++ registers by itself have no entry in the YAML: they
    are taken as they come, for nothing of ours could have made them.
    """
    asked = _probe(python, neutral, None, [_minimal(schema) for schema in schemas])
    declared = {op.name: op.schema for op in asked.operators}
    added = {op.name for op in probed.operators}
    others = {
        name: schema
        for name, schema in probed.schemas.items()
        if name not in declared and name not in added
    }
    return {**declared, **others}


def _minimal(schema: str) -> dict[str, str]:
    name, _, overload = schema.partition("(")[0].partition(".")
    return {"name": name, "overload": overload, "schema": schema}


def _check_version(wheel: Path, version: str, probed: Probed, python: Path) -> None:
    """torch has this version, and where it is the wheel's own, all places say so."""
    if not Path(probed.file).is_relative_to(python.parent.parent):
        raise _failed("another torch than the wheel's was imported", probed.file, str(wheel))
    versions: dict[str, str | None] = {"METADATA": version, "torch.__version__": probed.version}
    name = WheelName.parse(wheel.name)
    if name.project == "torch":
        versions |= {"the file name": name.version, "installed metadata": probed.metadata_version}
    if len(set(versions.values())) != 1:
        why = "\n".join(f"{place}: {version}" for place, version in versions.items())
        raise _failed("the wheel's versions differ", why, str(wheel))


def _check_operators(wheel: Path, upstream: Mapping[str, str], probed: Probed) -> None:
    """The operator set is upstream's and exactly the additions, and the additions are complete."""
    expected = {**upstream, **{op.name: op.schema for op in probed.operators}}
    there = probed.schemas
    problems = [f"missing: {name}" for name in sorted(expected.keys() - there.keys())]
    problems += [f"not expected: {there[name]}" for name in sorted(there.keys() - expected.keys())]
    problems += [
        f"changed: {there[name]}\n    was: {schema}"
        for name, schema in sorted(expected.items())
        if name in there and there[name] != schema
    ]
    if problems:
        what = "the wheel's operators are not upstream's and the additions"
        raise _failed(what, listed(problems), str(wheel))
    lacking = [f"{op.name} lacks {', '.join(op.missing)}" for op in probed.operators if op.missing]
    if lacking:
        raise _failed("an added operator is not complete", listed(lacking), str(wheel))


def _check_requirement(python: Path, neutral: Path, base: Base, version: str) -> None:
    """`torch==2.13.0`, as torchvision and others require it, is satisfied: by pip's own word."""
    wanted = f"torch=={base.public_version}"
    specifier = SpecifierSet(f"=={base.public_version}")
    outcome = venv.pip_run(python, neutral, "install", "--no-index", "--no-deps", wanted)
    if outcome.returncode or "already satisfied" not in outcome.stdout or version not in specifier:
        raise _failed(
            f"the requirement {wanted} is not satisfied by {version}",
            (outcome.stdout + outcome.stderr).strip(),
        )


def _failed(what: str, why: str, where: str = "") -> VerificationError:
    return VerificationError(
        what,
        where=where,
        why=why,
        next="this is a fault of the build, not of its input: remove the build files "
        "(scripts/torchfork clean), run again, and report it if it stays",
    )
