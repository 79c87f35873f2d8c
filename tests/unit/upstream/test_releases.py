"""The pins: complete, checked when read, kept when one is added."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_wheel as sample
from packaging.version import Version

from torchfork.errors import UnknownReleaseError, UsageError
from torchfork.upstream import pins as module
from torchfork.upstream.pins import WheelPin, add_pin, load

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


def test_no_sha256_is_pinned_twice() -> None:
    hashes = [pin.sha256 for release in load().releases for pin in release.wheels]
    assert len(hashes) == len(set(hashes))


def test_the_cpu_wheel_and_the_cuda_wheel_of_one_release_are_both_known() -> None:
    found = load().get("2.13.0").wheels_for("cp311", "Linux", "x86_64")
    assert {pin.version for pin in found} == {"2.13.0", "2.13.0+cpu"}


def test_a_local_part_or_a_v_does_not_hide_a_release() -> None:
    assert load().get("v2.15.0").version == "2.15.0"
    assert load().get("2.6.0+cu124").version == "2.6.0"


def test_an_unknown_version_lists_the_known_ones_and_the_next_command() -> None:
    with pytest.raises(UnknownReleaseError) as caught:
        load().get("3.0.0")
    assert caught.value.exit_code == 20
    assert all(version in caught.value.what for version in EXPECTED)
    assert "scripts/torchfork pin" in caught.value.next


def test_a_platform_is_matched_with_its_own_wheels_only() -> None:
    def pin(platform: str) -> WheelPin:
        return WheelPin(f"torch-9.1.0-cp312-cp312-{platform}.whl", "0" * 64)

    assert pin("manylinux_2_28_x86_64").runs_on("Linux", "x86_64")
    assert pin("manylinux1_x86_64").runs_on("Linux", "AMD64")
    assert not pin("manylinux_2_28_x86_64").runs_on("Linux", "aarch64")
    assert not pin("manylinux_2_28_x86_64").runs_on("Darwin", "x86_64")
    assert pin("macosx_14_0_arm64").runs_on("Darwin", "arm64")
    assert pin("manylinux_2_28_aarch64").runs_on("Linux", "arm64")


def test_a_build_number_does_not_shift_the_tags() -> None:
    pin = WheelPin("torch-2.10.0-3-cp311-cp311-manylinux_2_28_x86_64.whl", "0" * 64)
    assert (pin.version, pin.python_tag) == ("2.10.0", "cp311")


def test_adding_a_pin_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    wheel = sample.write_wheel(tmp_path)
    pins = sample.releases(tmp_path / "releases.toml", wheel)
    before = pins.path.read_text()
    added = WheelPin(f"torch-9.1.0-{sample.TAG}.whl", "1" * 64)
    after = add_pin(pins, "9.1.0", sample.COMMIT, added)
    assert after.get("9.1.0").wheels == (*pins.get("9.1.0").wheels, added)
    assert [line for line in pins.path.read_text().splitlines() if added.sha256 not in line] == (
        before.splitlines()
    )
    assert add_pin(after, "9.1.0", sample.COMMIT, added) is after


def test_a_pin_of_a_new_version_adds_its_release(tmp_path: Path) -> None:
    pins = sample.releases(tmp_path / "releases.toml")
    added = WheelPin(f"torch-9.2.0-{sample.TAG}.whl", "2" * 64)
    after = add_pin(pins, "9.2.0", sample.OTHER_COMMIT, added)
    assert after.versions == ["9.1.0", "9.2.0"]
    assert after.by_commit(sample.OTHER_COMMIT) == after.get("9.2.0")


def test_a_pin_with_another_commit_than_its_release_is_refused(tmp_path: Path) -> None:
    pins = sample.releases(tmp_path / "releases.toml")
    with pytest.raises(UsageError, match="commit"):
        add_pin(pins, "9.1.0", sample.OTHER_COMMIT, WheelPin("torch-9.1.0-x-cp3-x-x.whl", "3" * 64))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("default = ", "Invalid value"),
        ('default = "1"\n', "release"),
        ('default = "1"\n[[release]]\nversion="1"\ncommit="main"\nwheels=[]', "40 hexadecimal"),
        (
            f'default = "1"\n[[release]]\nversion="1"\ncommit="{"0" * 40}"\n'
            'wheels=[{file="torch-1-cp311-cp311-x.whl", sha256="12"}]',
            "64 hexadecimal",
        ),
        (
            f'default = "1"\n[[release]]\nversion="1"\ncommit="{"0" * 40}"\n'
            f'wheels=[{{file="numpy-1-cp311-cp311-x.whl", sha256="{"0" * 64}"}}]',
            "not the name of a torch wheel",
        ),
    ],
)
def test_malformed_pins_are_named(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "releases.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert why in caught.value.why and str(path) in caught.value.where


def test_a_default_that_is_not_pinned_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "releases.toml"
    path.write_text('default = "2"\nrelease = []\n')
    with pytest.raises(UnknownReleaseError):
        load(path)


def test_the_pins_lie_where_the_documentation_says() -> None:
    assert module.PINS.parts[-2:] == ("ci", "releases.toml")
