"""Each item of citizenship holds for an operator of upstream's, and fails where it must."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stand_ins import (
    Cubed,
    Doubled,
    Wrong,
    bench,
    broken,
    declared,
    entry,
    looping_backward,
    outcome,
    upstreams,
)

from torchfork.conformance.checks import cpp, graphs, programs, tools
from torchfork.conformance.checks.bench import CheckFailed, Unavailable, failing
from torchfork.conformance.checks.items import BY_TITLE as ITEMS
from torchfork.conformance.checks.operators import Operator

Break = Callable[[pytest.MonkeyPatch], Operator]
NEEDS_A_GPU = ("CUDA gives what CPU gives", "CUDA graphs")
# Of the whole environment: tested below with what the other operators are tested with.
FOR_ALL = ("C++ extension: at::, tensor.", "C++ from CMake", "type stubs: mypy",
           "type stubs: pyright")  # fmt: skip


@pytest.fixture(autouse=True)
def place(tmp_path: Path) -> Path:
    programs.write_to(tmp_path / "programs")
    return tmp_path


def in_python(patch: pytest.MonkeyPatch) -> Operator:
    """torch.sigmoid is a function in Python instead of the builtin."""
    patch.setattr(torch, "sigmoid", lambda input: torch.tanh(input))
    patch.setattr(torch.Tensor, "sigmoid", lambda self: torch.tanh(self))
    return upstreams()


def without_documents(patch: pytest.MonkeyPatch) -> Operator:
    """A name that upstream's documents do not have."""
    declared("citizen_plain(Tensor self) -> Tensor", Meta=torch.empty_like)
    patch.setattr(torch, "citizen_plain", lambda input: input * 2, raising=False)
    return Operator(
        entry("citizen_plain(Tensor self) -> Tensor", python_function=True), (), False, False
    )


def ignores_strides(x: torch.Tensor) -> torch.Tensor:
    """Reads the memory as if it were contiguous."""
    strides = torch.empty_like(x, memory_format=torch.contiguous_format).stride()
    return x.as_strided(x.shape, strides) * 2


def grows_in_graphs(x: torch.Tensor) -> torch.Tensor:
    """Asks for the sizes as numbers."""
    return x.new_empty([int(size) for size in x.shape])


def differentiable(function: Any) -> dict[str, Any]:
    return {"AutogradCPU": function.apply}


def composite() -> Operator:
    declared("citizen_composite(Tensor self) -> Tensor", key="CompositeImplicitAutograd")
    return Operator(entry("citizen_composite(Tensor self) -> Tensor"), (), False, False)


def refuses_mixed(patch: pytest.MonkeyPatch) -> Operator:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("expected float")
        return x * 2

    op = broken("narrow", CPU=kernel, changes={"python_function": True})
    patch.setattr(torch, "citizen_narrow", torch.ops.aten.citizen_narrow, raising=False)
    return op


def writes_nothing(patch: pytest.MonkeyPatch) -> Operator:
    schema = "citizen_unwritten.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)"
    op = broken("unwritten")
    declared(schema, CPU=lambda x, *, out: out)
    return replace(op, variants=(entry(schema, kind="out"),))


def generated_out_writes_nothing(patch: pytest.MonkeyPatch) -> Operator:
    op = writes_nothing(patch)
    return replace(op, variants=(replace(op.variants[0], generated=True),))


def no_python_out(patch: pytest.MonkeyPatch) -> Operator:
    """Declared, right in torch.ops, and the Python function does not take out=."""
    patch.setattr(torch, "sigmoid", lambda input: torch.sigmoid_(input.clone()))
    return upstreams()


def in_place_elsewhere(patch: pytest.MonkeyPatch) -> Operator:
    schema = "citizen_elsewhere_(Tensor(a!) self) -> Tensor(a!)"
    op = broken("elsewhere")
    declared(schema, CPU=lambda x: x * 2)
    return replace(op, variants=(entry(schema, kind="inplace"),))


def mumbles(patch: pytest.MonkeyPatch) -> Operator:
    def mumbling(input: Any) -> Any:
        raise ValueError("no")

    patch.setattr(torch, "sigmoid", mumbling)
    return upstreams()


def refuses(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no data, no result")


def refuses_empty(x: torch.Tensor) -> torch.Tensor:
    if x.numel() == 0:
        raise RuntimeError("no elements")
    return torch.empty_like(x)


BREAKS: dict[str, Break] = {
    "schema in torch.ops.aten": lambda _: replace(
        upstreams(),
        entry=replace(upstreams().entry, schema="sigmoid(Tensor x) -> Tensor"),
    ),
    "Python builtin": in_python,
    "Tensor method": in_python,
    "signature": in_python,
    "autograd node by its name": lambda _: broken("node", formula=True, **differentiable(Doubled)),
    "gradcheck": lambda _: broken("wrong", formula=True, **differentiable(Wrong)),
    "gradgradcheck": lambda _: broken("cubed", formula=True, **differentiable(Cubed)),
    "forward-mode AD": lambda _: broken("node", formula=True, **differentiable(Doubled)),
    "batched gradients": lambda _: broken(
        "loops", formula=True, **differentiable(looping_backward())
    ),
    "opcheck": lambda _: broken("alias", CPU=lambda x: x.view(x.shape)),
    "FakeTensor, meta: same strides": lambda _: broken(
        "strides", CPU=lambda x: x.mT.contiguous().mT if x.dim() > 1 else x.clone()
    ),
    "SymInt shapes: one graph": lambda _: broken("specialised", Meta=grows_in_graphs),
    "torch.compile: aot_eager": lambda _: broken("no_meta", Meta=refuses),
    "torch.compile: inductor": lambda _: broken("no_meta", Meta=refuses),
    "torch.export": lambda _: broken("no_meta", Meta=refuses),
    "AOTInductor package": lambda _: broken("no_meta", Meta=refuses),
    "functionalization": lambda _: broken("alias", CPU=lambda x: x.view(x.shape)),
    "vmap: a batch rule": lambda _: broken("no_rule"),
    "torch.jit.script": in_python,
    "torch.jit.trace": in_python,
    "torch.fx.symbolic_trace": in_python,
    "__torch_function__": lambda patch: mumbles(patch),
    "__torch_dispatch__": lambda _: composite(),
    "torch.overrides": without_documents,
    "autocast": refuses_mixed,
    "channels_last": lambda _: broken("memory", CPU=ignores_strides),
    "non-contiguous inputs": lambda _: broken("memory", CPU=ignores_strides),
    "empty inputs": lambda _: broken("not_empty", Meta=refuses_empty),
    "deterministic mode": lambda _: broken("draws", CPU=torch.rand_like),
    "dtypes": refuses_mixed,
    "OpInfo in op_db": without_documents,
    "out=": writes_nothing,
    "autogen: out overload": generated_out_writes_nothing,
    "in-place": in_place_elsewhere,
    "docstring in help()": without_documents,
    "documentation page": without_documents,
    "error messages": mumbles,
    "profiler name": in_python,
    "FLOP counter": lambda _: upstreams(),
    "pickle and deepcopy": in_python,
}


def test_every_item_is_tested_here() -> None:
    assert set(BREAKS) | set(NEEDS_A_GPU) | set(FOR_ALL) == set(ITEMS)


@pytest.mark.parametrize("title", list(BREAKS))
def test_an_item_fails_where_it_does_not_hold(
    title: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    op = BREAKS[title](monkeypatch)
    more: dict[str, Any] = {}
    given = bench(tmp_path, op, **more)
    if title == "FLOP counter":
        # An operator whose reference is a product counts as much as a product.
        info = given.source.infos["sigmoid"]
        monkeypatch.setattr(info, "ref", lambda x: x.reshape(-1, 1) @ x.reshape(1, -1))
    seen = outcome(ITEMS[title], op, given)
    assert seen.startswith("CheckFailed: ") and len(seen) > 10, seen


def test_a_declared_out_variant_is_out_in_python_and_a_generated_one_an_overload_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared_one = upstreams()
    generated = replace(
        declared_one,
        variants=tuple(replace(e, generated=e.kind == "out") for e in declared_one.variants),
    )

    def seen(title: str, op: Operator) -> str:
        return outcome(ITEMS[title], op, bench(tmp_path, op))

    assert seen("out=", declared_one) == seen("autogen: out overload", generated) == "full"
    assert seen("out=", generated).startswith("NotApplicable: sigmoid.out is not declared")
    assert "out= in Python" in seen("out=", no_python_out(monkeypatch))


def test_the_text_of_a_gap_is_whole_but_for_the_frames_of_cpp() -> None:
    lines = [f"line {number}" for number in range(50)]
    frames = "Exception raised from here at there.cpp:1 (most recent call first):\nframe #0: at"
    with pytest.raises(CheckFailed) as failed, failing("sizes [3]"):
        raise RuntimeError("\n".join([*lines, "", frames]))
    assert str(failed.value).splitlines() == ["sizes [3]: RuntimeError: line 0", *lines[1:]]


SLOW = {"torch.compile: inductor", "AOTInductor package"}
# Its samples have three dimensions at most, it is no product, and its out variant is declared.
NOT_SIGMOIDS = {"channels_last", "FLOP counter", "autogen: out overload"}


@pytest.mark.parametrize("title", [t for t in BREAKS if t not in SLOW])
def test_an_item_holds_for_an_operator_of_upstreams(title: str, tmp_path: Path) -> None:
    pages = frozenset({"torch.sigmoid", "torch.Tensor.sigmoid"})
    seen = outcome(ITEMS[title], upstreams(), bench(tmp_path, upstreams(), documented=pages))
    assert seen.startswith("NotApplicable" if title in NOT_SIGMOIDS else "full"), seen


def test_four_dimensions_are_laid_out_with_channels_last(tmp_path: Path) -> None:
    op = broken("whole")
    assert outcome(ITEMS["channels_last"], op, bench(tmp_path, op)) == "full"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: the items are run on it")
@pytest.mark.parametrize("title", NEEDS_A_GPU)
def test_what_needs_a_gpu_says_so(title: str, tmp_path: Path) -> None:
    seen = outcome(ITEMS[title], upstreams(), bench(tmp_path, upstreams()))
    assert seen == "Unavailable: no GPU on this machine"


def test_where_upstreams_own_package_ends_the_process_ours_is_not_blamed(tmp_path: Path) -> None:
    seen = {"packages": {"unavailable": "it failed: ended by signal 11 (SIGSEGV)"}}
    given = bench(tmp_path, upstreams(), prepared=seen)
    with pytest.raises(Unavailable, match=r"upstream's torch\.relu: .* signal 11"):
        ITEMS["AOTInductor package"].run(upstreams(), "cuda", given)


def test_upstreams_own_package_is_made_and_run(tmp_path: Path) -> None:
    assert graphs.packages(["cpu"], tmp_path) == {}
    assert graphs.package_of_relu("cpu", tmp_path).equal(torch.zeros(2, 3))


def cpp_alone(name: str) -> Operator:
    """torch.sigmoid, called in C++ by a name."""
    whole = upstreams()
    assert whole.entry.cpp_function is not None
    call = replace(whole.entry.cpp_function, name=name)
    return replace(whole, entry=replace(whole.entry, cpp_function=call))


@pytest.mark.parametrize(("way", "title"), [("extension", FOR_ALL[0]), ("cmake", FOR_ALL[1])])
def test_cpp_is_compiled_and_run(way: str, title: str, tmp_path: Path) -> None:
    """Also where only one of two operators can be: the other is not blamed."""
    alone = cpp_alone("no_such_operator")
    tanh = replace(alone.entry, name="tanh", base_name="tanh", schema="tanh(Tensor self) -> Tensor")
    wrong = replace(alone, entry=tanh, variants=())
    built = getattr(cpp, way)([upstreams(), wrong], tmp_path)
    assert "no_such_operator" in built["operators"]["tanh"]["complaint"]
    given = bench(tmp_path, upstreams(), prepared={way: built})
    assert outcome(ITEMS[title], upstreams(), given) == "full"
    assert outcome(ITEMS[title], wrong, given).startswith("CheckFailed: ")
    assert "was not run" in outcome(ITEMS[title], wrong, bench(tmp_path, wrong))


def test_mypy_is_run_on_right_and_wrong_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mypy", reason="scripts/requirements-test.txt has it")
    unknown = without_documents(monkeypatch)
    given = bench(tmp_path, upstreams())
    seen = tools.mypy([upstreams(), unknown], given.source, tmp_path, "")
    assert seen["operators"]["sigmoid"] == ""
    assert "citizen_plain" in seen["operators"]["citizen_plain"]


def test_a_call_that_should_not_pass_and_does_is_a_complaint() -> None:
    about = {"right_0_method": "sigmoid", "wrong_0_method": "sigmoid"}

    def complaint(found: dict[str, str]) -> str:
        return str(tools.complaints([upstreams()], about, found)["operators"]["sigmoid"])

    assert complaint({"wrong_0_method": "no"}) == "" and "passes" in complaint({})
    assert complaint({"wrong_0_method": "no", "right_0_method": "x"}) == "x"


# A checker that looks at what the project it is given includes, and at nothing without one.
CHECKER = """#!{python}
import json, pathlib, sys
place = pathlib.Path(sys.argv[sys.argv.index("--project") + 1])
settings = json.loads((place / "pyrightconfig.json").read_text())
found = [name for name in settings["include"] if (place / name).exists()] if {looks} else []
assert settings["exclude"] == [], "hidden folders are excluded unless it says so"
print(json.dumps({{"generalDiagnostics": [], "summary": {{"filesAnalyzed": len(found)}}}}))
"""


@pytest.mark.parametrize("looks", [True, False])
def test_a_checker_that_looks_at_no_file_says_nothing_of_the_stubs(
    looks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a hidden folder of a project pyright did, and each stub was said to be wrong."""
    checker = tmp_path / "pyright"
    checker.write_text(CHECKER.format(python=sys.executable, looks=looks), encoding="utf-8")
    checker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    samples = bench(tmp_path, upstreams()).source
    seen = tools.pyright([], samples, tmp_path / ".hidden", "")
    assert ("operators" in seen) == looks
    assert looks or "looked at no file" in seen["unavailable"]
