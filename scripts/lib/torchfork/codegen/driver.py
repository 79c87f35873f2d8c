"""Runs the base's own torchgen, over all functions or over the added ones alone.

`client` executes this module in a child process whose path starts with the base's torchgen, because
torchgen keeps global caches and one process must see one torchgen only.
torchgen has no notion of "these functions only, with everybody's backend indices", so the parser
is wrapped: the whole merged YAML is parsed, and what the generators are handed is filtered. A YAML
of the added functions alone would drop structured Meta kernels or trip assertions.
A function that a release renamed, or whose parameters it changed, is reported by name, and not as a
traceback from the middle of a run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import inspect
import itertools
import json
import operator
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
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
WRITERS = ("write_with_template", "write_sharded")
# Attributes that the driver reads or sets.
READ = (
    "torchgen.model:dispatch_keys",
    "torchgen.model:DispatchKey",
    "torchgen.utils:REPO_ROOT",
    *(f"torchgen.utils:FileManager.{name}" for name in WRITERS),
)


@dataclass
class _Filter:
    """Which of the parsed functions the generators get to see; None means all."""

    keep: frozenset[str] | None = None


def _qualified(function: Any) -> str:
    """'add.Tensor', which a schema's text takes ten times as long as."""
    return str(function.func.name)


def _wrap_parser(shown: _Filter) -> Callable[..., Any]:
    """Replace torchgen's parser by one that filters; give the unfiltered one back."""
    from torchgen import gen

    original = gen.parse_native_yaml

    def filtered(*args: Any, **kwargs: Any) -> Any:
        parsed = original(*args, **kwargs)
        if shown.keep is None:
            return parsed
        kept = [f for f in parsed.native_functions if _qualified(f) in shown.keep]
        return gen.ParsedYaml(kept, parsed.backend_indices)

    gen.parse_native_yaml = filtered
    return original  # type: ignore[no-any-return]


def _sign_as_upstream() -> None:
    """Have generated comments name the files that a source build's comments name.

    torchgen writes the running script and the template directory into what it generates; without
    this no regenerated header would equal the wheel's.
    """
    from torchgen import utils

    sys.modules["__main__"].__file__ = str(utils.REPO_ROOT / "torchgen" / "gen.py")
    utils.FileManager.template_dir_for_comments = lambda _self: "../tools/autograd/templates"


@contextlib.contextmanager
def _arguments(*argv: str) -> Iterator[None]:
    kept, sys.argv = sys.argv, ["torchgen", *argv]
    try:
        yield
    finally:
        sys.argv = kept


@dataclass
class Generator:
    """torchgen and the autograd generator of one tree, a directory with ATen/ and autograd/."""

    packaged: Path
    shown: _Filter
    parse_all: Callable[..., Any]
    derivatives: Path

    @classmethod
    def over(cls, packaged: Path) -> Generator:
        """Patch the torchgen on the path; call once a process."""
        shown = _Filter()
        _sign_as_upstream()
        derivatives = packaged / "autograd" / "derivatives.yaml"
        return cls(packaged, shown, _wrap_parser(shown), derivatives)

    @property
    def native_yaml(self) -> str:
        return str(self.packaged / "ATen" / "native" / "native_functions.yaml")

    @property
    def tags_yaml(self) -> str:
        return str(self.packaged / "ATen" / "native" / "tags.yaml")

    def functions(self) -> list[Any]:
        """Every function of the tree, generated variants included, filtered by nothing."""
        return list(self.parse_all(self.native_yaml, self.tags_yaml).native_functions)

    def aten(self, out: Path, what: str, devices: Collection[str] = ()) -> None:
        """Run torchgen's main; `what` is 'headers' or 'sources', devices are options of its."""
        from torchgen import gen, model

        keys = list(model.dispatch_keys)
        out.mkdir(parents=True, exist_ok=True)
        argv = [
            "--source-path", str(self.packaged / "ATen"), "--per-operator-headers",
            "--install-dir", str(out), "--aoti-install-dir", str(out / "aoti"),
            "--generate", what, *(f"--{device}" for device in devices),
        ]  # fmt: skip
        if "headeronly_install_dir" in inspect.getsource(gen.main):
            argv += ["--headeronly-install-dir", str(out.parent / "headeronly" / "core")]
        with _arguments(*argv):
            gen.main()
        # main removes keys from this list and some releases remove without looking
        model.dispatch_keys[:] = keys

    def symbolic_meta(self, out: Path) -> None:
        """Write what the Meta kernels of the functions in the filter need to be traced."""
        from torchgen import gen

        from . import templates

        parsed = gen.parse_native_yaml(self.native_yaml, self.tags_yaml)
        text = templates.symbolic_meta_source(parsed.native_functions, parsed.backend_indices)
        (out / templates.SYMBOLIC_SOURCE).write_text(text, encoding="utf-8")

    def autograd(self, out: Path, templates: Path, python_keep: Collection[str] | None) -> None:
        """Run the autograd generator and the Python binding generator with the given templates.

        python_keep: functions that the Python bindings are made for. It is wider than the filter:
        overloads share one binding, so an added overload brings its siblings along.
        """
        out.mkdir(parents=True, exist_ok=True)
        from torchgen import gen
        from torchgen.api import cpp
        from torchgen.packaged.autograd import (
            gen_autograd,
            gen_autograd_functions,
            gen_inplace_or_view_type,
            gen_trace_type,
            gen_variable_factories,
            gen_variable_type,
            gen_view_funcs,
        )

        infos, used_keys = self._derivatives()
        native = gen.parse_native_yaml(self.native_yaml, self.tags_yaml).native_functions
        ordered = sorted(native, key=lambda f: cpp.name(f.func))
        paired = gen_autograd.match_differentiability_info(ordered, infos)  # adds the foreach ones
        kept_infos = {
            schema: value
            for schema, value in infos.items()
            if self.shown.keep is None or str(schema.name) in self.shown.keep
        }
        where, common = str(out), (self.native_yaml, self.tags_yaml)
        gen_variable_type.gen_variable_type(where, *common, paired, str(templates), used_keys)
        gen_inplace_or_view_type.gen_inplace_or_view_type(where, *common, paired, str(templates))
        gen_trace_type.gen_trace_type(where, native, str(templates))
        gen_autograd_functions.gen_autograd_functions_lib(where, kept_infos, str(templates))
        gen_variable_factories.gen_variable_factories(where, *common, str(templates))
        gen_view_funcs.gen_view_funcs(where, paired, str(templates))
        gen_autograd_functions.gen_autograd_functions_python(where, kept_infos, str(templates))
        self._python(out, templates, python_keep)

    def _derivatives(self) -> tuple[Any, Any]:
        """The differentiability infos of the whole tree; a filtered one would miss functions."""
        from torchgen.packaged.autograd import load_derivatives

        keep, self.shown.keep = self.shown.keep, None
        try:
            found = load_derivatives.load_derivatives(
                str(self.derivatives), self.native_yaml, self.tags_yaml
            )
        finally:
            self.shown.keep = keep
        return found[0], found[1] | {"Default"}  # also of a file that has no formula

    def _python(self, out: Path, templates: Path, keep: Collection[str] | None) -> None:
        """The Python bindings, of the functions in keep."""
        module: Any = importlib.import_module(f"{AUTOGRAD}.gen_python_functions")
        original = module.load_signatures

        def chosen(*args: Any, **kwargs: Any) -> list[Any]:
            pairs = original(*args, **kwargs)
            return [p for p in pairs if keep is None or _qualified(p.function) in keep]

        module.load_signatures = chosen
        filter_keep, self.shown.keep = self.shown.keep, None
        try:
            module.gen(
                str(out), self.native_yaml, self.tags_yaml,
                str(self.packaged / "autograd" / "deprecated.yaml"), str(templates),
            )  # fmt: skip
        finally:
            module.load_signatures = original
            self.shown.keep = filter_keep


def headers(request: dict[str, Any]) -> dict[str, Any]:
    """Regenerate a base's own headers."""
    packaged, out = Path(request["packaged"]), Path(request["out"])
    generator = Generator.over(packaged)

    def autograd() -> None:
        schemas = [str(f.func) for f in generator.functions()]
        with _leaving_out(_is_source):
            generator.autograd(out / "autograd", packaged / "autograd" / "templates", None)
        (out / "schemas.json").write_text(json.dumps(schemas), encoding="utf-8")

    def aten(half: int) -> None:
        with _leaving_out(_other_half(half)):
            generator.aten(out / "ATen", "headers", request["devices"])

    _fork_all([lambda: aten(0), lambda: aten(1), autograd])
    schemas = json.loads((out / "schemas.json").read_text(encoding="utf-8"))
    return _names(generator, schemas)


def operators(request: dict[str, Any]) -> dict[str, Any]:
    """List what a tree has, or what this driver misses in its torchgen; nothing is generated."""
    if lacking := missing():
        return {"missing": lacking}
    generator = Generator.over(Path(request["packaged"]))
    return _names(generator, [str(f.func) for f in generator.functions()])


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


def _names(generator: Generator, schemas: list[str]) -> dict[str, Any]:
    """What a tree has, as upstream.Upstream holds it."""
    from torchgen.gen import parse_tags_yaml
    from torchgen.model import dispatch_keys

    keys, tags = map(str, dispatch_keys), parse_tags_yaml(generator.tags_yaml)
    return {"schemas": schemas, "dispatch_keys": sorted(keys), "tags": sorted(tags)}


def added_functions(generator: Generator, base_schemas: Collection[str]) -> list[Any]:
    """The functions of the merged tree that the base lacks, in the order of their names."""
    known = frozenset(base_schemas)
    return [f for f in generator.functions() if str(f.func) not in known]


def siblings(added: Collection[str], everything: list[Any]) -> frozenset[str]:
    """The added functions and every overload that shares a binding with one, by their names."""
    names = {str(f.func.name.name) for f in everything if _qualified(f) in added}
    return frozenset(_qualified(f) for f in everything if str(f.func.name.name) in names)


def describe(request: dict[str, Any]) -> dict[str, Any]:
    """Parse a merged tree and list what it adds; nothing is generated."""
    from torchgen import gen

    from . import manifest as manifests

    packaged = Path(request["packaged"])
    generator = Generator.over(packaged)
    # A view without its copying variant is refused only where views are paired with them.
    gen.get_grouped_by_view_native_functions(generator.functions())
    added = added_functions(generator, request["base_schemas"])
    manifest = manifests.build_manifest(
        added, generator.functions(), request["formulas"], request["deprecated"], packaged
    )
    return {"manifest": dataclasses.asdict(manifest)}


def finished(request: dict[str, Any]) -> dict[str, Any]:
    """Describe operators of a tree that has them, by their names; nothing is generated."""
    from . import manifest as manifests

    packaged = Path(request["packaged"])
    functions = Generator.over(packaged).functions()
    found = manifests.finished_operators(functions, request["names"], request["formulas"], packaged)
    return {"operators": [dataclasses.asdict(operator) for operator in found]}


def sources(request: dict[str, Any]) -> dict[str, Any]:
    """Generate a merged tree: every header that may differ from the base's, and the sources and
    headers of the added functions.

    base_names: whose headers in ATen/ops may; null where all may, as patches change the generator.

    The sources are made twice, for the added functions and for none at all: a file whose text is
    the same both times has nothing of ours in it.
    """
    packaged, out = Path(request["packaged"]), Path(request["out"])
    templates = Path(request["templates"])
    added = frozenset(request["added"])
    generator = Generator.over(packaged)
    runs = (("added", added), ("none", frozenset[str]()))
    names = request["base_names"]

    def of_others(path: Path) -> bool:
        beginnings = itertools.accumulate(path.stem.split("_"), "{}_{}".format)
        return path.parent.name == "ops" and not any(name in names for name in beginnings)

    def merged_headers() -> None:
        with contextlib.nullcontext() if names is None else _leaving_out(of_others):
            generator.aten(out / "all" / "ATen", "headers")

    def aten() -> None:
        for name, keep in runs:
            generator.shown.keep = keep
            generator.aten(out / name / "ATen", "sources")
            generator.symbolic_meta(out / name / "ATen")
        generator.shown.keep = added
        generator.aten(out / "own" / "ATen", "headers")

    def autograd() -> None:
        with _leaving_out(_is_source):
            generator.autograd(out / "all" / "autograd", packaged / "autograd" / "templates", None)
        everything = generator.functions()
        for name, keep in runs:
            generator.shown.keep = keep
            bound = siblings(keep, everything)
            generator.autograd(out / name / "autograd", templates, bound)

    _fork_all([merged_headers, autograd, aten])
    return {}


@contextlib.contextmanager
def _leaving_out(unwanted: Callable[[Path], bool]) -> Iterator[None]:
    """Have torchgen leave out files, by their paths: their texts, which are most of the work."""
    from torchgen.utils import FileManager

    def but_for_unwanted(original: Callable[..., None]) -> Callable[..., None]:
        def write(manager: Any, filename: str | Path, *args: Any, **kwargs: Any) -> None:
            if not unwanted(Path(manager.install_dir, filename)):
                original(manager, filename, *args, **kwargs)

        return write

    originals = {name: getattr(FileManager, name) for name in WRITERS}
    for name, original in originals.items():
        setattr(FileManager, name, but_for_unwanted(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(FileManager, name, original)


def _is_source(path: Path) -> bool:
    return path.suffix == ".cpp"


def _other_half(half: int) -> Callable[[Path], bool]:
    """Every second file that is asked about, for two processes to share them out."""
    numbers = itertools.count(half)
    return lambda _: next(numbers) % 2 == 0


def trial(request: dict[str, Any]) -> dict[str, Any]:
    """What only the generation of sources refuses, one report for each operator.

    An operator that was refused is left out, and the rest generated again, until nothing is. The
    sources stay below `out`, which the caller deletes.
    """
    packaged, out = Path(request["packaged"]), Path(request["out"])
    generator = Generator.over(packaged)
    everything = generator.functions()
    keep, reports = frozenset(request["added"]), []
    bases = {str(f.func.name): f.func.name.name.base for f in everything}
    # Upstream's formulas, which take most of the time, decide nothing about ours.
    generator.derivatives = out / "derivatives.yaml"
    formulas = request["formulas"]

    def autograd() -> None:
        templates = packaged / "autograd" / "templates"
        generator.autograd(out / "autograd", templates, siblings(keep, everything))

    def aten() -> None:
        generator.aten(out / "ATen", "headers")
        generator.aten(out / "ATen", "sources")
        generator.symbolic_meta(out / "ATen")

    while keep:
        generator.shown.keep = keep
        generator.derivatives.write_text("".join(formulas.values()) or "[]", encoding="utf-8")
        try:
            _fork_all([aten, autograd])
            break
        except CodegenFailure as failure:
            report = failure.args[0]
            reports.append(report)
            at = re.search(r"native_functions\.yaml:(\d+)", report["message"])
            refused = {f.func.name.name.base for f in everything if at and f.loc.line == int(at[1])}
            refused.add(bases.get(report.get("formula"), ""))
            left = {_qualified(f) for f in everything if f.func.name.name.base not in refused}
            if keep <= left:
                break
            keep &= left
            formulas = {n: text for n, text in formulas.items() if bases.get(n) not in refused}
    return {"refused": reports}


def _fork_all(jobs: list[Callable[[], None]]) -> None:
    """Run jobs in child processes, side by side; the first failure is raised here too.

    torchgen's main parses without the keys of devices that are not built (MPS, XPU), the autograd
    generator with them, and the parser caches by path: one process cannot serve both.
    """
    started = [_fork(job) for job in jobs]
    reports = [_wait(*child) for child in started]
    for failure in reports:
        if failure is not None:
            raise CodegenFailure(failure)


class CodegenFailure(Exception):
    """A child's error, as `_report` describes it."""


def _fork(job: Callable[[], None]) -> tuple[int, int]:
    """Start a job in a child; its process id and the pipe on which it reports a failure."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(write_end)
        return child, read_end
    status = 0
    try:
        job()
    except BaseException as error:
        os.write(write_end, json.dumps(_report(error)).encode())
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(child: int, pipe: int) -> Any:
    """The child's report, or None where it succeeded."""
    with os.fdopen(pipe, "rb") as stream:
        text = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if text:
        return json.loads(text)
    if status:
        kind = "Killed" if status == -signal.SIGKILL else "Crashed"
        message = f"one of its processes ended with status {status}"
        return {"type": kind, "message": message, "trace": ""}
    return None


def _report(error: BaseException) -> Any:
    """What an error says, and its trace for --debug."""
    if isinstance(error, CodegenFailure):
        return error.args[0]
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    message = str(error)[-8000:]
    if ".yaml:" not in message:
        message += _under_way(error)
    # a parser's message keeps to 64 KiB, which is what a pipe takes without a reader
    return {
        "type": type(error).__name__, "message": message, "trace": trace[-20000:],
        "formula": _formula(error), "autograd": f"{AUTOGRAD.rpartition('.')[2]}/" in trace,
    }  # fmt: skip


def _formula(error: BaseException) -> str:
    """The operator whose derivative formulas were being read; '' where none were."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "create_differentiability_info":
            return str(frame.f_locals.get("specification")).partition("(")[0]
    return ""


def _under_way(error: BaseException) -> str:
    """Where the function stands that the generator was at, as its own messages say it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(frame.f_code.co_name == "load_deprecated_signatures" for frame in frames):
        return ""  # the functions there are those that a signature does not match
    for frame in reversed(frames):
        for value in frame.f_locals.values():
            parts = [getattr(value, name, None) for name in ("function", "functional", "func")]
            for one in (value, *parts):
                place = getattr(one, "loc", None)
                if type(place).__name__ == "Location":
                    return f"\n  in {place}:\n"
    return ""


TASKS = {task.__name__: task for task in (headers, operators, describe, finished, sources, trial)}


def main() -> None:
    """Read a request (JSON) from the first argument's file, write the answer to the second's."""
    # A shell starts background programs with interrupts ignored; our supervisor ends us by one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    # torchgen's objects live until the end: a tenth of its time went into looking for dead ones.
    gc.set_threshold(200_000, 50, 100)
    try:
        answer = TASKS[request["task"]](request)
    except BaseException as error:
        answer = {"error": _report(error)}
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
