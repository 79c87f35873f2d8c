"""ci/find_unity_groups.py keeps files apart of which one has a name that another would take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "ci"))

from cxx_names import Headers, Reader

CI = Path(__file__).resolve().parents[3] / "ci"

NO_HEADERS = Headers(frozenset(), frozenset())


@pytest.mark.parametrize(
    ("text", "local", "shared"),
    [
        ("static int kept = 1;", {"kept"}, set()),
        ("namespace a::b { namespace { int hidden() { int inner = 1; return inner; } } }",
         {"hidden"}, set()),
        ("namespace a { static struct PyModuleDef _module = {X, 1}; }", {"_module"}, set()),
        ("static PyMethodDef methods[] = {{1, 2}, {3}};", {"methods"}, set()),
        ("namespace { struct TORCH_API Node : Base<int> { int member; }; }", {"Node"}, set()),
        ("template <typename T, int n = 3> static std::tuple<T, T> both(T a, T b) { return {}; }",
         {"both"}, set()),
        ("namespace n { Tensor make(const A& a) { return a; } int count; }",
         set(), {"make", "count"}),
        ('extern "C" { void plain(int a); }', set(), {"plain"}),
        ("Foo::Foo(int a) : first_(a), second_{a} { call(); }", set(), set()),
        ("Tensor& Foo::operator=(const Foo& other) { return *this; }", set(), set()),
        ("TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl(); } static int after;", {"after"}, set()),
        ('static auto text = R"(} namespace { int no(); )"; // int comment();', {"text"}, set()),
        ("auto trailing(int a) -> Tensor { return a; }", set(), {"trailing"}),
        ("#ifdef A\nint other() { return 1; }\n#endif\nstatic int last;", {"last"}, {"other"}),
    ],
)  # fmt: skip
def test_names_at_namespace_scope(text: str, local: set[str], shared: set[str]) -> None:
    names = Reader(text).names

    assert names.local == local and names.shared == shared


def test_what_stands_behind_a_qualifier_means_something_else() -> None:
    assert {"y", "z", "q"}.isdisjoint(Reader("int x = a.y + b->z + n::q;").names.used)


def disturbs(first: str, second: str, headers: Headers = NO_HEADERS) -> set[str]:
    return set(headers.disturbs(Reader(first).names, Reader(second).names))


def test_the_same_local_name_in_two_namespaces() -> None:
    guards = "namespace torch::dynamo { static PyModuleDef _module = {1}; }"
    init = "namespace { PyModuleDef _module = {2}; } int make() { return use(&_module); }"

    assert disturbs(guards, init) == {"_module"}


def test_a_local_name_that_hides_what_a_header_declares() -> None:
    seen = Headers(frozenset({"copy"}), frozenset())

    assert disturbs("namespace a { static int copy(int); }", "int f() { return copy(1); }", seen)


def test_what_a_header_declares_is_the_same_in_every_file() -> None:
    seen = Headers(frozenset({"fuse"}), frozenset())

    assert not disturbs("void fuse() {}", "void g() { fuse(); }", seen)
    assert disturbs("void fuse() {}", "void g() { fuse(); }") == {"fuse"}


def test_aliases_and_macros_with_one_meaning_do_not_disturb() -> None:
    assert not disturbs("namespace F = a::b;", "namespace F = a::b; int x = F::y;")
    assert disturbs("namespace F = a::b;", "namespace F = a::c; int x = F::y;") == {"F"}
    assert not disturbs("#define ONLY\n", "#define ONLY\n")
    assert disturbs("#define N 3\n", "int x = N;") == {"N"}
    assert not disturbs("#define N 3\n#undef N\n", "int x = N;")


def test_splits_a_list_and_keeps_what_may_stay_together(tmp_path: Path) -> None:
    for root in ("aten/src", "c10", "torch/csrc"):
        (tmp_path / root).mkdir(parents=True)
    (tmp_path / "c10" / "f.h").write_text("int from_header();\nnamespace py = pybind11;")
    files = {
        "a": "static int taken = 1;",
        "b": "int from_header() { return 1; } namespace py = pybind11;",
        "c": "int taken_too() { return taken; }",
        "d": "int d() { return from_header() + py::x; }",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.cpp").write_text(text)
    old = tmp_path / "old.txt"
    old.write_text("# a comment\ntorch_cpu a.cpp b.cpp c.cpp d.cpp\n")

    command: list[str | Path] = [
        sys.executable,
        CI / "find_unity_groups.py",
        tmp_path,
        "--split",
        old,
    ]
    done = subprocess.run(command, capture_output=True, text=True)

    assert (done.stdout, done.stderr) == ("torch_cpu a.cpp b.cpp d.cpp\n", "")
