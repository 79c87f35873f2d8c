"""The names that a torch's Python has are read from its text: torch is never imported."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sample_files import lay

from torchfork.upstream import python_names

FILES = {
    "torch/__init__.py": """
import math, os as _os
from torch.serialization import load as load, save
from torch.functional import *
from torch._C import *
from typing import TYPE_CHECKING
__all__ = ["compile", *sorted(["listed"])]
if TYPE_CHECKING:
    from nowhere import imagined
    syntax of another Python
else:
    real = 1
try:
    tried = caught = 1
except ImportError:
    fallback = 2
for name in ():
    gone = name
del gone
for name in ("cos", "log2"):
    globals()[f"_sym_{name}"] = made(name, f"", f"{name}")
def function():
    local = 1
    del real
class Kind:
    inside = 1
""",
    "torch/functional.py": "from itertools import chain\n__all__ = ['einsum']\ndef helper(): ...\n",
    "torch/_C/__init__.pyi": """
class Generator: ...
_private: int
float32: dtype = ...
class TensorBase(metaclass=Meta):
    requires_grad: bool
    def numpy(self) -> Any: ...
    T = 1
class Later:
    def not_of_tensor(self): ...
""",
    "torch/_tensor.py": """
class Tensor(torch._C.TensorBase):
    def backward(self): ...
    __array_priority__ = 1000
def outside(): ...
""",
    "torch/_tensor_docs.py": 'add_docstr_all(\n    "documented",\n    "..." )\n',
    "torch/overrides.py": "x = {torch.ignored, torch.nn.f, Tensor.name.__get__}\n"
    "# torchfork:begin\ny = torch.ours\n# torchfork:end\n",
    "torch/nn/functional.py": "def dropout(): ...\n",
    "torch/include/c10/core/ScalarType.h": "  _(c10::dummy_uint1_7_t<1>, UInt1) /* 30 */\\\n",
    # a method of the same name would hide a member that C++ calls
    "torch/include/ATen/core/TensorBase.h": "class TensorBase {\n"
    "  TensorOptions options() const {\n    return impl(x);\n  }\n};\n",
    "torch/_C/_nn.pyi": "def gelu(input: Tensor) -> Tensor: ...\n",
    "torch/special/__init__.py": "airy = 1\n",
}


def test_the_attributes_of_modules_and_of_tensor_are_found(tmp_path: Path) -> None:
    names = ("fft/__init__.py", "_ops.py", "special/_impl.py", "lib/libtorch.so", "version.txt")
    lay(tmp_path / "torch", dict.fromkeys(names, ""))
    library, source = tmp_path / "libtorch_python.so", tmp_path / "manual.cpp"
    library.write_bytes(b"\x7fELF\0_from_blob\0_ZN2at4reluE\0visible\0a_tail\0")
    source.write_text('{"_freeze", freeze}, m.def("shown")')
    found = python_names.attributes(FILES.get, tmp_path, [library, source], tmp_path)
    assert {"math", "_os", "load", "save", "einsum", "Generator", "float32", "compile", "listed",
            "real", "tried", "caught", "fallback", "function", "Kind", "fft", "_ops",
            "ignored", "uint1", "cpp", "_from_blob", "_freeze", "_sym_cos", "_sym_log2",
            "__file__"} <= found["torch"]  # fmt: skip
    # locals, and what is never there at run time
    absent = {"imagined", "gone", "local", "inside", "helper", "chain", "_private", "ours",
              "visible", "_tail", "shown", "cos", "lib", "version"}  # fmt: skip
    assert not absent & found["torch"]
    assert found["Tensor"] - python_names.IMPLICIT == {
        "backward", "__array_priority__", "requires_grad", "numpy", "T", "documented", "name",
        "options",
    }  # fmt: skip
    assert found["nn"] - python_names.IMPLICIT == {"dropout", "gelu"}
    assert found["special"] - python_names.IMPLICIT == {"airy", "_impl"}
    assert found["fft"] == python_names.IMPLICIT


def test_a_file_that_this_python_cannot_read_has_no_names_and_is_no_failure() -> None:
    texts = {**FILES, "torch/functional.py": "def f(:\n", "torch/special/__init__.py": "\0"}
    found = python_names.attributes(texts.get, Path("nowhere"), [], Path("nowhere"))
    assert "save" in found["torch"] and found["special"] == python_names.IMPLICIT
    # a source tree's stubs are read from their templates
    text = "class TensorBase:\n    ${tensor_method_hints}\n    def item(self): ...\n"
    stubs = {"torch/_C/__init__.pyi.in": text}
    found = python_names.attributes(stubs.get, Path("nowhere"), [], Path("nowhere"))
    assert found["Tensor"] - python_names.IMPLICIT == {"item"}


def test_namespaces_and_functions_of_at_are_names_that_no_operator_can_have(tmp_path: Path) -> None:
    header = """\
namespace at::vitals { inline void deep() {} }  // namespace at::comment {
namespace at {
namespace outer { namespace inner { void hidden(); } }
TORCH_API std::vector<int64_t> infer_size(IntArrayRef a, IntArrayRef b);
struct TORCH_API Named { int member(); };
inline bool check(const Tensor& x) { return helper(x); }
}
namespace c10::core { void other(); }
"""
    lay(tmp_path / "ATen", {"core/a.h": header, "ops/relu.h": "namespace at { void relu(); }"})
    found = python_names.attributes(dict[str, str]().get, Path("nowhere"), [], tmp_path)
    assert found["at"] == {"vitals", "outer", "infer_size", "check"}


def test_many_threads_may_read_at_once() -> None:
    """CPython 3.11 loses count of the depth where two threads parse."""
    text = "\n".join(f"def f{n}(a=[{n}, (1, 2)]): return a[{n}:{n} + 1]" for n in range(300))
    with ThreadPoolExecutor(8) as pool:
        modules = list(pool.map(python_names.parse, [text] * 64))
    assert {len(module.body) for module in modules} == {300}
