"""C++ against this torch: at::op and tensor.op(), from an extension and from a CMake project.

One source calls every operator both ways, by the signatures that the headers are made from, and
registers each call as an operator of its own, which the checks then run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ...codegen.model import CppCall
from .bench import Bench, Check, CheckFailed, Unavailable, message, require_compiler
from .operators import Operator
from .programs import same
from .samples import Sample, invoke

WAYS = ("function", "method")
_CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(citizen CXX)
find_package(Torch REQUIRED)
add_library({name} SHARED {name}.cpp)
target_link_libraries({name} PRIVATE ${{TORCH_LIBRARIES}})
set_property(TARGET {name} PROPERTY CXX_STANDARD {standard})
"""


def exported_name(op: Operator, way: str) -> str:
    """The name under which a call of an operator is registered."""
    return f"{op.id.replace('.', '_dot_')}_by_{way}"


def source(operators: Sequence[Operator], namespace: str) -> str:
    """The C++ source that calls the operators."""
    names = sorted({op.name for op in operators})
    bases = sorted({op.entry.base_name for op in operators})
    bodies, definitions = [], []
    for op in operators:
        for way in WAYS:
            call = op.cpp(way)
            if call is not None:
                bodies.append(_body(op, way, call))
                definitions.append(_definition(op, way))
    return "\n".join(
        [
            "// Calls " + ", ".join(names),
            "#include <ATen/core/Tensor.h>",
            *(f"#include <ATen/ops/{name}.h>" for name in bases),
            "#include <torch/library.h>",
            "",
            *bodies,
            "",
            f"TORCH_LIBRARY({namespace}, m) {{",
            *definitions,
            "}",
            "",
        ]
    )


def _body(op: Operator, way: str, call: CppCall) -> str:
    arguments = [name for _, name in call.arguments]
    given = [f"{kind} {name}" for kind, name in call.arguments]
    if way == "method":
        text = f"self.{call.name}({', '.join(arguments)})"
        given.insert(call.self_index, "const at::Tensor & self")
    else:
        text = f"at::{call.name}({', '.join(arguments)})"
    name = exported_name(op, way)
    return f"static {call.returns} {name}({', '.join(given)}) {{\n  return {text};\n}}"


def _definition(op: Operator, way: str) -> str:
    schema = re.sub(r"^aten::[\w.]+", exported_name(op, way), str(op.schema))
    schema = schema.replace("SymInt", "int").replace("\\", "\\\\").replace('"', '\\"')
    return f'  m.def("{schema}", &{exported_name(op, way)});'


def extension(operators: Sequence[Operator], scratch: Path) -> dict[str, Any]:
    """Build with torch.utils.cpp_extension."""
    from torch.utils import cpp_extension

    def build(chosen: Sequence[Operator], directory: Path, name: str) -> Path:
        file = directory / f"{name}.cpp"
        file.write_text(source(chosen, name), encoding="utf-8")
        made = cpp_extension.load(
            name, [str(file)], extra_cflags=["-O0"], build_directory=str(directory),
            is_python_module=False, verbose=False,
        )  # fmt: skip
        return Path(made) if made else directory / f"{name}.so"

    return _each(operators, scratch, "citizen_extension", build)


def cmake(operators: Sequence[Operator], scratch: Path) -> dict[str, Any]:
    """Build a CMake project that finds this torch."""
    program = shutil.which("cmake")
    if program is None:
        return {"unavailable": "cmake is not installed"}
    if lack := _without_operators(program, _directory(scratch / "cmake_alone")):
        return {"unavailable": lack}

    def build(chosen: Sequence[Operator], directory: Path, name: str) -> Path:
        (directory / f"{name}.cpp").write_text(source(chosen, name), encoding="utf-8")
        text = _CMAKE.format(name=name, standard=_standard())
        (directory / "CMakeLists.txt").write_text(text, encoding="utf-8")
        out = directory / "out"
        _configure(program, directory, out)
        _run([program, "--build", str(out)])
        return out / f"lib{name}.so"

    return _each(operators, scratch, "citizen_cmake", build)


def _configure(program: str, directory: Path, out: Path) -> None:
    prefix = f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}"
    _run([program, "-S", str(directory), "-B", str(out), prefix, "-DCMAKE_BUILD_TYPE=Debug"])


def _without_operators(program: str, directory: Path) -> str:
    """What this machine lacks for any project that finds this torch, or ''.

    The package of a CUDA build looks for the toolkit, also for projects without CUDA.
    """
    text = _CMAKE.partition("add_library")[0]
    (directory / "CMakeLists.txt").write_text(text, encoding="utf-8")
    try:
        _configure(program, directory, directory / "out")
    except RuntimeError as error:
        text = " ".join(str(error).split())  # CMake breaks lines where it likes
        if torch.version.cuda is not None and "cannot find the CUDA libraries" in text:
            wanted = f"the toolkit of CUDA {torch.version.cuda}"
            return f"this build's package for CMake wants {wanted}: set CUDA_HOME to one"
    return ""


def _standard() -> str:
    """The C++ standard that this torch's headers need, by their own word."""
    header = Path(torch.__file__).parent / "include" / "torch" / "all.h"
    text = header.read_text(encoding="utf-8") if header.exists() else ""
    found = re.search(r"C\+\+(\d\d) or later", text)
    return found[1] if found else "17"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def _each(operators: Sequence[Operator], scratch: Path, name: str, build: Any) -> dict[str, Any]:
    """All operators in one library; where that fails, each by itself tells which it was."""
    try:
        require_compiler()
    except Unavailable as missing:
        return {"unavailable": str(missing)}
    try:
        library = build(operators, _directory(scratch / name), name)
        return {"operators": {op.id: {"library": str(library), "namespace": name}
                              for op in operators}}  # fmt: skip
    except Exception as together:
        if len(operators) == 1:
            return {"operators": {operators[0].id: {"complaint": _errors(together)}}}
    results: dict[str, Any] = {}
    for number, op in enumerate(operators):
        results.update(_each([op], scratch / op.id, f"{name}_{number}", build)["operators"])
    return {"operators": results}


def _directory(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _errors(error: Exception) -> str:
    """The compiler's or CMake's errors."""
    lines = [line for line in str(error).splitlines() if re.search(r"\berror\b|Error", line)]
    return "\n".join(lines) or message(error)


def called_from(way: str) -> Check:
    def check(op: Operator, device: str, bench: Bench) -> None:
        built = bench.result(way, op)
        if "complaint" in built:
            raise CheckFailed(built["complaint"])
        torch.ops.load_library(built["library"])
        for sample in bench.source.typical(op, device, limit=3):
            _compare(op, built["namespace"], sample)

    return check


def _compare(op: Operator, namespace: str, sample: Sample) -> None:
    expected = invoke(op, sample)
    for way in WAYS:
        if op.cpp(way) is None:
            continue
        call = getattr(getattr(torch.ops, namespace), exported_name(op, way))
        actual = invoke(op, sample, call)
        name = f"at::{op.name}" if way == "function" else f"tensor.{op.name}()"
        same(actual, expected, name, tolerance=0)
