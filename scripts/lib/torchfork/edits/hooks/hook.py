"""What a hook is: a file, a place in it, and what stands there for a given manifest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...codegen.model import Manifest
from ...util.blocks import Anchor

Render = Callable[[Manifest, str], list[str]]


@dataclass(frozen=True)
class ListEdit:
    """One insertion. `render(manifest, upstream's text)` gives its lines; none for no block."""

    path: str
    anchor: Anchor
    render: Render
    indent: str = ""
    comment: str = "#"
