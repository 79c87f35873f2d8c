"""Reports what a torch registers and binds, as JSON; run as a script by that torch's interpreter.

The question comes as JSON on stdin: {"root": a directory to import torch from, or null for the
installed one; "operators": the manifest's entries}. The answer is the last line of stdout. Nothing
of torchfork is imported here: the interpreter belongs to a clean environment.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any

# Where upstream's generators bind functions of a python_module; Tensor methods have no module.
_MODULES = {
    None: "_VariableFunctions",
    "nn": "_nn",
    "fft": "_fft",
    "linalg": "_linalg",
    "nested": "_nested",
    "sparse": "_sparse",
    "special": "_special",
}


def main() -> None:
    """Answer one question."""
    question = json.loads(sys.stdin.read())
    if question["root"]:
        sys.path.insert(0, question["root"])
    import torch

    answer = {
        "file": torch.__file__,
        "version": torch.__version__,
        "metadata_version": None if question["root"] else importlib.metadata.version("torch"),
        "schemas": _schemas(torch),
        "operators": [_operator(torch, op) for op in question["operators"]],
    }
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


def _schemas(torch: Any) -> dict[str, str]:
    """Every registered schema by its qualified name; the text is torch's own."""
    return {
        schema.name + ("." + schema.overload_name if schema.overload_name else ""): str(schema)
        for schema in torch._C._jit_get_all_schemas()
    }


def _operator(torch: Any, operator: dict[str, Any]) -> dict[str, Any]:
    """How one added operator came out; `missing` names what the manifest claims in vain."""
    name = "aten::" + operator["name"]
    qualified = name + ("." + operator["overload"] if operator["overload"] else "")
    try:
        expected = str(torch._C.parse_schema("aten::" + operator["schema"]))
    except RuntimeError as error:
        expected = f"unreadable: {error}"
    missing = _missing_bindings(torch, operator)
    if not _registered(torch, qualified):
        return {"name": qualified, "schema": expected, "missing": [*missing, "a registration"]}
    return {
        "name": qualified,
        "schema": expected,
        "missing": missing + _missing_kernels(torch, operator, qualified),
    }


def _registered(torch: Any, qualified: str) -> bool:
    return bool(torch._C._dispatch_has_kernel(qualified))


def _missing_bindings(torch: Any, operator: dict[str, Any]) -> list[str]:
    name, missing = operator["name"], []
    if operator.get("python_function"):
        module = _MODULES[operator.get("python_module")]
        if not hasattr(getattr(torch._C, module, None), name):
            missing.append(f"the function torch._C.{module}.{name}")
        public = module == "_VariableFunctions" and not name.startswith("_")
        if public and not hasattr(torch, name):
            missing.append(f"the function torch.{name}")
    if operator.get("python_method") and not hasattr(torch.Tensor, name):
        missing.append(f"the method Tensor.{name}")
    return missing


def _missing_kernels(torch: Any, operator: dict[str, Any], qualified: str) -> list[str]:
    """Kernels that the manifest claims."""
    keys = []
    if operator.get("composite_implicit"):
        keys.append("CompositeImplicitAutograd")
    elif operator.get("differentiable") and not operator.get("generated"):
        keys.append("Autograd")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return [f"a kernel for {key}" for key in keys if not has(qualified, key)]


if __name__ == "__main__":
    main()
