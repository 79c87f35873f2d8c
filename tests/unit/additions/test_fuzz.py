"""Whatever the files of additions hold, reading and checking them ends in a named error or not at
all: never in a traceback, and within a bounded time.
"""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import sample_additions as sample
from hypothesis import given, settings
from hypothesis import strategies as st

from torchfork.additions import formulas, load, validate
from torchfork.errors import ForkError
from torchfork.upstream.base import Upstream

EXAMPLES = int(os.environ.get("TORCHFORK_FUZZ_EXAMPLES", "150"))
UPSTREAM = Upstream(
    ("relu(Tensor self) -> Tensor",), frozenset({"core"}), frozenset({"CPU"}),
    {"torch": frozenset({"save"})},
)  # fmt: skip
SCOPE = formulas.Scope(frozenset(), frozenset({"relu"}), "int f(int);", frozenset(), set, set)

# Pieces that YAML, schemas and formulas are made of, and what breaks readers of them.
PIECES = st.sampled_from(
    ["- ", "func", "name", ": ", "\n", "\n  ", "\n    ", "dispatch", "variants", "autogen", "tags",
     "self", "(", ")", "Tensor self", "-> ", "Tensor", "[", "]", "{", "}", ",", "!!int ", "!!bool ",
     "!", "&a ", "*a", "<<", "? ", "|", ">", "%", "@", "`", "'", '"', "#", "0x_", "2020-99-99", "~",
     "relu", "save", "result1", "grad", "::", ".", "\\", "\t", "\x07", "\x85", "\ufeff",
     "\U0001f600", "python_module", "nn", "true", "---", "...", "=", "1e999", "structured",
     "CPU, CUDA"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=40).map("".join)
ENTRY = st.sampled_from(["- func: ", "- name: "])
SCHEMAS = st.lists(PIECES, max_size=12).map("".join)


def read_and_check(native: bytes, derivatives: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / load.NATIVE).write_bytes(native)
        (root / load.DERIVATIVES).write_bytes(derivatives)
        try:
            additions = load.load(root)
            list(validate.objections(additions, UPSTREAM, "9.1.0"))
            formulas.scope_objections(additions, SCOPE)
        except ForkError as error:
            assert error.render()


@settings(max_examples=EXAMPLES, deadline=timedelta(seconds=5))
@given(TEXTS, TEXTS)
def test_any_text_is_read_or_refused(native: str, derivatives: str) -> None:
    read_and_check(native.encode(), derivatives.encode())


@settings(max_examples=EXAMPLES, deadline=timedelta(seconds=5))
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(native: bytes, derivatives: bytes) -> None:
    read_and_check(native, derivatives)


@settings(max_examples=EXAMPLES, deadline=timedelta(seconds=5))
@given(SCHEMAS, SCHEMAS, TEXTS)
def test_any_schema_field_and_formula_is_checked_or_refused(
    schema: str, field: str, formula: str
) -> None:
    quoted = repr(schema)
    native = f"- func: {quoted}\n  dispatch:\n    CPU: x\n  {field}: {formula}\n"
    read_and_check(native.encode(), f"- name: {quoted}\n  {field}: {formula!r}\n".encode())


def test_the_sample_is_read(tmp_path: Path) -> None:
    """The fuzzed reader accepts what is fine."""
    sample.write(tmp_path, sample.NATIVE, sample.DERIVATIVES)
    read_and_check(sample.NATIVE.encode(), sample.DERIVATIVES.encode())
