"""torchfork env: what a source build would set, where each value comes from, and who reads it."""

from __future__ import annotations

from pathlib import Path

from ..errors import BaseRefusedError
from ..pipelines import source_build
from ..upstream import sources, tree
from ..upstream.sources import SourceCheckout
from ..util.ui import Ui

_ORIGINS = {
    "user": "you set it",
    "machine": "this machine",
    "source": "this tree's source",
    "default": "default",
}


def run(root: Path | None, number: int, *, shell: bool, ui: Ui) -> None:
    """Print the settings for a tree; with `shell` as lines for a shell, the table beside them."""
    opened = sources.with_pieces(_tree(root))
    version = source_build.wheel_version(opened, number)
    settled = source_build.resolve_settings(opened, _environment_of(opened), version)
    show = ui.note if shell else ui.result
    for setting in settled:
        value = setting.value or "(empty)"
        show(f"{setting.name}={value}")
        read = f"read by {setting.read_by}" if setting.read_by else "nothing in this tree reads it"
        show(f"    {_ORIGINS[setting.origin]}: {setting.reason}; {read}")
    if shell:
        for setting in settled:
            ui.result(setting.line)


def _tree(root: Path | None) -> tree.SourceTree:
    try:
        return tree.open_tree(root or Path())
    except BaseRefusedError as error:
        if root is not None:
            raise
        raise BaseRefusedError(
            "the environment of a build depends on the tree, and this directory is none",
            where=str(Path().absolute()),
            why=error.why,
            next="name the tree: scripts/torchfork env TREE; scripts/build_torch.sh --from-source "
            "--source ... --until fetch gets one",
        ) from error


def _environment_of(opened: SourceCheckout) -> Path | None:
    """The build environment that lies beside a tree which torchfork fetched, if it was made."""
    beside = opened.tree.root.parent.parent if opened.prefix else opened.tree.root.parent
    made = sorted(beside.glob("env-cp*/bin/python"))
    return made[-1] if made else None
