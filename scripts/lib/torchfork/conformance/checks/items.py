"""The list: every item of first-class citizenship, in the order of the table."""

from __future__ import annotations

from . import (
    behaviour,
    bindings,
    compiling,
    documents,
    dtypes,
    faking,
    gradients,
    native,
    overriding,
    scripting,
    tooling,
    transforms,
    variants,
)
from .bench import Item

FAMILIES = (
    bindings, native, gradients, faking, compiling, transforms, scripting, overriding, behaviour,
    dtypes, variants, documents, tooling,
)  # fmt: skip
ITEMS: dict[str, Item] = {item.title: item for family in FAMILIES for item in family.ITEMS}
