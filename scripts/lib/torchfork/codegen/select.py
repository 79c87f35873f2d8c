"""Chooses which generated files the graft compiles, and adapts the few that assume a full build."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..util.files import write_if_changed

# Enumerations and lists that libtorch has compiled in and that must keep its values; and files
# for builds of another kind.
NEVER = re.compile(
    r"^(ATenOpList|python_enum_tag|TensorMethods|Functions_hand|RedispatchFunctions|"
    r"RegisterCodegenUnboxedKernels|UnboxingFunctions|annotated_fn_args)"
)
_SHARD = re.compile(r"^(?P<stem>.*)_\d+$")
_CUDA_KEY = re.compile(r"^(Register\w*CUDA|Ufunc\w*CUDA)")
_OTHER_DEVICE = re.compile(r"^Register\w*(MPS|XPU|MTIA|HIP|VE|IPU|HPU|Vulkan|PrivateUse1)")


@dataclass(frozen=True)
class Generated:
    """A generated source that has something of ours in it."""

    name: str  # 'ATen/RegisterCPUEverything.cpp'
    python: bool  # belongs into torch/_C, the others into libtorch


def choose(generated: Path, sources: Path, *, cuda: bool) -> list[Generated]:
    """Adapt and copy every source that differs between "the added functions" and "none".

    Of files that are also generated in shards the unsharded one is taken: the additions are few.
    A file whose text stays the same keeps its mtime; files of an earlier choice are removed.
    """
    chosen: list[Generated] = []
    for path in sorted((generated / "added").rglob("*.c*")):
        relative = path.relative_to(generated / "added")
        if "aoti" in relative.parts or not _wanted(path, cuda):
            continue
        twin = generated / "none" / relative
        text = path.read_text(encoding="utf-8")
        if not (twin.is_file() and twin.read_text(encoding="utf-8") == text):
            target = sources / relative.parent.name / relative.name
            write_if_changed(target, adapt(relative.stem, text))
            python = relative.stem.startswith("python_") or "PythonBinding" in relative.stem
            chosen.append(Generated(f"{relative.parent.name}/{relative.name}", python))
    keep = {sources / item.name for item in chosen}
    for stale in [p for p in sources.rglob("*.c*") if p not in keep]:
        stale.unlink()
    return chosen


def _wanted(path: Path, cuda: bool) -> bool:
    if path.suffix not in {".cpp", ".cu"} or NEVER.match(path.stem):
        return False
    shard = _SHARD.match(path.stem)
    if shard and path.with_name(f"{shard['stem']}Everything{path.suffix}").exists():
        return False
    if path.stem == "Functions" and path.parent.name == "ATen":
        return False
    return (cuda or not _CUDA_KEY.match(path.stem)) and not _OTHER_DEVICE.match(path.stem)


def adapt(stem: str, text: str) -> str:
    """The text as a second library beside libtorch can hold it."""
    if stem == "RegisterSchema":
        # One TORCH_LIBRARY a namespace is allowed in a process, and libtorch has it.
        text = re.sub(r"\bTORCH_LIBRARY\(", "TORCH_LIBRARY_FRAGMENT(", text)
        text = re.sub(r"^.*m\.def\(\"get_gradients\(.*\n", "", text, flags=re.MULTILINE)
    if stem == "python_return_types":
        # Overloads beside an added one keep the type that they have: isinstance, pytrees and vmap
        # know only one type of a name.
        text = re.sub(
            r"(PyTypeObject\* get_(\w+)_structseq\(\) \{.*?return )(&\w+);",
            r'\1torchfork::return_type("\2", \3);',
            text,
            flags=re.DOTALL,
        )
    if stem == "ViewMetaClassesPythonBinding":
        text = (
            '#include "python_glue.h"\n'
            + text
            + "\nstatic torchfork::Initializer torchfork_initializer(\n"
            + '    "_functionalization", &torch::functionalization::initGenerated, nullptr);\n'
        )
    return text
