"""Invariant 2: a base whose YAML does not regenerate its headers is refused, the file named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from torchfork.codegen import client, header_check
from torchfork.errors import BaseRefusedError
from torchfork.upstream.base import Base

pytestmark = pytest.mark.wheel

RELU = "torch/include/ATen/ops/relu.h"
NATIVE = "torchgen/packaged/ATen/native/native_functions.yaml"


@pytest.fixture(scope="module")
def generated(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the untouched base's generator makes."""
    return regenerated(base, tmp_path_factory.mktemp("generated"))


def regenerated(base: Base, scratch: Path) -> Path:
    home = scratch / "home"
    home.mkdir()
    (home / "torchgen").symlink_to(base.root / "torchgen")
    client.regenerate_base(home, scratch / "out", scratch)
    return scratch / "out"


@pytest.fixture
def copy(base: Base, tmp_path: Path) -> Base:
    """The base with headers and a generator that may be edited; hard links save the copying."""
    root = tmp_path / "base"
    for part in ("torch/include", "torchgen"):
        shutil.copytree(base.root / part, root / part, copy_function=link)
    return replace(base, root=root, headers=None)


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copy2(source, target)


def edit(path: Path, change: Callable[[str], str]) -> None:
    """Replace a file, so that what it is linked to stays as it was."""
    text = change(path.read_text(encoding="utf-8"))
    path.unlink()
    path.write_text(text, encoding="utf-8")


def test_2_an_untouched_base_passes(base: Base, generated: Path) -> None:
    assert header_check.compare_headers(base, generated).compared > 5000


def test_2_a_base_with_an_edited_header_is_refused_and_the_header_named(
    copy: Base, generated: Path
) -> None:
    edit(copy.root / RELU, lambda text: text + "#define MORE\n")
    with pytest.raises(BaseRefusedError) as caught:
        header_check.compare_headers(copy, generated)
    assert RELU in caught.value.what and caught.value.where == str(copy.root / RELU)


def test_2_a_base_with_an_edited_yaml_is_refused_and_a_header_named(
    copy: Base, tmp_path: Path
) -> None:
    """An operator more in the YAML than was compiled in."""
    more = "\n- func: wt_more(Tensor self) -> Tensor\n"
    edit(copy.root / NATIVE, lambda text: text + more)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(BaseRefusedError) as caught:
        header_check.compare_headers(copy, regenerated(copy, scratch))
    assert "torch/include/ATen/" in caught.value.what
    assert caught.value.exit_code == 23
