"""Has a base pass the gate, once for each base and version of the generator's driver."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import files
from ..bases.base import Base
from ..stages import codegen, gate
from ..ui import Ui
from ..upstream import Upstream


@dataclass(frozen=True)
class Gated:
    """A base that has passed the gate."""

    upstream: Upstream
    wrapper: gate.Wrapper
    compared: int


def pass_gate(base: Base, cache: Path, ui: Ui) -> Gated:
    """Regenerate and compare the base's headers, once for each base and version of the tooling."""
    driver = Path(codegen.PACKAGE_PATH, "torchfork", "codegen", "driver.py")
    tooling = files.sha256_text(driver.read_text("utf-8"), Path(gate.__file__).read_text("utf-8"))
    note = cache / "gate" / f"{base.identity}-{tooling[:16]}.json"
    with ui.step("regenerate the base's headers") as step:
        known = files.read_json(note)
        if known is None:
            known = _run_gate(base, note)
        step.say(f"{known['compared']} headers of torch {base.version} equal what its YAML makes")
    return Gated(
        Upstream(
            tuple(known["schemas"]), frozenset(known["tags"]), frozenset(known["dispatch_keys"])
        ),
        gate.Wrapper(**known["wrapper"]),
        known["compared"],
    )


def _run_gate(base: Base, note: Path) -> dict[str, Any]:
    scratch = note.with_suffix("")
    with files.scratch_directory(scratch) as directory:
        home = directory / "home"
        home.mkdir()
        (home / "torchgen").symlink_to(base.root / "torchgen")
        upstream = codegen.regenerate_base(home, directory / "out", directory)
        report = gate.check(base, directory / "out")
    known = {
        "schemas": upstream.schemas,
        "tags": sorted(upstream.tags),
        "dispatch_keys": sorted(upstream.dispatch_keys),
        "wrapper": asdict(report.wrapper),
        "compared": report.compared,
    }
    files.write_json(note, known)
    return known
