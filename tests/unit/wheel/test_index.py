"""The static index: pip takes wheels from it, and reads their metadata beside them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
import tomlkit
from sample_files import Quiet, served
from sample_wheel import made_up

from torchfork import cli
from torchfork.errors import UsageError
from torchfork.wheel import index


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    made_up(tmp_path, "torch", "2.13.0+cpu.ext1", "Requires-Python: >=3.10")
    made_up(tmp_path, "torch", "2.13.0")
    made_up(tmp_path, "torch-ext", "1.0+torch2.13.0.cpu", "Requires-Dist: torch==2.13.0")
    index.make(tmp_path)
    return tmp_path


class Links(HTMLParser):
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


@dataclass(frozen=True)
class Resolver:
    """pip or uv with an official index that has stock torch, and a directory of wheels of ours."""

    root: Path

    @property
    def ours(self) -> Path:
        return self.root / "ours"

    @property
    def official(self) -> str:
        return (self.root / "official/simple").as_uri()

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
        own = {"PIP_CONFIG_FILE": os.devnull, "XDG_CONFIG_HOME": str(self.root), "UV_OFFLINE": "1",
               "UV_CACHE_DIR": str(self.root / "cache"), "UV_PYTHON": sys.executable,
               "UV_PYTHON_DOWNLOADS": "never"}  # fmt: skip
        return subprocess.run(
            [str(part) for part in command], cwd=self.root, env={**kept, **own},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def pip(self, *what: str | Path) -> dict[str, str]:
        """What pip would install."""
        done = self.run(
            sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-input",
            "--disable-pip-version-check", "--report", "-", "--quiet", *what,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)["install"]
        return {item["metadata"]["name"]: item["metadata"]["version"] for item in report}

    def uv(self, settings: str, dependencies: Sequence[str] = ()) -> dict[str, str]:
        """What `uv sync` installs from the lock that it makes of a project with these settings."""
        project = tomlkit.parse(settings)
        table = project.setdefault("project", tomlkit.table())
        table.update({"name": "user", "version": "1", "requires-python": ">=3.10"})
        table["dependencies"] = [*table.get("dependencies", []), *dependencies]
        text = tomlkit.dumps(project)
        text += f'\n[[tool.uv.index]]\nname = "official"\nurl = "{self.official}"\ndefault = true\n'
        (self.root / "pyproject.toml").write_text(text)
        shutil.rmtree(self.root / ".venv", ignore_errors=True)
        (self.root / "uv.lock").unlink(missing_ok=True)
        uv = Path(sys.executable).with_name("uv")
        for command in (["lock"], ["sync", "--locked", "--no-install-project"]):
            done = self.run(uv, *command)
            assert done.returncode == 0, done.stderr
        sites = list(self.root.glob(".venv/lib/*/site-packages"))
        found = importlib.metadata.distributions(path=list(map(str, sites)))
        return {one.name: one.version for one in found}


@pytest.fixture
def resolver(tmp_path: Path) -> Resolver:
    official = tmp_path / "official"
    official.mkdir()
    made_up(official, "torch", "2.13.0")
    made_up(official, "torch", "2.14.0")
    made_up(official, "fakevision", "0.1", "Requires-Dist: torch>=2.13")
    index.make(official)
    (tmp_path / "cpu").mkdir()
    made_up(tmp_path / "cpu", "torch", "2.13.0+cpu")
    index.make(tmp_path / "cpu")
    (tmp_path / "ours").mkdir()
    return Resolver(tmp_path)


GRAFTED = ("torch", "2.13.0+cpu.ext1")
OVERLAY = ("torch-ext", "1.0+torch2.13.0.cpu", "Requires-Dist: torch==2.13.0")


def test_pip_takes_the_newest_of_an_extra_index(resolver: Resolver) -> None:
    """A local version counts as newer than the plain one: the wheel with the additions is taken."""
    made_up(resolver.ours, *GRAFTED)
    made_up(resolver.ours, *OVERLAY)
    index.make(resolver.ours)
    extra = (resolver.ours / "simple").as_uri()
    found = resolver.pip("--index-url", resolver.official, "--extra-index-url", extra, "torch-ext")
    assert found == {"torch-ext": OVERLAY[1], "torch": GRAFTED[1]}


class JsonPages(Quiet):
    """A server that answers with the JSON page of a directory."""

    def translate_path(self, path: str) -> str:
        return super().translate_path(f"{path}index.json" if path.endswith("/") else path)

    def guess_type(self, path: str | os.PathLike[str]) -> str:
        is_page = Path(path).name == "index.json"
        return "application/vnd.pypi.simple.v1+json" if is_page else super().guess_type(path)


def test_pip_reads_the_json_pages_of_a_server_that_sends_them(resolver: Resolver) -> None:
    made_up(resolver.ours, *GRAFTED)
    index.make(resolver.ours)
    with served(resolver.ours, JsonPages) as address:
        url = f"{address}/simple/"
        assert resolver.pip("--index-url", url, "torch") == {"torch": GRAFTED[1]}
        with urllib.request.urlopen(url) as answer:
            assert json.load(answer)["projects"] == [{"name": "torch"}]


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (GRAFTED, {"torch": GRAFTED[1]}),
        (OVERLAY, {"torch": "2.13.0", "torch-ext": OVERLAY[1]}),
        (OVERLAY, {"torch": "2.13.0+cpu", "torch-ext": OVERLAY[1]}),
    ],
    ids=["wheel", "overlay", "overlay of a build that the default index lacks"],
)
def test_what_a_build_says_keeps_its_wheel_beside_packages_that_want_torch(
    resolver: Resolver, ours: tuple[str, ...], expected: dict[str, str]
) -> None:
    """Without it, both take torch 2.14.0 of the official index for such a package."""
    wheel = made_up(resolver.ours, *ours)
    official = ["--index-url", resolver.official, "fakevision"]
    stock = {"fakevision": "0.1", "torch": "2.14.0"}
    assert resolver.pip(*official) == stock
    assert resolver.uv("", ["fakevision"]) == stock
    kept, settings = index.constrain(wheel, expected["torch"])
    expected = {**expected, "fakevision": "0.1"}
    lacked = expected["torch"] == "2.13.0+cpu"
    assert ("and the index that has torch 2.13.0+cpu" in settings) == lacked
    if lacked:
        cpu = (resolver.root / "cpu/simple").as_uri()
        official += ["--extra-index-url", cpu]
        settings += f'[[tool.uv.index]]\nname = "cpu"\nurl = "{cpu}"\n'
    assert resolver.pip(*official, "--constraint", kept, wheel) == expected
    assert resolver.uv(settings, ["fakevision"]) == expected


def test_the_page_shows_what_a_build_prints_for_uv(resolver: Resolver) -> None:
    printed = index.constrain(made_up(resolver.ours, *OVERLAY), "2.13.0+cpu")[1]
    page = Path(__file__).parents[3] / "docs" / "distribution.md"
    assert printed.replace(resolver.ours.as_uri(), "file:///…/dist") in page.read_text("utf-8")


@pytest.mark.parametrize("ours", [GRAFTED, OVERLAY], ids=["wheel", "overlay"])
def test_uv_takes_from_the_index_what_is_a_direct_dependency(
    resolver: Resolver, ours: tuple[str, ...]
) -> None:
    made_up(resolver.ours, *ours)
    index.make(resolver.ours)
    settings = index.uv_sources([ours[0]], resolver.ours / "simple")
    assert resolver.uv(settings, [ours[0]])[ours[0]] == ours[1]
    # as a dependency of another package only, torch's source does not count
    assert resolver.uv(settings, ["fakevision"])["torch"] == "2.14.0"


def test_it_is_made_again_when_wheels_go_and_a_file_that_is_none_is_refused(shelf: Path) -> None:
    (shelf / "torch-2.13.0-py3-none-any.whl").unlink()
    assert len(index.make(shelf)) == 2
    assert "2.13.0-py3" not in (shelf / "simple/torch/index.html").read_text()
    for wheel in shelf.glob("torch_ext-*.whl"):
        wheel.unlink()
    index.make(shelf)
    assert not list(shelf.rglob("*torch_ext*")) and not list(shelf.glob("simple/torch-ext/*"))
    with pytest.raises(UsageError, match="no wheel"):
        index.make(shelf / "simple")
    (shelf / "torch-1.0-py3-none-any.whl").write_text("no zip")
    with pytest.raises(UsageError) as caught:
        index.make(shelf)
    assert caught.value.where.endswith("torch-1.0-py3-none-any.whl")


def test_the_command_prints_what_pip_and_uv_need(
    shelf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["index", str(shelf)]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(shelf / "simple")
    assert "--extra-index-url file://" in err
    assert textwrap.indent(index.uv_sources(["torch", "torch-ext"], shelf / "simple"), "  ") in err
