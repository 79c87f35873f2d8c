"""pip's resolver, offline: what other packages require of torch is met by the wheel, or is not."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from subject import Archive, Subject


def made_up(directory: Path, name: str, version: str, *requires: str) -> None:
    """A wheel of a package that exists nowhere else, with nothing in it but its metadata."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {line}" for line in requires]
    files = {
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(directory / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


def lowest_allowed(requirement: Requirement) -> str:
    """A version that a requirement allows: its lower bound."""
    bounds = [s.version for s in requirement.specifier if s.operator in (">=", "==", "~=")]
    return str(max(map(Version, bounds), default=Version("1.0")))


@dataclass(frozen=True)
class Index:
    """A directory of wheels as the one place that pip may look at."""

    directory: Path
    subject: Subject

    def install(self, *what: str) -> tuple[dict[str, str], str]:
        """What pip would install, by name, and what it says where it cannot."""
        environment = {
            key: value
            for key, value in self.subject.environment().items()
            if not key.startswith("PIP_")
        }
        done = subprocess.run(
            [str(self.subject.python), "-m", "pip", "install", "--dry-run", "--quiet",
             "--disable-pip-version-check", "--no-input", "--no-index",
             "--find-links", str(self.directory), "--report", "-", *what],
            env={**environment, "PIP_CONFIG_FILE": os.devnull}, cwd=self.subject.neutral,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            return {}, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        found = (item["metadata"] for item in report["install"])
        return {item["name"]: item["version"] for item in found}, ""


def fill(directory: Path, public: str) -> None:
    major, minor, patch = Version(public).release
    made_up(directory, "fakevision", "0.1", f"torch=={public}")
    made_up(directory, "fakeaudio", "0.1", f"torch>={major}.{minor - 1},<{major}.{minor + 1}")
    made_up(directory, "faketext", "0.1", f"torch~={public}")
    made_up(directory, "fakenext", "0.1", f"torch=={major}.{minor}.{patch + 1}")
    made_up(directory, "fakeafter", "0.1", f"torch>{public}")


@pytest.fixture(scope="module")
def without_torch(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Made-up packages; torch is the one that is installed."""
    directory = tmp_path_factory.mktemp("index")
    fill(directory, Version(subject.wheel.version).public)
    return Index(directory, subject)


@pytest.fixture(scope="module")
def with_torch(
    subject: Subject, base_wheel: Archive, tmp_path_factory: pytest.TempPathFactory
) -> Index:
    """Made-up packages, the wheel, its base, and made-up packages for all that they require."""
    directory = tmp_path_factory.mktemp("index with torch")
    fill(directory, Version(subject.wheel.version).public)
    for archive in (subject.wheel, base_wheel):
        (directory / archive.path.name).symlink_to(archive.path)
    for line in subject.wheel.metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            made_up(directory, requirement.name, lowest_allowed(requirement))
    return Index(directory, subject)


@pytest.mark.parametrize("package", ["fakevision", "fakeaudio", "faketext"])
def test_a_package_for_this_release_leaves_the_installed_wheel_alone(
    without_torch: Index, package: str
) -> None:
    found, error = without_torch.install(package)
    assert not error
    assert found == {package: "0.1"}


@pytest.mark.parametrize("package", ["fakevision", "fakeaudio", "faketext"])
def test_pip_takes_the_grafted_wheel_and_not_its_base_for_such_a_package(
    with_torch: Index, package: str
) -> None:
    found, error = with_torch.install("--ignore-installed", package)
    assert not error
    assert found["torch"] == with_torch.subject.wheel.version
    assert found[package] == "0.1"


def test_a_package_for_another_release_conflicts(with_torch: Index) -> None:
    _, error = with_torch.install("fakenext")
    assert "No matching distribution found for torch==" in error


def test_the_local_part_does_not_count_as_a_later_release(with_torch: Index) -> None:
    """PEP 440: >2.13.0 is not met by 2.13.0+anything; a .postN would have met it."""
    _, error = with_torch.install("fakeafter")
    assert "No matching distribution found for torch>" in error


def test_packages_that_disagree_are_a_conflict_that_pip_names(with_torch: Index) -> None:
    public = Version(with_torch.subject.wheel.version).public
    _, error = with_torch.install("--ignore-installed", f"torch=={public}", "fakenext")
    assert "conflict" in error.lower() or "No matching distribution" in error


def test_an_upgrade_of_the_base_leads_to_the_grafted_wheel(with_torch: Index) -> None:
    found, error = with_torch.install("--ignore-installed", "--no-deps", "--upgrade", "torch")
    assert not error
    assert found == {"torch": with_torch.subject.wheel.version}


def test_the_exact_local_version_can_be_required(with_torch: Index, base_wheel: Archive) -> None:
    ours = with_torch.subject.wheel.version
    assert with_torch.install("--ignore-installed", "--no-deps", f"torch=={ours}")[0] == {
        "torch": ours
    }
    theirs = base_wheel.version
    assert with_torch.install("--ignore-installed", "--no-deps", f"torch=={theirs}")[0] == {
        "torch": theirs
    }


def test_what_is_installed_agrees_with_itself(subject: Subject) -> None:
    assert "No broken requirements" in subject.run([subject.python, "-m", "pip", "check"]).stdout
