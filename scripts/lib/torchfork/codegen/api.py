"""What the driver needs of a release's torchgen, and what of it that torchgen lacks.

Runs in the process that has the base's torchgen on sys.path. A function that a release renamed, or
whose parameters it changed, is reported by name, and not as a traceback from the middle of a run.
"""

from __future__ import annotations

import importlib
import inspect
import operator
from collections.abc import Callable, Iterator
from typing import Any

AUTOGRAD = "torchgen.packaged.autograd"

# Function -> the number of positional arguments that the driver calls it with.
CALLED = {
    "torchgen.gen:main": 0,
    "torchgen.gen:parse_native_yaml": 2,
    "torchgen.gen:parse_tags_yaml": 1,
    "torchgen.gen:ParsedYaml": 2,
    "torchgen.gen:get_grouped_by_view_native_functions": 1,
    "torchgen.api.cpp:name": 1,
    f"{AUTOGRAD}.gen_autograd:match_differentiability_info": 2,
    f"{AUTOGRAD}.load_derivatives:load_derivatives": 3,
    f"{AUTOGRAD}.gen_variable_type:gen_variable_type": 6,
    f"{AUTOGRAD}.gen_inplace_or_view_type:gen_inplace_or_view_type": 5,
    f"{AUTOGRAD}.gen_trace_type:gen_trace_type": 3,
    f"{AUTOGRAD}.gen_autograd_functions:gen_autograd_functions_lib": 3,
    f"{AUTOGRAD}.gen_autograd_functions:gen_autograd_functions_python": 3,
    f"{AUTOGRAD}.gen_variable_factories:gen_variable_factories": 4,
    f"{AUTOGRAD}.gen_view_funcs:gen_view_funcs": 3,
    f"{AUTOGRAD}.gen_python_functions:gen": 5,
    f"{AUTOGRAD}.gen_python_functions:load_signatures": 2,
}
# Attributes that the driver reads or sets.
READ = (
    "torchgen.model:dispatch_keys",
    "torchgen.model:DispatchKey",
    "torchgen.utils:REPO_ROOT",
    "torchgen.utils:FileManager.write_with_template",
)


def missing() -> list[str]:
    """One line for each thing that this torchgen lacks or that takes other arguments."""
    return [*_attributes(), *_calls()]


def _attributes() -> Iterator[str]:
    for name in READ:
        value, problem = _find(name)
        if value is None:
            yield problem


def _calls() -> Iterator[str]:
    for name, count in CALLED.items():
        function, problem = _find(name)
        if function is None:
            yield problem
        elif not _takes(function, count):
            yield f"{_dotted(name)}{inspect.signature(function)} is called with {count} arguments"


def _find(name: str) -> tuple[Any, str]:
    """An object by 'module:attribute', or None and why there is none."""
    module, attribute = name.split(":")
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module)), ""
    except AttributeError:
        return None, f"{_dotted(name)} does not exist"
    except ImportError as error:
        return None, f"{module} cannot be imported: {error}"


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a call with so many positional arguments and no others is possible."""
    signature = inspect.signature(function)
    keywords = {
        p.name: None
        for p in signature.parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty
    }
    try:
        signature.bind(*[None] * count, **keywords)
    except TypeError:
        return False
    return True


def _dotted(name: str) -> str:
    return name.replace(":", ".")
