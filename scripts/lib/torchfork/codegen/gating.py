"""Has a base pass the gate, once for each base and version of the generator's driver."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..upstream.base import Base
from ..upstream.inventory import Upstream
from ..util import files
from ..util.ui import Ui
from . import client, gate

_DRIVER = Path(client.PACKAGE_PATH, "torchfork", "codegen", "driver.py")
LOCK_SECONDS = 600.0


@dataclass(frozen=True)
class CheckedBase:
    """A base that has passed the gate."""

    upstream: Upstream
    wrapper: gate.Wrapper
    compared: int


def check_headers(base: Base, cache: Path, ui: Ui) -> CheckedBase:
    """Regenerate and compare the base's headers, once for each base and version of the tooling."""
    tooling = files.sha256_text(_DRIVER.read_text("utf-8"), Path(gate.__file__).read_text("utf-8"))
    note = cache / "gate" / f"{base.identity}-{tooling[:16]}.json"
    with ui.step("regenerate the base's headers") as step:
        known = files.read_json(note)
        if known is None:
            guard = cache / "locks" / f"gate-{note.stem[:16]}.lock"
            with files.lock(guard, f"checking torch {base.version}", _waiting(ui), LOCK_SECONDS):
                known = files.read_json(note) or _run_gate(base, note)
        step.say(f"{known['compared']} headers of torch {base.version} equal what its YAML makes")
    return CheckedBase(
        _from_json(known),
        gate.Wrapper(**known["wrapper"]),
        known["compared"],
    )


def survey(base: Base, cache: Path) -> Upstream:
    """What a base has, asked of its code generator once; nothing is generated."""
    tooling = [_DRIVER, _DRIVER.with_name("api.py")]
    key = files.sha256_text(*(path.read_text("utf-8") for path in tooling))
    note = cache / "survey" / f"{base.identity}-{key[:16]}.json"
    known = files.read_json(note)
    if known is None:
        with _torchgen_home(base, note) as (home, scratch):
            found = client.survey(home, scratch)
        known = _as_json(found)
        files.write_json(note, known)
    return _from_json(known)


@contextlib.contextmanager
def _torchgen_home(base: Base, note: Path) -> Iterator[tuple[Path, Path]]:
    """A directory with the base's torchgen and nothing else of it; and a scratch one."""
    with files.scratch_directory(note.with_suffix("")) as directory:
        home = directory / "home"
        home.mkdir()
        (home / "torchgen").symlink_to(base.root / "torchgen")
        yield home, directory


def _as_json(upstream: Upstream) -> dict[str, Any]:
    return {
        "schemas": upstream.schemas,
        "tags": sorted(upstream.tags),
        "dispatch_keys": sorted(upstream.dispatch_keys),
    }


def _from_json(known: dict[str, Any]) -> Upstream:
    return Upstream(
        tuple(known["schemas"]), frozenset(known["tags"]), frozenset(known["dispatch_keys"])
    )


def _waiting(ui: Ui) -> Callable[[str], None]:
    return lambda holder: ui.warn(f"another run checks this base: {holder}; waiting for it")


def _run_gate(base: Base, note: Path) -> dict[str, Any]:
    """The gate itself; the caller holds its lock, so what killed runs left is nobody's."""
    for left in note.parent.glob(f".{note.stem[:60]}.*"):
        shutil.rmtree(left, ignore_errors=True)
    with _torchgen_home(base, note) as (home, directory):
        upstream = client.regenerate_base(home, directory / "out", directory, gate.devices(base))
        report = gate.check(base, directory / "out")
    known = {
        **_as_json(upstream),
        "wrapper": asdict(report.wrapper),
        "compared": report.compared,
    }
    files.write_json(note, known)
    return known
