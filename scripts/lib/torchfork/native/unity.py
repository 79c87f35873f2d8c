"""Several sources compiled as one: most of their compilation is parsing the same headers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..util import files
from .compile_steps import CompileStep

FOLDER = "united"

_UNDEFINED = "#undef TORCH_ASSERT_ONLY_METHOD_OPERATORS\n#undef TORCH_ASSERT_NO_OPERATORS\n"
# What generated files define under one name, each for itself: structured kernels, helpers of
# registrations, bindings, and the objects that the tooling's own text adds.
_OWN = re.compile(
    r"^(?:struct (structured_\w+)|static PyObject ?\* ?(THPVariable_\w+)\("
    r"|\S.* (create_out|resize_out|check_inplace|maybe_create_proxy)\("
    r"|static .*\b(torchfork_initializer|torchfork_methods|torchfork_table)\b)",
    re.MULTILINE,
)


def generated(step: CompileStep) -> str:
    """The file that a generated or support source becomes a part of in a wheel; '' for none.

    What is linked into torch/_C stays apart, and ATen's registrations, which need neither
    autograd's headers nor its memory (GCC 12: autograd and Python 1.3 GB each).
    """
    top, folder, *_ = step.object.split("/")
    if step.rule != "cxx" or step.ours or "portability" in step.object:
        return ""
    return "python" if step.python else "autograd" if "autograd" in (top, folder) else "ATen"


def checked(step: CompileStep) -> str:
    """In a check: all generated files in one, and the kernels for vectors in one a capability.

    The kernels' own includes are tested by their DEFAULT objects. What else a person wrote is
    compiled alone and must find its own includes: a header that upstream no longer includes from
    another one is what breaks kernels most often.
    """
    if step.ours and step.rule == "cxx":
        return "vectors" if any(flag.startswith("-mavx") for flag in step.flags) else ""
    return "generated" if generated(step) else ""


def unite(
    steps: Sequence[CompileStep], build: Path, group_of: Callable[[CompileStep], str]
) -> list[CompileStep]:
    """The steps with those of a group and the same flags in one file; these, the longest, first.

    group_of: names the file that a step is to be a part of; '' for what is compiled alone.
    In a file the support sources come first, and the bindings to Python, which lend the others no
    header, last.
    """
    build.mkdir(parents=True, exist_ok=True)  # sources are at paths that lead through it
    groups: dict[tuple[str, tuple[str, ...]], list[CompileStep]] = {}
    for step in steps:
        if group := group_of(step):
            groups.setdefault((group, step.flags), []).append(step)
    united = {key: members for key, members in groups.items() if len(members) > 1}
    alone = [step for step in steps if step not in {s for m in united.values() for s in m}]
    made: list[CompileStep] = []
    counts: Counter[str] = Counter()
    for (group, _), members in united.items():
        name = f"{FOLDER}/{group}{counts[group]}.cpp"
        counts[group] += 1
        members.sort(key=lambda step: (step.python, not step.object.startswith("support/")))
        texts = [_member(step, number, build) for number, step in enumerate(members)]
        files.write_if_changed(build / name, "".join(texts))
        made.append(replace(members[0], source=name, object=f"{name}.o"))
    return [*made, *alone]


def _member(step: CompileStep, number: int, build: Path) -> str:
    """One file's text in a united one."""
    if not step.object.startswith("generated/"):
        return f'#include "../{step.source}"\n{_UNDEFINED}'
    text = _renamed((build / step.source).read_text(encoding="utf-8"), number)
    return f'#line 1 "{step.source}"\n{text}\n{_UNDEFINED}'


def _renamed(text: str, number: int) -> str:
    """A generated text in which what it defines for itself has a name of its own."""
    names = {name for found in _OWN.findall(text) for name in found if name}
    if not names:
        return text
    # Not those with a namespace before them: a structured kernel's class may have the name of ours.
    return re.sub(rf"(?<![:\w])({'|'.join(sorted(names))})\b", rf"\1_{number}", text)
