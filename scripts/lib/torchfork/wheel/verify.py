"""Verify a finished wheel in a clean environment, from a neutral directory.

The base's own operator set is asked from the base, once, and kept under its identity.
"""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from ..codegen.model import Manifest
from ..errors import VerificationError
from ..upstream.archives import read_record, record_hash
from ..upstream.base import Base
from ..util import files, process, venv

LOCK_SECONDS = 3600.0
_PROBE = Path(__file__).with_name("verify_probe.py")


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


def verify(
    wheel: Path,
    base: Base,
    manifest: Manifest,
    workdir: Path,
    cache: Path,
    *,
    upstream: Sequence[str] = (),
    say: Callable[[str], None] = lambda text: None,
    on_wait: Callable[[str], None] = lambda holder: None,
) -> Report:
    """Install the wheel and hold it against its base and its manifest.

    workdir: keeps the environment between runs, and serves one of them at a time;
    cache: keeps the base's operator set.
    upstream: for a wheel that was built from source, the schemas of the tree's own functions: there
        is no other torch to ask then. The base's operators are asked where it is empty.
    Raises VerificationError with what differs.
    """
    guard = workdir.absolute() / "verify.lock"
    with files.lock(guard, f"verifying {wheel.name}", on_wait, LOCK_SECONDS):
        return _verify(wheel.absolute(), base, manifest, workdir.absolute(), cache, say, upstream)


def _verify(
    wheel: Path,
    base: Base,
    manifest: Manifest,
    workdir: Path,
    cache: Path,
    say: Callable[[str], None],
    upstream_schemas: Sequence[str],
) -> Report:
    started = time.monotonic()
    metadata = _metadata(wheel)
    neutral = workdir / "neutral"
    neutral.mkdir(parents=True, exist_ok=True)
    required = metadata["Requires-Dist"]
    python = venv.with_wheel(wheel, base.interpreter, required, workdir, neutral, say)
    say("pip check")
    _pip_check(python, neutral)
    say("hashes")
    count = _check_record(wheel, python, neutral)
    say("operators")
    told = _ask(python, neutral, None, [asdict(op) for op in manifest.operators])
    _check_version(wheel, metadata, told, python)
    if upstream_schemas:
        upstream = _tree_schemas(upstream_schemas, told, python, neutral)
    else:
        upstream = _base_schemas(base, python, neutral, cache)
    _check_operators(wheel, upstream, told)
    say("requirements")
    _check_requirement(python, neutral, base, metadata["Version"])
    added = tuple(sorted(op["name"] for op in told["operators"]))
    return Report(
        wheel, told["version"], python, added, len(upstream), count, time.monotonic() - started
    )


def _metadata(wheel: Path) -> dict[str, Any]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        head = HeaderParser().parsestr(archive.read(name).decode())
    return {"Version": head["Version"], "Requires-Dist": head.get_all("Requires-Dist", [])}


def _pip_check(python: Path, neutral: Path) -> None:
    outcome = venv.pip_run(python, neutral, "check")
    if outcome.returncode:
        raise _failed("pip check complains about the wheel", outcome.stdout.strip())


def _check_record(wheel: Path, python: Path, neutral: Path) -> int:
    """Every file of the wheel is in RECORD, and installed with the bytes that RECORD says."""
    with zipfile.ZipFile(wheel) as archive:
        members = {info.filename for info in archive.infolist() if not info.is_dir()}
        own = next(name for name in members if name.endswith(".dist-info/RECORD"))
        record = read_record(archive.read(own).decode())
    if members != set(record):
        odd = sorted(members ^ set(record))
        raise _failed("RECORD does not list exactly the wheel's files", _listed(odd), str(wheel))
    question = "import sysconfig; print(sysconfig.get_path('platlib'))"
    site = Path(process.run([python, "-I", "-c", question], cwd=neutral).stdout.strip())
    names = sorted(members - {own})
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda name: _as_recorded(site / name, *record[name]), names)
        wrong = [name for name, good in zip(names, found, strict=True) if not good]
    if wrong:
        raise _failed("files are not those that RECORD lists", _listed(wrong), str(wheel))
    return len(names)


def _as_recorded(path: Path, expected: str, size: str) -> bool:
    if not path.is_file() or str(path.stat().st_size) != size:
        return False
    return record_hash(bytes.fromhex(files.sha256_file(path))) == expected.rstrip("=")


def _ask(
    python: Path, neutral: Path, root: Path | None, operators: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    question = json.dumps({"root": str(root) if root else None, "operators": list(operators)})
    # -I: nothing of the user's environment or directory; -B: nothing is written beside a base.
    command: list[str | Path] = [python, "-I", "-B", _PROBE]
    outcome = process.run(command, cwd=neutral, input_text=question, check=False)
    lines = outcome.stdout.strip().splitlines()
    try:
        if outcome.returncode == 0:
            answer: dict[str, Any] = json.loads(lines[-1])
            return answer
    except (ValueError, IndexError):
        pass
    what = "the base cannot be imported" if root else "the wheel cannot be imported"
    why = "\n".join((outcome.stderr or outcome.stdout).strip().splitlines()[-12:])
    if outcome.returncode < 0:
        why += f"\nended by signal {-outcome.returncode}"
    raise _failed(what, why, str(root or python))


def _base_schemas(base: Base, python: Path, neutral: Path, cache: Path) -> dict[str, str]:
    note = cache / "schemas" / f"{base.identity}.json"
    known = files.read_json(note)
    if isinstance(known, dict):
        return known
    told = _ask(python, neutral, base.root, [])
    if not Path(told["file"]).is_relative_to(base.root):
        raise _failed("another torch than the base was imported", told["file"], str(base.root))
    schemas: dict[str, str] = told["schemas"]
    files.write_json(note, schemas)
    return schemas


def _tree_schemas(
    schemas: Sequence[str], told: Mapping[str, Any], python: Path, neutral: Path
) -> dict[str, str]:
    """The tree's own functions as torch words them, and what no native function declares.

    prim, quantized and other operators that C++ registers by itself have no entry in the YAML: they
    are taken as they come, for nothing of ours could have made them.
    """
    own = [_minimal(schema) for schema in schemas]
    declared = {op["name"]: op["schema"] for op in _ask(python, neutral, None, own)["operators"]}
    added = {op["name"] for op in told["operators"]}
    others = {n: s for n, s in told["schemas"].items() if n not in declared and n not in added}
    return {**declared, **others}


def _minimal(schema: str) -> dict[str, str]:
    name, _, overload = schema.partition("(")[0].partition(".")
    return {"name": name, "overload": overload, "schema": schema}


def _check_version(
    wheel: Path, metadata: dict[str, Any], told: dict[str, Any], python: Path
) -> None:
    if not Path(told["file"]).is_relative_to(python.parent.parent):
        raise _failed("another torch than the wheel's was imported", told["file"], str(wheel))
    said = {
        "the file name": wheel.name.split("-")[1],
        "METADATA": metadata["Version"],
        "the installed metadata": told["metadata_version"],
        "torch.__version__": told["version"],
    }
    if len(set(said.values())) != 1:
        why = "\n".join(f"{place}: {version}" for place, version in said.items())
        raise _failed("the wheel's versions differ", why, str(wheel))


def _check_operators(wheel: Path, upstream: Mapping[str, str], told: dict[str, Any]) -> None:
    """The operator set is upstream's and exactly the additions, and the additions are whole."""
    expected = {**upstream, **{op["name"]: op["schema"] for op in told["operators"]}}
    found: dict[str, str] = told["schemas"]
    problems = [f"missing: {name}" for name in sorted(expected.keys() - found.keys())]
    problems += [f"not expected: {found[name]}" for name in sorted(found.keys() - expected.keys())]
    problems += [
        f"changed: {found[name]}\n    was: {schema}"
        for name, schema in sorted(expected.items())
        if name in found and found[name] != schema
    ]
    if problems:
        raise _failed(
            "the wheel's operators are not upstream's and the additions",
            _listed(problems),
            str(wheel),
        )
    lacking = [
        f"{op['name']} lacks {', '.join(op['missing'])}"
        for op in told["operators"]
        if op["missing"]
    ]
    if lacking:
        raise _failed("an added operator is not whole", _listed(lacking), str(wheel))


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


def _listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - 10} more"] if len(names) > 10 else []
    return "\n".join([*names[:10], *more])


def _failed(what: str, why: str, where: str = "") -> VerificationError:
    return VerificationError(
        what,
        where=where,
        why=why,
        next="this is a fault of the build, not of its input: remove the build files "
        "(scripts/torchfork clean), run again, and report it if it stays",
    )
