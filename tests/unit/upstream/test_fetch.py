"""Fetching: by the user's pip, hashed before it counts, remembered, explained when it fails."""

from __future__ import annotations

import platform
import urllib.parse
from dataclasses import replace
from pathlib import Path

import pytest
import sample_wheel as sample
from sample_files import Quiet, served

from torchfork.errors import DownloadError, HashMismatchError, OutputError, ToolMissingError
from torchfork.upstream.fetch import cached_wheels, fetch_wheel
from torchfork.upstream.pins import Release, Releases, WheelPin, add
from torchfork.upstream.wheel import Opening, official
from torchfork.util import pip, process


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all that pip may look into."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "shelf"


def fetched(tmp_path: Path, pins: Releases) -> Path:
    return fetch_wheel(pins.get(), Opening(sample.this_python(), pins, tmp_path / "cache"))


@pytest.fixture
def wheel(shelf: Path) -> Path:
    return sample.write_wheel(shelf)


@pytest.fixture
def pins(tmp_path: Path, wheel: Path) -> Releases:
    return sample.releases(tmp_path / "releases.toml", wheel)


def test_a_pinned_wheel_is_fetched_once_into_the_cache_under_its_sha256(
    tmp_path: Path, wheel: Path, pins: Releases
) -> None:
    stale = tmp_path / "cache" / ".fetch-9.1.0.torchfork-killed00"
    stale.mkdir(parents=True)
    got, data = fetched(tmp_path, pins), wheel.read_bytes()
    assert got.read_bytes() == data and got.parent.name == sample.sha256(wheel)
    assert not list((tmp_path / "cache").glob(".fetch-*")), "also not what a killed run left"
    got.write_bytes(b"damaged")
    assert fetched(tmp_path, pins).read_bytes() == data
    wheel.unlink()
    assert fetched(tmp_path, pins) == got, "without an index"


def test_a_free_threaded_python_gets_the_wheel_that_is_for_it(tmp_path: Path, shelf: Path) -> None:
    """pip below 24.1 does not tell the two Pythons of a version apart."""
    wheels: dict[str, Path] = {}
    for abi in ("cp314", "cp314t"):
        files = sample.with_record({**sample.contents(), "torch/abi.txt": abi.encode()})
        wheels[abi] = sample.write_wheel(shelf, files, tag=f"cp314-{abi}-{sample.PLATFORM}")
    pins = sample.releases(tmp_path / "releases.toml", *wheels.values())
    for abi, wheel in wheels.items():
        suffix = f".{abi.replace('cp', 'cpython-')}-x86_64-linux-gnu.so"
        python = replace(sample.this_python(), version="3.14.0", extension_suffix=suffix)
        got = fetch_wheel(pins.get(), Opening(python, pins, tmp_path / "cache"))
        assert got.name == wheel.name


def test_other_index_settings_ask_pip_again(
    tmp_path: Path, wheel: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU build in the cache must not stand in for what another index would give."""
    contents = sample.with_record(sample.contents("9.1.0+cu130", metadata_version="9.1.0"))
    cuda = sample.write_wheel(tmp_path / "other", contents, version="9.1.0")
    pins = sample.releases(tmp_path / "releases.toml", wheel, cuda)
    assert fetched(tmp_path, pins).name == wheel.name
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "other"))
    assert fetched(tmp_path, pins).name == cuda.name
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    wheel.unlink()
    assert fetched(tmp_path, pins).name == wheel.name
    assert len(cached_wheels(pins.get(), sample.this_python(), tmp_path / "cache")) == 2


def test_an_unpinned_wheel_gets_into_the_cache_only_after_it_is_pinned(
    tmp_path: Path, wheel: Path, pins: Releases, shelf: Path
) -> None:
    pinned = sample.sha256(wheel)
    sample.write_wheel(shelf, sample.with_record({**sample.contents(), "torch/more.py": b"x\n"}))
    with pytest.raises(HashMismatchError) as caught:
        fetched(tmp_path, pins)
    assert caught.value.exit_code == 22 and pinned in caught.value.why
    assert f"scripts/torchfork pin {caught.value.where}" in caught.value.next
    assert not (tmp_path / "cache" / "wheels").exists()
    pins = add(pins, official(Path(caught.value.where), pins))
    wheel.unlink()
    assert fetched(tmp_path, pins).parent.parent.name == "wheels", "without another download"


def test_an_empty_index_is_an_error_that_offers_a_wheel_at_hand(
    tmp_path: Path, wheel: Path, pins: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = fetched(tmp_path, pins)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with pytest.raises(DownloadError, match="no wheel of torch") as caught:
        fetched(tmp_path, pins)
    assert caught.value.exit_code == 21
    assert "pip download" in caught.value.where and "pip config list" in caught.value.next
    assert f"--base {got}" in caught.value.next


class Breaking(Quiet):
    """An index whose server promises the whole wheel and hangs up in the middle."""

    def do_GET(self) -> None:
        wheel = next(Path(self.directory).glob("*.whl"))
        page = f'<a href="/{urllib.parse.quote(wheel.name)}">{wheel.name}</a>'.encode()
        is_wheel = self.path.endswith(".whl")
        body = wheel.read_bytes() if is_wheel else page
        self.send_response(200)
        self.send_header("Content-Type", "application/zip" if is_wheel else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if is_wheel else body)


def test_a_connection_that_breaks_leaves_no_wheel(
    tmp_path: Path, shelf: Path, pins: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    with served(shelf, Breaking) as address:
        settings = {
            "PIP_FIND_LINKS": "", "PIP_RETRIES": "0", "PIP_INDEX_URL": f"{address}/simple"
        }  # fmt: skip
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(DownloadError, match="broke off"):
            fetched(tmp_path, pins)
    assert not (tmp_path / "cache" / "wheels").exists()


def test_a_python_without_official_wheels_is_refused_before_the_network(tmp_path: Path) -> None:
    pin = WheelPin(f"torch-9.1.0-cp39-cp39-linux_{platform.machine()}.whl", "0" * 64)
    pins = Releases(tmp_path, "9.1.0", (Release("9.1.0", sample.COMMIT, (pin,)),))
    with pytest.raises(ToolMissingError, match="no official wheel for Python") as caught:
        fetched(tmp_path, pins)
    assert "cp39" in caught.value.why
    assert not (tmp_path / "cache").exists()


CONSTRAINED = """\
The conflict is caused by:
    The user requested torch==9.1.0
    The user requested (constraint) torch<=9.0.1
ERROR: ResolutionImpossible
"""


@pytest.mark.parametrize(
    ("text", "kind", "word"),
    [
        ("NewConnectionError('Failed to establish')", DownloadError, "cannot reach"),
        ("urllib3 IncompleteRead(5 bytes read)", DownloadError, "broke off"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", HashMismatchError, "not the bytes"),
        ("OSError: [Errno 28] No space left on device", OutputError, "disk is full"),
        ("ERROR: No matching distribution found", DownloadError, "found no wheel"),
        (CONSTRAINED, DownloadError, "settings rule out torch 9.1.0: torch<=9.0.1"),
    ],
)
def test_pips_failures_differ(tmp_path: Path, text: str, kind: type[Exception], word: str) -> None:
    error = pip.download_error(process.Outcome(("pip",), 1, "", text), "torch 9.1.0", tmp_path)
    assert type(error) is kind
    assert word in error.what


def test_pips_settings_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = pip.settings_key(tmp_path)
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "7")
    assert pip.settings_key(tmp_path) == plain
    monkeypatch.setenv("PIP_INDEX_URL", "https://example.invalid/simple")
    by_variable = pip.settings_key(tmp_path)
    (tmp_path / "pip.conf").write_text("[global]\nno-index = true\n")
    assert len({plain, by_variable, pip.settings_key(tmp_path)}) == 3
    monkeypatch.setenv("HOME", "~")
    assert pip.settings_key(tmp_path), "where nobody knows the home directory, as pip has it"
