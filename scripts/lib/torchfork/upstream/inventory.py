"""What a base has, by its code generator: the names that additions must not collide with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Upstream:
    """The functions, tags and dispatch keys of an unmodified base."""

    schemas: tuple[str, ...]
    tags: frozenset[str]
    dispatch_keys: frozenset[str]

    def by_name(self) -> dict[str, str]:
        """Schemas by operator name with overload."""
        return {schema.partition("(")[0]: schema for schema in self.schemas}
