"""The trial of the generator is made once for the same additions, and again until it passes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import sample_additions as sample

from torchfork.additions import merge
from torchfork.codegen import build_dir, client
from torchfork.codegen.model import Manifest
from torchfork.errors import AdditionsError, ForkError
from torchfork.pipelines import graft
from torchfork.util.ui import Ui


def test_a_trial_is_made_again_until_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, additions = sample.base(tmp_path / "base"), sample.write(tmp_path / "additions")
    layout = build_dir.for_base(base, additions, tmp_path / "work")
    context = graft.BuildContext(base, additions, layout)
    outcomes: list[ForkError | None] = [AdditionsError("one"), None, None]

    def try_sources(*_arguments: object) -> None:
        if (error := outcomes.pop(0)) is not None:
            raise error

    monkeypatch.setattr(client, "try_sources", try_sources)

    merged = graft.Merged(merge.prepare(base, additions, layout.tree), Manifest((), ()), {})
    tried = partial(graft.try_generator, context, merged, Ui(quiet=True))
    with pytest.raises(AdditionsError):
        tried()
    tried()
    tried()
    assert len(outcomes) == 1, "it was made again though nothing changed"
    with (layout.tree / merge.MERGED_FILES["derivatives"]).open("a") as stream:
        stream.write("# changed\n")
    tried()
    assert not outcomes
