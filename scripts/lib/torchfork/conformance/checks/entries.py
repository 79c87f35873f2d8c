"""The manifest's entries; known on both sides, so without torch."""

from __future__ import annotations

from typing import Any

Entry = dict[str, Any]


def spelled(entry: Entry) -> str:
    """'name' or 'name.overload' of a manifest's entry."""
    return f"{entry['name']}.{entry['overload']}" if entry["overload"] else str(entry["name"])
