"""torchfork check: everything about additions that can be told without a compiler, in seconds."""

from __future__ import annotations

from pathlib import Path

from ..additions.load import load as load_additions
from ..codegen import gating
from ..pipelines import graft, workdir
from ..util import cache
from ..util.ui import Ui
from .options import BaseOptions, open_base


def run(base_options: BaseOptions, root: Path, work: Path, ui: Ui) -> None:
    """Read, merge and validate additions against a base."""
    additions = load_additions(root)
    base = open_base(base_options, ui, headers=False)
    gated = gating.check_headers(base, cache.directory(), ui)
    layout = workdir.layout_for(base, additions, work)
    with workdir.locked(layout, ui):
        _, manifest = graft.merge_and_validate(base, additions, gated, layout, ui)
    names = manifest.base_names
    ui.note(f"\n{root} is fine for torch {base.version}: {', '.join(names) or 'nothing is added'}")
