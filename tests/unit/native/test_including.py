"""Which of the additions' files a check compiles as one: only those that can borrow no header."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchfork.native import fast_compile
from torchfork.native.including import Headers
from torchfork.native.units import CompileStep

UPSTREAM = {
    "ATen/core/Tensor.h": "#include <c10/Tensor.h>\n#include <vector>\n",
    "c10/Tensor.h": "#pragma once\n",
    "ATen/Parallel.h": "#include <ATen/core/Tensor.h>\n",
    "ATen/Functions.h": "#include <ATen/Everything.h>\n",
    "ATen/ops/cat.h": "#include <ATen/core/Tensor.h>\n",
    "ATen/ops/mul_native.h": "#include <ATen/core/Tensor.h>\n",
}
TENSOR = "#include <ATen/core/Tensor.h>\n"
GUARDED = "#define TORCH_ASSERT_ONLY_METHOD_OPERATORS\n"


class Tree:
    """Upstream's headers and additions that include them."""

    def __init__(self, root: Path) -> None:
        self.build, self.own, self.upstream = root / "build", root / "own", root / "upstream"
        for name, text in UPSTREAM.items():
            self.write(self.upstream / name, text)
        self.headers = Headers([self.own, self.upstream], self.own)

    def write(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def unit(self, name: str, text: str) -> CompileStep:
        self.write(self.build / name, text)
        return CompileStep(name, f"additions/{name}.o", "cxx", ("-O0",), False, True)

    def together(self, first: str, second: str) -> bool:
        """Whether the second, which reaches as much or more, is put after the first."""
        units = [self.unit("A.cpp", first), self.unit("B.cpp", second)]
        made = fast_compile.unite(units, self.build, self.headers)
        if made == units:
            return False
        (one,) = made
        text = (self.build / one.source).read_text()
        assert text.index("A.cpp") < text.index("B.cpp") and one.ours
        return True


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_source_reaches_what_its_headers_reach_and_its_own_ones_text(tree: Tree) -> None:
    tree.write(tree.own / "ATen" / "Ours.h", "#include <ATen/Parallel.h>\nint ours();\n")
    text = (
        "#define TORCH_ASSERT_NO_OPERATORS\n#include <ATen/Ours.h>\n"
        "#ifndef AT_PER_OPERATOR_HEADERS\n#include <ATen/Functions.h>\n"
        "#else\n#include <ATen/ops/cat.h>\n#endif\n#ifdef X\n#include <cmath>\n#endif\n"
    )
    found = tree.headers.source(tree.write(tree.build / "A.cpp", text))
    upstreams = {"ATen/Parallel.h", "ATen/core/Tensor.h", "c10/Tensor.h", "ATen/ops/cat.h"}
    assert found.reaches == upstreams | {"vector", "cmath"}
    assert "ours" in found.words and found.guards == {"TORCH_ASSERT_NO_OPERATORS"}


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        (TENSOR, TENSOR + "#include <ATen/Parallel.h>\n", True),
        # The second would be lent what Parallel.h declares.
        (TENSOR + "#include <ATen/Parallel.h>\n", TENSOR + "#include <cmath>\nparallel();", False),
        ("#include <array>\n", TENSOR, False),
        # An operator's header: it matters to who names the operator.
        (TENSOR + "#include <ATen/ops/cat.h>\n", TENSOR + "#include <cmath>\n", True),
        (TENSOR + "#include <ATen/ops/cat.h>\n", TENSOR + "#include <cmath>\ncat_out(x);", False),
        (
            TENSOR + "#include <ATen/ops/mul_native.h>\n",
            TENSOR + "#include <cmath>\nTORCH_IMPL_FUNC(structured_mul_out) {}",
            False,
        ),
        # Another set of headers is refused to it.
        (TENSOR, GUARDED + TENSOR, False),
        # The same set is refused to both: the macro is each one's own, and undefined in between.
        (GUARDED + TENSOR, GUARDED + TENSOR + "#include <cmath>\n", True),
        # Both define a name.
        (TENSOR + "constexpr int kRows = 1;\n", TENSOR + "const int kRows = 2;\n", False),
        (TENSOR + "Tensor check(int n) {\n", TENSOR + "void check(int n) {\n", False),
        (TENSOR + "using Rows = int;\n", TENSOR + "struct Rows {\n", False),
    ],
)  # fmt: skip
def test_a_file_stands_after_another_only_where_it_can_borrow_nothing(
    tree: Tree, first: str, second: str, fits: bool
) -> None:
    assert tree.together(first, second) is fits


def test_without_headers_to_look_at_every_file_of_the_additions_stays_alone(tree: Tree) -> None:
    units = [tree.unit("A.cpp", TENSOR), tree.unit("B.cpp", TENSOR)]
    assert fast_compile.unite(units, tree.build) == units


def test_sources_beside_a_build_directory_that_is_not_made_yet_are_found(tree: Tree) -> None:
    for name in ("A.cpp", "B.cpp"):
        tree.write(tree.own / name, TENSOR)
    units = [
        CompileStep(f"../own/{name}.cpp", f"additions/{name}.o", "cxx", ("-O0",), False, True)
        for name in ("A", "B")
    ]
    (made,) = fast_compile.unite(units, tree.build, tree.headers)
    assert '#include "../../own/A.cpp"' in (tree.build / made.source).read_text()
