"""The verification passes the wheel, and sees one schema of upstream's that differs."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from subject import Subject

from torchfork.codegen.model import Manifest
from torchfork.errors import VerificationError
from torchfork.upstream.base import Base
from torchfork.util import cache, memo
from torchfork.wheel.verify import verify


def test_the_wheel_passes_and_a_changed_upstream_schema_is_named(
    subject: Subject, base: Base, added: Manifest, tmp_path: Path
) -> None:
    """Invariant 1, both ways: the base's list as it is, and with one schema of it edited.

    The cache is a test's own, into which the base's true operator set is copied where it is known.
    """
    known = cache.directory() / "schemas"
    if known.is_dir():
        shutil.copytree(known, tmp_path / "cache" / "schemas")
    run = partial(verify, subject.wheel.path, base, added, tmp_path / "work", tmp_path / "cache")
    report = run()
    assert report.version == subject.wheel.version
    assert set(report.added) >= {"aten::" + op.name for op in added.operators if not op.overload}
    note, key = tmp_path / "cache" / "schemas" / f"{base.identity}.json", base.identity
    true = memo.recall(note, key, dict[str, str])
    assert true is not None and len(true) == report.upstream_operators > 1000
    relu = "aten::relu(Tensor self) -> Tensor"
    assert true["aten::relu"] == relu
    memo.keep(note, key, {**true, "aten::relu": relu.replace("self", "input")})
    with pytest.raises(VerificationError) as caught:
        run()
    assert caught.value.exit_code == 40
    assert f"changed: {relu}" in str(caught.value)
    assert "was: aten::relu(Tensor input) -> Tensor" in str(caught.value)
    assert str(caught.value).count("changed: ") == 1
