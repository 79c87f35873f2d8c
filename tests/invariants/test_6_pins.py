"""Invariant 6: pins are commits and sha256; nothing is used before it was hashed."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path

import pytest
from command import Command

from torchfork.upstream import pins
from torchfork.upstream.base import Base, probe
from torchfork.util import cache
from torchfork.util.files import sha256_file

PINS = pins.load()


def test_6_every_release_is_pinned_by_its_commit_and_every_wheel_by_its_sha256() -> None:
    assert len(PINS.releases) >= 10
    for release in PINS.releases:
        assert re.fullmatch(r"[0-9a-f]{40}", release.commit), release.version
        assert release.wheels, release.version
        for pin in release.wheels:
            assert re.fullmatch(r"[0-9a-f]{64}", pin.sha256), pin.file
            assert pin.name.version.partition("+")[0] == release.version, pin.file
    hashes = [pin.sha256 for release in PINS.releases for pin in release.wheels]
    assert len(hashes) == len(set(hashes))


@pytest.mark.wheel
def test_6_the_official_wheel_is_the_pinned_one(base: Base) -> None:
    assert base.wheel is not None
    known = {pin.sha256: release for release in PINS.releases for pin in release.wheels}
    release = known[sha256_file(base.wheel)]
    assert (release.version, release.commit) == (base.public_version, base.git_version)


@pytest.mark.wheel
def test_6_one_changed_byte_under_the_official_name_is_refused_before_unpacking(
    base: Base, command: Command, tmp_path: Path
) -> None:
    """A comment at the end of the archive: every member is still as RECORD says."""
    assert base.wheel is not None
    altered = tmp_path / base.wheel.name
    shutil.copyfile(base.wheel, altered)
    with zipfile.ZipFile(altered, "a") as archive:
        archive.comment = b"x"
    store = tmp_path / "cache"
    answer = Command(tmp_path, ("--base", str(altered))).run("check", TORCHFORK_CACHE=str(store))
    answer.assert_error(22, sha256_file(altered)[:16])
    assert not list(store.glob("unpacked/*"))


@pytest.mark.wheel
def test_6_the_cache_keeps_each_wheel_under_its_sha256(base: Base) -> None:
    target = probe(headers=False)
    kept = [
        path
        for path in (cache.directory() / "wheels").glob("*/torch-*.whl")
        if target.tag in path.name and path.stat().st_size < 300_000_000
    ]
    if not kept:
        pytest.skip("the wheel under test is a file, and the cache has no other")
    for path in kept:
        assert sha256_file(path) == path.parent.name
