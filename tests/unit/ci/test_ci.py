"""CI: least rights, jobs for people too; releases that are found by themselves."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import sample_wheel as sample
import yaml
from sample_files import commit_all, lay, program
from sample_files import git as run_git

from torchfork import cli
from torchfork.commands import pin
from torchfork.errors import BaseRefusedError, DownloadError
from torchfork.upstream import fetch, git
from torchfork.upstream import pins as releases
from torchfork.upstream.base import Interpreter, probe
from torchfork.upstream.pins import Release, WheelPin
from torchfork.util.process import Outcome
from torchfork.wheel import sbom

PROJECT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def test_there_are_workflows_for_pushes_nights_new_releases_and_tags() -> None:
    assert {path.stem for path in WORKFLOWS} == {"ci", "nightly", "new-release", "release"}


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_rights_are_given_job_by_job_and_no_checkout_keeps_a_token(workflow: Path) -> None:
    read = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert read["permissions"] == {}
    assert all("permissions" in job and "timeout-minutes" in job for job in read["jobs"].values())
    for step in steps(workflow):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_runs_one_thing_that_people_can_run_too(workflow: Path) -> None:
    known = set(re.findall(r"^#   (\w+)", (PROJECT / "ci" / "job").read_text(), re.MULTILINE))
    called = [step["run"] for step in steps(workflow) if "run" in step]
    for command in called:
        found = re.search(r"ci/job (?:\"\$JOB\"|(\w+))", command)
        assert found and (found[1] is None or found[1] in known), command
    assert not any("${{" in command for command in called), "an expression in a shell command"


def test_an_unknown_job_is_refused_and_the_known_ones_are_listed() -> None:
    done = subprocess.run([PROJECT / "ci" / "job", "nope"], capture_output=True, text=True)
    assert done.returncode == 2 and "carry VERSION" in done.stderr


def test_the_list_for_a_workflow_is_the_pins(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["releases", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == releases.load().versions


def test_the_overlays_job_asks_for_pythons_by_the_names_that_they_have_on_the_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert cli.main(["releases", "--pythons", "2.15.0"]) == 0
    pythons = ["3.11", "3.12", "3.13", "3.14", "3.14t", "3.15"]
    assert capsys.readouterr().out.split() == pythons
    assert cli.main(["releases", "--json", "--pythons", "2.15.0"]) == 0
    assert json.loads(capsys.readouterr().out) == pythons
    assert cli.main(["releases", "--pythons", ""]) == 0
    assert "3.10" in capsys.readouterr().out.split(), "of the default release"


def test_the_overlays_job_names_what_it_cannot_make_and_makes_the_others(tmp_path: Path) -> None:
    answers = {"python3.11": "echo 3.11", "python3.12": "echo 3.12", "python3.14": "echo 3.14t"}
    for name in ("g++", "git", "ccache", "python3"):
        answers[name] = "exit 0"
    for name, body in answers.items():
        program(tmp_path / "bin" / name, body)
    program(tmp_path / "scripts/torchfork", "echo 3.11 3.12 3.14 3.15")
    body = 'echo "$@"; case $* in *python3.11) exit 41 ;; esac'
    program(tmp_path / "scripts/build_torch.sh", body)
    job = Path(shutil.copy2(PROJECT / "ci" / "job", tmp_path / "scripts"))
    done = subprocess.run(
        [job, "overlays", "9.1.0"], capture_output=True, text=True, check=False,
        env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
    )  # fmt: skip
    options = "--overlay --out dist --torch 9.1.0 --python"
    assert done.stdout.splitlines() == [f"{options} python3.11", f"{options} python3.12"]
    assert "3.14: there is no python3.14 here" in done.stderr
    assert "3.15: there is no python3.15 here" in done.stderr
    assert done.returncode == 1 and done.stderr.endswith("error: no overlay for Python 3.11\n")


@pytest.fixture(scope="module")
def python() -> Interpreter:
    """Asked before a test plays pip: the module that runs programs is the same."""
    return probe(headers=False)


def one_release(folder: Path) -> releases.Releases:
    file = WheelPin("torch-9.1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "b" * 64)
    return releases.Releases(folder, "9.1.0", (Release("9.1.0", sample.COMMIT, (file,)),))


def answer(stdout: str = "", code: int = 0, stderr: str = "") -> Outcome:
    return Outcome(("pip",), code, stdout, stderr)


def test_new_releases_are_the_final_ones_that_are_not_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: Interpreter
) -> None:
    listed = "torch (9.2.0)\nAvailable versions: 9.2.0, 9.2.0rc1, 9.1.1, 9.1.0+cpu, 9.1.0, 8.9.0\n"
    monkeypatch.setattr(fetch.process, "run", lambda *_, **__: answer(listed))
    found = fetch.available(python)
    assert found == ["8.9.0", "9.1.0", "9.1.1", "9.2.0"]
    pins = sample.releases(tmp_path / "releases.toml", sample.write_wheel(tmp_path))
    assert fetch.unpinned(found, pins) == ["9.1.1", "9.2.0"]


def test_wheels_are_resolved_with_the_hashes_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: Interpreter
) -> None:
    def run(argv: list[object], **_: object) -> Outcome:
        words = [str(word) for word in argv]
        if "-c" in words:
            return answer()
        tag = words[words.index("--python-version") + 1]
        if tag == "312":
            return answer("", 1, "ERROR: No matching distribution found for torch==9.2.0")
        name = f"cp{tag}-cp{tag}-manylinux_2_28_x86_64"
        url = f"https://example.org/torch-9.2.0%2Bcpu-{name}.whl"
        info = {"url": url, "archive_info": {"hashes": {"sha256": "a" * 64}}}
        return answer(json.dumps({"install": [{"download_info": info}]}))

    monkeypatch.setattr(fetch.process, "run", run)
    found = fetch.resolve_wheels("9.2.0", one_release(tmp_path), python, lambda _: None)
    assert [(p.file, p.sha256) for p in found] == [
        ("torch-9.2.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "a" * 64)
    ]


def test_an_index_out_of_reach_is_no_release_without_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: Interpreter
) -> None:
    down = answer("", 1, "WARNING: Retrying\nERROR: Connection refused")
    quick = answer()
    monkeypatch.setattr(
        fetch.process, "run", lambda argv, **_: quick if "-c" in map(str, argv) else down
    )
    with pytest.raises(DownloadError, match="cannot reach"):
        fetch.resolve_wheels("9.2.0", one_release(tmp_path), python, lambda _: None)


def test_a_wheel_that_is_not_of_upstreams_tag_is_refused(tmp_path: Path) -> None:
    upstream = tmp_path / "upstream"
    lay(upstream, {"a": ""})
    head = commit_all(upstream, "x")
    run_git(upstream, "tag", "--annotate", "--message", "x", "v9.1.0")
    assert git.tag_commit("9.1.0", str(upstream)) == head
    assert git.tag_commit("9.1.0", str(tmp_path / "nothing")) is None
    with pytest.raises(DownloadError, match=r"no tag v9\.2\.0"):
        git.tag_commit("9.2.0", str(upstream))
    with pytest.raises(BaseRefusedError, match="not built from upstream's tag"):
        pin.require_same("9.1.0", sample.COMMIT, head, tmp_path)


def test_a_wheels_bill_of_materials_names_what_is_in_it(tmp_path: Path) -> None:
    official = sample.write_wheel(tmp_path / "official")
    pins = sample.releases(tmp_path / "releases.toml", official)
    made = sample.write_wheel(tmp_path / "made", version="9.1.0+cpu.ext1")
    bill = sbom.describe(made, pins)
    assert bill == sbom.describe(made, pins)
    assert bill["metadata"]["component"]["hashes"][0]["content"] == sample.sha256(made)
    (upstream,) = bill["components"]
    assert upstream["pedigree"]["commits"] == [{"uid": sample.COMMIT}]
    assert upstream["externalReferences"][0]["hashes"][0]["content"] == sample.sha256(official)
    with pytest.raises(BaseRefusedError, match="not a wheel that torchfork made"):
        sbom.describe(official, pins)
