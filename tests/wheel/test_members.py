"""The wheel's files: METADATA holds, and nothing differs from the base but what must.

That RECORD lists every file with its hash, each build verifies: wheel/verify.py.
"""

from __future__ import annotations

import re

import pytest
from subject import PROJECT, Archive, Subject

from torchfork.additions.load import load
from torchfork.codegen.model import Manifest
from torchfork.edits import patches

# Every file that a graft may change, by what changes it. Anything else that differs from the base
# is a fault.
CHANGED = {
    "the two libraries that take the place of stubs": r"torch/lib/libtorch\.so|torch/_C\.[^/]+\.so",
    "headers that list all operators": (
        r"torch/include/ATen/(Functions|MethodOperators|NativeFunctions|NativeMetaFunctions|Operators"
        r"|RedispatchFunctions|RegistrationDeclarations|VmapGeneratedPlumbing|\w+Functions_inl)\.h"
        r"|torch/include/ATen/core/TensorBody\.h"
        r"|torch/include/torch/csrc/autograd/generated/(Functions|VariableType|ViewFuncs"
        r"|variable_factories|python_return_types)\.h"
    ),
    "the header that a FunctionsManual of one's own hooks into": (
        r"torch/include/torch/csrc/autograd/FunctionsManual\.h"
    ),
    "the packaged YAML files": (
        r"torchgen/packaged/ATen/native/native_functions\.yaml"
        r"|torchgen/packaged/autograd/(derivatives|deprecated)\.yaml"
    ),
    "lists of the code generator that name operators": (
        r"torchgen/packaged/autograd/gen_\w+\.py|torchgen/native_function_generation\.py"
    ),
    "Python lists that name operators": (
        r"torch/overrides\.py|torch/_dynamo/trace_rules\.py|torch/utils/_device\.py"
    ),
    "type stubs": r"torch/(_C/\w+|_VF|return_types|nn/functional)\.pyi",
    "the version": r"torch/version\.py|dist-info/(METADATA|RECORD|WHEEL)",
}
NEW = r"torch/include/ATen/ops/(?P<operator>\w+?)(_native|_ops|_meta|_[a-z0-9]+_dispatch)?\.h"


def kinds_of(name: str) -> list[str]:
    return [kind for kind, pattern in CHANGED.items() if re.fullmatch(pattern, name)]


def test_what_is_installed_agrees_with_itself(subject: Subject) -> None:
    assert "No broken requirements" in subject.run([subject.python, "-m", "pip", "check"]).stdout


def test_every_place_that_tells_the_version_tells_the_same_one(subject: Subject) -> None:
    told = subject.ask(
        "import importlib.metadata as m, json, torch, torch.version as v\n"
        "print(json.dumps([torch.__version__, v.__version__, m.version('torch')]))"
    )
    infos = {
        info.filename.split("/")[0]
        for info in subject.wheel.members.values()
        if ".dist-info/" in info.filename
    }
    assert set(told) == {subject.wheel.version}
    assert subject.wheel.metadata["Version"] == subject.wheel.version
    assert infos == {f"torch-{subject.wheel.version}.dist-info"}


def test_metadata_differs_from_the_bases_in_the_version_alone(
    wheel: Archive, base_wheel: Archive
) -> None:
    ours = wheel.text("dist-info/METADATA").splitlines()
    theirs = base_wheel.text("dist-info/METADATA").splitlines()
    differing = [(a, b) for a, b in zip(theirs, ours, strict=True) if a != b]
    assert differing == [
        (f"Version: {base_wheel.metadata['Version']}", f"Version: {wheel.version}")
    ]
    assert wheel.metadata.get_all("Requires-Dist") == base_wheel.metadata.get_all("Requires-Dist")
    assert wheel.text("dist-info/WHEEL") == base_wheel.text("dist-info/WHEEL")


def test_torch_version_file_differs_from_the_bases_in_the_version_alone(
    wheel: Archive, base_wheel: Archive
) -> None:
    theirs = base_wheel.text("torch/version.py")
    assert theirs.count(base_wheel.version) == 1
    assert wheel.text("torch/version.py") == theirs.replace(base_wheel.version, wheel.version)


def test_no_file_of_the_base_is_missing(wheel: Archive, base_wheel: Archive) -> None:
    assert not base_wheel.members.keys() - wheel.members.keys()


def patched(base_wheel: Archive) -> set[str]:
    """The files that our patches change or add."""

    def read(name: str) -> str | None:
        return base_wheel.text(name) if name in base_wheel.members else None

    tree = patches.Tree(read, lambda: base_wheel.members)
    report = patches.plan(patches.load(PROJECT), tree, base_wheel.version, "graft")
    assert report.ok and report.texts
    return set(report.texts)


def test_only_files_that_a_graft_must_change_differ_from_the_base(
    wheel: Archive, base_wheel: Archive
) -> None:
    differing = {
        name
        for name, member in base_wheel.members.items()
        if (member.CRC, member.file_size)
        != (wheel.members[name].CRC, wheel.members[name].file_size)
    }
    assert not {name for name in differing - patched(base_wheel) if not kinds_of(name)}
    found = {kind for name in differing for kind in kinds_of(name)}
    assert {
        "the two libraries that take the place of stubs",
        "headers that list all operators",
        "the packaged YAML files",
        "Python lists that name operators",
        "type stubs",
        "the version",
    } <= found


def test_new_files_are_patches_headers_of_added_operators_and_of_their_sources(
    wheel: Archive, base_wheel: Archive, added: Manifest
) -> None:
    sources = load(PROJECT)
    own = {
        f"torch/include/ATen/{path.relative_to(sources.source_root).as_posix()}"
        for path in sources.headers
    }
    new = wheel.members.keys() - base_wheel.members.keys()
    of_patches = patched(base_wheel) - base_wheel.members.keys()
    assert own | of_patches <= new
    for name in sorted(new - own - of_patches):
        found = re.fullmatch(NEW, name)
        assert found, f"{name} is no header of an operator"
        assert found["operator"] in added.base_names, name
    for operator in added.base_names:
        for kind in ("", "_ops", "_native"):
            assert f"torch/include/ATen/ops/{operator}{kind}.h" in new


@pytest.mark.parametrize("attribute", ["compress_type", "external_attr"])
def test_unchanged_files_keep_their_compression_and_mode(
    wheel: Archive, base_wheel: Archive, attribute: str
) -> None:
    def kept(value: int) -> object:
        # Of a mode, whether one may execute the file: group and others are normalised.
        return bool(value >> 16 & 0o100) if attribute == "external_attr" else value

    differing = [
        name
        for name, member in base_wheel.members.items()
        if kept(getattr(member, attribute)) != kept(getattr(wheel.members[name], attribute))
        and not kinds_of(name)
    ]
    assert not differing
