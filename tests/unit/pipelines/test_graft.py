"""What a graft says of additions that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.codegen import build_dir
from torchfork.codegen.model import Manifest
from torchfork.errors import AdditionsError, ForkError, KernelError
from torchfork.pipelines import graft
from torchfork.upstream.base import Upstream


def test_an_entry_that_the_parser_refuses_is_not_said_to_lack_kernels_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    additions = sample.write(tmp_path / "a")
    base = sample.base(tmp_path / "base")
    layout = build_dir.for_base(base, additions, tmp_path / "work")
    context = graft.BuildContext(base, additions, layout)
    upstream = Upstream((), frozenset(), frozenset({"CPU", "CompositeExplicitAutograd"}))
    swing, sway = additions.native.entries

    def describe(context: graft.BuildContext, *_: object) -> Manifest:
        if swing in context.additions.native.entries:
            raise AdditionsError("malformed", where=swing.where())
        return Manifest()

    monkeypatch.setattr(graft, "merge_yaml", lambda *_: None)
    monkeypatch.setattr(graft, "describe", describe)
    missing = [KernelError("missing", where=entry.where("dispatch")) for entry in (swing, sway)]
    elsewhere = KernelError("hidden", where=f"{tmp_path}/a/aten_src/native/X.cpp:3")
    with pytest.raises(ForkError) as caught:
        graft.merge_and_parse(context, upstream, None, lambda: [*missing, elsewhere])
    found = {error.where for error in (caught.value, *caught.value.also)}
    assert found == {swing.where(), sway.where("dispatch"), elsewhere.where}
