"""torchfork doctor: the state of an environment's torch, each fault with its cure."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import sample_wheel as sample
from sample_files import lay

from torchfork import cli
from torchfork.state import installed_torch
from torchfork.state.journal import Store
from torchfork.upstream import pins
from torchfork.upstream.base import Interpreter
from torchfork.upstream.wheel import Opening
from torchfork.wheel.overlay_runtime.activate import SWITCH


@dataclass(frozen=True)
class Patient:
    """An environment with a sample torch, which a test changes before the doctor looks."""

    interpreter: Interpreter
    root: Path

    @property
    def site(self) -> Path:
        return self.interpreter.site_packages

    def install(self, version: str = "9.1.0+cpu", commit: str = sample.COMMIT) -> None:
        """torch as an installer leaves it."""
        sample.install(self.site, sample.with_record(sample.contents(version, commit=commit)))

    def overlay(self, package: str = "torch_ext") -> None:
        """What the doctor reads of an overlay."""
        made_for = {
            "name": package.replace("_", "-"), "version": "1.0+torch9.1.0.cpu",
            "torch": "9.1.0+cpu", "commit": sample.COMMIT, "covers": {},
            "cure": "pip install another",
        }  # fmt: skip
        data = {f"{package}/overlay.json": json.dumps(made_for), f"{package}/activate.py": ""}
        lay(self.site, {**data, f"{package}.pth": f"import {package}\n"})

    def develop(self) -> Store:
        """A --develop build."""
        lay(self.root / "overlay", {"torch/overrides.py": "NAMES = ['relu', 'gdh']\n"})
        base = installed_torch.open_base(
            Opening(self.interpreter, pins.load(), self.root / "cache")
        )
        installed_torch.install(base, self.root / "overlay")
        return installed_torch.store(self.site)


@pytest.fixture
def patient(interpreter: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Patient:
    known = sample.releases(tmp_path / "releases.toml")
    monkeypatch.setattr(pins, "load", lambda: known)
    monkeypatch.delenv(SWITCH, raising=False)
    return Patient(interpreter, tmp_path)


def beside_another_overlay_json(patient: Patient) -> None:
    patient.install()
    lay(patient.site, {"maps/overlay.json": "[]"})


def grafted(patient: Patient) -> None:
    patient.install("9.1.0+cpu.ext1")


def developed(patient: Patient) -> None:
    patient.install()
    patient.develop()


def overlaid(patient: Patient) -> None:
    patient.install()
    patient.overlay()


@pytest.mark.parametrize(
    ("arrange", "state", "said"),
    [
        (Patient.install, "official", "9.1.0+cpu (official, 9.1.0)"),
        (beside_another_overlay_json, "official", "9.1.0+cpu (official, 9.1.0)"),
        (partial(Patient.install, commit=sample.OTHER_COMMIT), "unknown", "that no release pins"),
        (grafted, "wheel", "9.1.0+cpu.ext1 (a wheel that torchfork made)"),
        (developed, "develop", "with additions put into it by --develop"),
        (overlaid, "overlay", "torch-ext 1.0+torch9.1.0.cpu (activated when torch is imported)"),
    ],
)
def test_a_sound_torch_is_named(
    patient: Patient, capsys: pytest.CaptureFixture[str], arrange: Callable[[Patient], None],
    state: str, said: str,
) -> None:  # fmt: skip
    arrange(patient)
    # by the environment's interpreter, or by its directory
    for place in (patient.interpreter.executable, patient.interpreter.executable.parents[1]):
        assert cli.main(["doctor", "--env", str(place)]) == 0
        out, err = capsys.readouterr()
        assert out.strip() == state
        assert said in err and str(patient.site) in err


def upgraded_below_an_overlay(patient: Patient) -> None:
    patient.install(commit=sample.OTHER_COMMIT)
    patient.overlay()


def overlaid_twice(patient: Patient) -> None:
    overlaid(patient)
    patient.overlay("torch_other")


def overlaid_in_part(patient: Patient) -> None:
    """As uninstalling a second overlay leaves the first: without the stubs that both had."""
    overlaid(patient)
    shared = "torch-stubs/__init__.pyi,sha256=AAAA,0\ntorch_ext/__init__.pyc,,\n"
    lay(patient.site, {
        "torch_ext-1.0.dist-info/METADATA": "Name: torch-ext\nVersion: 1.0\n",
        "torch_ext-1.0.dist-info/RECORD": f"{shared}torch_ext.pth,,\n",
    })  # fmt: skip


def developed_and_edited(patient: Patient) -> None:
    developed(patient)
    (patient.site / "torch/overrides.py").write_text("NAMES = ['mine']\n")


def developed_in_part(patient: Patient) -> None:
    patient.install()
    store = patient.develop()
    journal = json.loads(store.path.read_text())
    store.path.write_text(json.dumps({**journal, "settled": False}))


def copied_over(patient: Patient) -> None:
    patient.install()
    (patient.site / "torch/lib/libtorch.so").write_text("another library\n")


def copied_over_by_another_version(patient: Patient) -> None:
    patient.install("9.1.0+cpu.ext1")
    (patient.site / "torch/version.py").write_text(sample.version_file("9.2.0"))


def installed_over(patient: Patient) -> None:
    patient.install("9.1.0+cpu.ext1")
    patient.install()


def unknown_to_pip(patient: Patient) -> None:
    patient.install()
    shutil.rmtree(patient.site / "torch-9.1.0+cpu.dist-info")


def editable(patient: Patient) -> None:
    patient.install()
    sample.make_editable(patient.site, patient.root / "checkout")


@pytest.mark.parametrize(
    ("arrange", "what", "cure"),
    [
        (lambda patient: None, "no torch is installed here", "-m pip install"),
        (upgraded_below_an_overlay, "torch-ext is not for this torch", "pip install another"),
        (overlaid_twice, "two overlays are installed", "and install one again"),
        (overlaid_in_part, "files of torch-ext are not those", "--no-deps 'torch-ext==1.0+torch9"),
        (developed_and_edited, "1 file of --develop changed since", "'torch==9.1.0+cpu'"),
        (developed_in_part, "a --develop run was interrupted", "--undo"),
        (copied_over, "torch was replaced since", "--force-reinstall --no-deps 'torch==9.1.0+cpu'"),
        (copied_over_by_another_version, "torch was replaced since", "'torch==9.1.0+cpu.ext1'"),
        (installed_over, "torch was installed over another torch", "pip uninstall torch"),
        (editable, "pip does not know the torch", "install it as a wheel"),
        (unknown_to_pip, "pip does not know the torch", "install it as a wheel"),
    ],
)
def test_what_is_wrong_is_named_with_its_cure(
    patient: Patient, capsys: pytest.CaptureFixture[str], arrange: Callable[[Patient], None],
    what: str, cure: str,
) -> None:  # fmt: skip
    arrange(patient)
    assert cli.main(["doctor", "--env", str(patient.interpreter.executable)]) == 32
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error: {what}" in err
    assert cure in err.partition("next: ")[2]


@pytest.mark.parametrize(
    ("line", "code"), [("torch==9.1.0+cpu.ext1", 0), ("torch==9.1.0+cpu.ext2", 32),
                       ("torch-ext==1.0", 32)],
)  # fmt: skip
def test_constraints_tell_whether_a_build_is_still_there(
    patient: Patient, capsys: pytest.CaptureFixture[str], line: str, code: int
) -> None:
    grafted(patient)
    constraints = patient.root / "constraints.txt"
    constraints.write_text(f"{line}\n")
    given = ["--env", str(patient.interpreter.executable), "--constraints", str(constraints)]
    assert cli.main(["doctor", *given]) == code
    assert (f"{line} is wanted" in capsys.readouterr().err) == bool(code)


def test_torchfork_itself_waits_for_no_import_of_torch() -> None:
    """It imports what an overlay consists of, which stands on sys.meta_path elsewhere."""
    assert "torchfork.wheel.overlay_runtime" in sys.modules
    assert not [finder for finder in sys.meta_path if hasattr(finder, "torchfork_overlay")]


def test_an_overlay_that_does_nothing_by_itself_says_why(
    patient: Patient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    overlaid(patient)
    given = ["doctor", "--env", str(patient.interpreter.executable)]
    (patient.site / "torch_ext.pth").unlink()
    cli.main(given)
    assert "import torch_ext before torch" in capsys.readouterr().err
    monkeypatch.setenv(SWITCH, "0")
    cli.main(given)
    assert "switched off: TORCHFORK_OVERLAY=0" in capsys.readouterr().err
    patient.overlay("torch_other")  # a second one does no harm then
    assert cli.main(given) == 0
