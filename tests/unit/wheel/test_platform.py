"""The platform tag: a wheel must not promise an older system than its libraries load on."""

import shutil
import subprocess
from pathlib import Path

import pytest

from torchfork.wheel.platform_tag import needed_glibc, raised_tag

TAG = "cp311-cp311-manylinux_2_28_x86_64"


def test_a_tag_that_promises_enough_stays() -> None:
    assert raised_tag(TAG, (2, 17)) == TAG
    assert raised_tag("cp311-cp311-linux_x86_64", (2, 40)) == "cp311-cp311-linux_x86_64"


def test_a_tag_that_promises_too_much_is_raised() -> None:
    assert raised_tag(TAG, (2, 34)) == "cp311-cp311-manylinux_2_34_x86_64"
    assert raised_tag("cp311-cp311-manylinux1_x86_64", (2, 14)) == (
        "cp311-cp311-manylinux_2_14_x86_64"
    )


def test_platforms_of_a_compressed_tag_are_raised_to_one() -> None:
    both = "cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64"
    assert raised_tag(both, (2, 28)) == TAG


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler to make a library")
def test_the_newest_symbol_version_of_a_library_is_found(tmp_path: Path) -> None:
    source, library = tmp_path / "x.c", tmp_path / "x.so"
    source.write_text('#include <stdio.h>\nvoid f(void) { puts("x"); }\n')
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library], check=True)
    assert (2, 0) < needed_glibc([library]) < (2, 99)
