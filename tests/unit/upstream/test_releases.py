"""The pins: complete, checked when read, kept when one is added."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_wheel as sample
from packaging.version import Version
from sample_files import started

from torchfork.errors import ForkError, UnknownReleaseError, UsageError
from torchfork.upstream.pins import Release, WheelName, WheelPin, add, load

EXPECTED = [f"2.{minor}.0" for minor in range(6, 16)]
PATCH_RELEASES = ["2.7.1", "2.9.1", "2.12.1", "2.14.1"]


def test_the_project_pins_every_release_in_order_and_its_default_is_one() -> None:
    pins = load()
    assert pins.versions == sorted(pins.versions, key=Version)
    assert set(pins.versions) >= {*EXPECTED, *PATCH_RELEASES}
    assert pins.get().version == pins.default == "2.13.0"
    assert len({release.commit for release in pins.releases}) == len(pins.versions)


def test_every_release_has_linux_wheels_for_the_pythons_that_it_supports() -> None:
    for release in load().releases:
        tags = release.python_tags("Linux", "x86_64")
        assert {"cp311", "cp312", "cp313"} <= set(tags), release.version
        assert ("cp314" in tags) == (Version(release.version) >= Version("2.9"))
        for machine, system in (("aarch64", "Linux"), ("arm64", "Darwin")):
            assert release.python_tags(system, machine), (release.version, system)


def test_each_wheel_is_pinned_once_and_builds_of_one_python_are_told_apart() -> None:
    pins = [(pin, release) for release in load().releases for pin in release.wheels]
    assert len({pin.sha256 for pin, _ in pins}) == len(pins)
    assert all(pin.name.version.partition("+")[0] == release.version for pin, release in pins)
    found = load().get("2.13.0").wheels_for("cp311", "Linux", "x86_64")
    assert {pin.name.version for pin in found} == {"2.13.0", "2.13.0+cpu"}
    # a local part or a 'v' does not hide a release
    assert load().get("v2.15.0").version == "2.15.0"
    assert load().get("2.6.0+cu124").version == "2.6.0"


def test_an_unknown_version_lists_the_known_ones_and_the_next_command() -> None:
    with pytest.raises(UnknownReleaseError) as caught:
        load().get("3.0.0")
    assert caught.value.exit_code == 20
    assert all(version in caught.value.what for version in EXPECTED)
    assert "scripts/torchfork pin" in caught.value.next


@pytest.mark.parametrize(
    ("platform", "system", "machine", "runs"),
    [
        ("manylinux_2_28_x86_64", "Linux", "x86_64", True),
        ("manylinux1_x86_64", "Linux", "AMD64", True),
        ("manylinux_2_28_x86_64", "Linux", "aarch64", False),
        ("manylinux_2_28_x86_64", "Darwin", "x86_64", False),
        ("macosx_14_0_arm64", "Darwin", "arm64", True),
        ("manylinux_2_28_aarch64", "Linux", "arm64", True),
    ],
)
def test_a_wheel_runs_on_its_own_platform(
    platform: str, system: str, machine: str, runs: bool
) -> None:
    pin = WheelPin(f"torch-9.1.0-cp312-cp312-{platform}.whl", "0" * 64)
    assert pin.runs_on(system, machine) is runs
    name = WheelName.parse(f"torch-2.10.0-3-cp311-cp311-{platform}.whl")
    assert (name.version, name.tag) == ("2.10.0", f"cp311-cp311-{platform}"), "a build number"


def test_a_free_threaded_python_gets_its_own_wheel_and_no_other_python_gets_that() -> None:
    files = [f"torch-9.1.0-cp314-{abi}-linux_x86_64.whl" for abi in ("cp314", "cp314t")]
    pinned = Release("9.1.0", "0" * 40, tuple(WheelPin(file, "0" * 64) for file in files))
    assert pinned.python_tags("Linux", "x86_64") == ["cp314", "cp314t"]
    for tag, file in zip(("cp314", "cp314t"), files, strict=True):
        assert [pin.file for pin in pinned.wheels_for(tag, "Linux", "x86_64")] == [file]


def release(version: str, digit: str, commit: str = sample.COMMIT) -> Release:
    pin = WheelPin(f"torch-{version}-{sample.TAG}.whl", digit * 64)
    return Release(version, commit, (pin,))


def test_adding_a_pin_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    wheel = sample.write_wheel(tmp_path)
    pins = sample.releases(tmp_path / "releases.toml", wheel)
    before = pins.path.read_text()
    added = release("9.1.0", "1")
    after = add(pins, added)
    assert after.get("9.1.0").wheels == (*pins.get("9.1.0").wheels, *added.wheels)
    lines = pins.path.read_text().splitlines()
    assert [line for line in lines if "1" * 64 not in line] == before.splitlines()
    text = pins.path.read_text()
    assert add(after, added) == after and pins.path.read_text() == text


@pytest.mark.parametrize("version", ["8.9.0", "9.1.1", "10.0.0"])
def test_a_new_release_stands_in_the_order_of_the_versions(tmp_path: Path, version: str) -> None:
    pins = add(sample.releases(tmp_path / "releases.toml"), release("9.2.0", "1", "1" * 40))
    after = add(pins, release(version, "2", sample.OTHER_COMMIT))
    assert after.versions == sorted(["9.1.0", "9.2.0", version], key=Version)
    assert after.by_commit(sample.OTHER_COMMIT) == after.get(version)
    text = pins.path.read_text()
    assert text.count("\n\n[[release]]\n") == 3 and "\n\n\n" not in text


def test_a_linked_file_its_mode_and_its_line_ends_stay(tmp_path: Path) -> None:
    pins = sample.releases(tmp_path / "elsewhere" / "pins.toml")
    pins.path.write_bytes(pins.path.read_bytes().replace(b"\n", b"\r\n"))
    pins.path.chmod(0o664)
    link = tmp_path / "releases.toml"
    link.symlink_to(pins.path)
    after = add(load(link), release("9.1.0", "1"))
    assert link.is_symlink() and len(after.get("9.1.0").wheels) == 1
    assert pins.path.stat().st_mode & 0o777 == 0o664
    data = pins.path.read_bytes()
    assert data.count(b"\n") == data.count(b"\r\n") > 5


def test_pins_that_are_added_at_once_all_arrive(tmp_path: Path) -> None:
    pins = sample.releases(tmp_path / "releases.toml")
    program = (
        "import sys; from pathlib import Path; from torchfork.upstream.pins import *\n"
        "pins, digit = load(Path(sys.argv[1])), sys.argv[2]\n"
        "pin = WheelPin(f'torch-9.1.0-{digit}-cp311-cp311-linux_x86_64.whl', digit * 64)\n"
        f"add(pins, Release('9.1.0', {sample.COMMIT!r}, (pin,)))\n"
    )
    running = [started(program, pins.path, n) for n in range(6)]
    assert [process.wait() for process in running] == [0] * 6
    assert {pin.sha256 for pin in load(pins.path).get("9.1.0").wheels} == {
        str(n) * 64 for n in range(6)
    }


RELEASE = 'default = "1"\n[[release]]\nversion="1"\ncommit="{}"\nwheels=[{}]'
ZEROS = "0" * 40


@pytest.mark.parametrize(
    ("text", "error", "why"),
    [
        ("default = ", UsageError, "Invalid value"),
        ('default = "1"\n', UsageError, "release"),
        (RELEASE.format("main", ""), UsageError, "40 hexadecimal"),
        (RELEASE.format(ZEROS, '{file="torch-1-cp311-cp311-x.whl", sha256="12"}'), UsageError,
         "64 hexadecimal"),
        (RELEASE.format(ZEROS, f'{{file="numpy-1-cp311-cp311-x.whl", sha256="{"0" * 64}"}}'),
         UsageError, "not the name of a torch wheel"),
        ('default = "2"\nrelease = []\n', UnknownReleaseError, "a base is trusted by"),
    ],
)  # fmt: skip
def test_bad_pins_are_named(tmp_path: Path, text: str, error: type[ForkError], why: str) -> None:
    path = tmp_path / "releases.toml"
    path.write_text(text)
    with pytest.raises(error) as caught:
        load(path)
    assert why in caught.value.why and str(path) in caught.value.where


def test_another_commit_and_a_name_that_is_no_wheels_never_reach_the_file(tmp_path: Path) -> None:
    pins = sample.releases(tmp_path / "releases.toml")
    before = pins.path.read_bytes()
    with pytest.raises(UsageError, match="commit"):
        add(pins, release("9.1.0", "3", sample.OTHER_COMMIT))
    odd = WheelPin('torch-9.1.0-cp311-cp311-x"}] evil = [{a="b.whl', "1" * 64)
    with pytest.raises(UsageError, match="malformed"):
        add(pins, Release("9.1.0", sample.COMMIT, (odd,)))
    assert pins.path.read_bytes() == before
