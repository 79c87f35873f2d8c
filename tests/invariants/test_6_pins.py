"""Invariant 6: pins are commits and sha256; nothing is used before it was hashed."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from command import Command

from torchfork.upstream import pins
from torchfork.upstream.base import Base
from torchfork.util.files import sha256_file

pytestmark = pytest.mark.wheel


def test_6_the_official_wheel_is_the_pinned_one(base: Base) -> None:
    assert base.wheel is not None
    known = {pin.sha256: release for release in pins.load().releases for pin in release.wheels}
    release = known[sha256_file(base.wheel)]
    assert (release.version, release.commit) == (base.public_version, base.git_version)


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
