"""ci/find_unity_groups.py keeps files apart of which one has a name that another would take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sample_files import lay

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "ci"))

from cxx_names import Headers, Reader

CI = Path(__file__).resolve().parents[3] / "ci"


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


GUARDS = "namespace torch::dynamo { static PyModuleDef _module = {1}; }"
INIT = "namespace { PyModuleDef _module = {2}; } int make() { return use(&_module); }"


@pytest.mark.parametrize(
    ("first", "second", "header", "names"),
    [
        (GUARDS, INIT, "", {"_module"}),  # the same local name in two namespaces
        # a local name that hides what a header declares
        ("namespace a { static int copy(int); }", "int f() { return copy(1); }", "copy", {"copy"}),
        # what a header declares is the same in every file
        ("void fuse() {}", "void g() { fuse(); }", "fuse", set()),
        ("void fuse() {}", "void g() { fuse(); }", "", {"fuse"}),
        # aliases and macros with one meaning
        ("namespace F = a::b;", "namespace F = a::b; int x = F::y;", "", set()),
        ("namespace F = a::b;", "namespace F = a::c; int x = F::y;", "", {"F"}),
        ("#define ONLY\n", "#define ONLY\n", "", set()),
        ("#define N 3\n", "int x = N;", "", {"N"}),
        ("#define N 3\n#undef N\n", "int x = N;", "", set()),
    ],
)
def test_what_disturbs_another_file(first: str, second: str, header: str, names: set[str]) -> None:
    headers = Headers(frozenset({header} - {""}), frozenset())
    assert set(headers.disturbs(Reader(first).names, Reader(second).names)) == names


def test_splits_a_list_and_keeps_what_may_stay_together(tmp_path: Path) -> None:
    for root in ("aten/src", "torch/csrc"):
        (tmp_path / root).mkdir(parents=True)
    files = {
        "c10/f.h": "int from_header();\nnamespace py = pybind11;",
        "a.cpp": "static int taken = 1;",
        "b.cpp": "int from_header() { return 1; } namespace py = pybind11;",
        "c.cpp": "int taken_too() { return taken; }",
        "d.cpp": "int d() { return from_header() + py::x; }",
    }
    files["old.txt"] = "# a comment\ntorch_cpu a.cpp b.cpp c.cpp d.cpp\n"
    lay(tmp_path, files)
    done = subprocess.run(
        [sys.executable, CI / "find_unity_groups.py", tmp_path, "--split", tmp_path / "old.txt"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("torch_cpu a.cpp b.cpp d.cpp\n", "")
