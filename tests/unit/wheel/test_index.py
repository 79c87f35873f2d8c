"""The static index: pip takes wheels from it, and reads their metadata beside them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from torchfork import cli
from torchfork.errors import UsageError
from torchfork.wheel import index


def made_up(directory: Path, name: str, version: str, *lines: str) -> Path:
    """A wheel of a package that exists nowhere else."""
    stem = f"{name.replace('-', '_')}-{version}"
    path = directory / f"{stem}-py3-none-any.whl"
    metadata = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", metadata + "\n")
        archive.writestr(
            f"{stem}.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    made_up(tmp_path, "torch", "2.13.0+cpu.ext1", "Requires-Python: >=3.10")
    made_up(tmp_path, "torch", "2.13.0")
    made_up(tmp_path, "torch-ext", "1.0+torch2.13.0.cpu", "Requires-Dist: torch==2.13.0")
    index.make(tmp_path)
    return tmp_path


class Links(HTMLParser):
    """The links of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(dict(attrs))


def test_pages_link_every_wheel_with_its_hashes(shelf: Path) -> None:
    projects = Links((shelf / "simple/index.html").read_text()).found
    assert [link["href"] for link in projects] == ["torch/", "torch-ext/"]
    page = shelf / "simple/torch"
    links = Links((page / "index.html").read_text()).found
    listed = json.loads((page / "index.json").read_text())["files"]
    assert len(links) == len(listed) == 2
    for link, entry in zip(links, listed, strict=True):
        target, _, fragment = str(link["href"]).partition("#")
        wheel = shelf / entry["filename"]
        # a + in a file name is %2B in a link
        assert target == f"../../{wheel.name}".replace("+", "%2B") == entry["url"]
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        assert fragment == f"sha256={digest}" and entry["hashes"] == {"sha256": digest}
        beside = hashlib.sha256((shelf / f"{wheel.name}.metadata").read_bytes()).hexdigest()
        assert link["data-core-metadata"] == f"sha256={beside}"
        assert entry["core-metadata"] == {"sha256": beside}
    assert links[0]["data-requires-python"] == listed[0]["requires-python"] == ">=3.10"


def test_pip_resolves_from_it(shelf: Path) -> None:
    command = [
        sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-input",
        "--disable-pip-version-check", "--index-url", (shelf / "simple").as_uri(), "--report", "-",
        "--quiet", "torch-ext",
    ]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    done = subprocess.run(
        command, env={**environment, "PIP_CONFIG_FILE": os.devnull}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    chosen = {
        i["metadata"]["name"]: i["metadata"]["version"] for i in json.loads(done.stdout)["install"]
    }
    # A local version counts as newer than the plain one: the wheel with the additions is taken.
    assert chosen == {"torch-ext": "1.0+torch2.13.0.cpu", "torch": "2.13.0+cpu.ext1"}


def test_it_is_made_again_when_wheels_come_or_go(shelf: Path) -> None:
    (shelf / "torch-2.13.0-py3-none-any.whl").unlink()
    assert len(index.make(shelf)) == 2
    assert "2.13.0-py3" not in (shelf / "simple/torch/index.html").read_text()


def test_a_directory_without_wheels_and_a_file_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no wheel"):
        index.make(tmp_path)
    (tmp_path / "torch-1.0-py3-none-any.whl").write_text("no zip")
    with pytest.raises(UsageError) as caught:
        index.make(tmp_path)
    assert caught.value.where.endswith("torch-1.0-py3-none-any.whl")


def test_the_command_prints_what_pip_and_uv_need(
    shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["index", str(shelf)]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(shelf / "simple")
    assert "--extra-index-url file://" in err and "[tool.uv.sources]" in err
    assert 'torch = { index = "additions" }' in err and "torch-ext = { index" in err
