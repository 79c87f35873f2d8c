"""Reading additions: names, lines and sources; each fault in them with its line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sample_additions as sample
from sample_files import lay

from torchfork.additions.load import load
from torchfork.errors import AdditionsError, CollisionError


def test_entries_know_their_names_and_the_lines_of_their_fields(tmp_path: Path) -> None:
    additions = sample.write(tmp_path, derivatives=sample.DERIVATIVES)
    first, second = additions.native.entries
    assert (first.name, second.name) == ("swing", "sway.more")
    assert first.where() == f"{tmp_path}/native_functions_additions.yaml:2"
    assert first.where("dispatch").endswith(":4") and first.where("autogen").endswith(":6")
    assert second.where().endswith(":8")
    assert additions.derivatives.entries[0].where("self").endswith("derivatives_additions.yaml:2")
    assert additions.native_entry("sway.more") == second
    assert additions.native_entry("sway") is None
    above = [additions.native.entry_at(line) for line in (1, 2, 6, 9)]
    assert above == [None, first, first, second]


def test_sources_are_found_below_aten_src_and_nothing_else_is(tmp_path: Path) -> None:
    additions = sample.write(
        tmp_path,
        native__Swing_cpp="", native__cpu__SwingKernel_cpp="", native__cuda__Swing_cu="",
        native__SwingFunctionsManual_h="", native__cuda__Swing_cuh="",
        native__notes_txt="", native__Swing_orig="",
    )  # fmt: skip
    names = [path.relative_to(additions.source_root).as_posix() for path in additions.sources]
    assert names == [
        "native/Swing.cpp", "native/SwingFunctionsManual.h", "native/cpu/SwingKernel.cpp",
        "native/cuda/Swing.cu", "native/cuda/Swing.cuh",
    ]  # fmt: skip
    assert additions.manual_headers == ("ATen/native/SwingFunctionsManual.h",)
    assert len(additions.headers) == 2


def test_any_edit_changes_the_fingerprint_and_a_copy_elsewhere_does_not(tmp_path: Path) -> None:
    prints = {
        sample.write(tmp_path / "a").fingerprint(),
        sample.write(tmp_path / "b", sample.NATIVE + "# x\n").fingerprint(),
        sample.write(tmp_path / "c", derivatives=sample.DERIVATIVES).fingerprint(),
        sample.write(tmp_path / "d", native__Swing_cpp="").fingerprint(),
        sample.write(tmp_path / "e", native__Swing_cpp=" ").fingerprint(),
        sample.write(tmp_path / "f", native__Sway_cpp=" ").fingerprint(),
    }
    patched = sample.write(tmp_path / "g")
    for text in ("", "1\n"):
        lay(patched.root, {"patches/series": "x * both # y\n", "patches/x/torch/n.py": text})
        prints.add(patched.fingerprint())
    assert len(prints) == 8
    assert sample.write(tmp_path / "ä b").fingerprint() in prints


@pytest.mark.parametrize(
    ("native", "line", "says"),
    [
        ("- func: a(Tensor self) -> Tensor\n  autogen: [a.out\n", 2, "malformed"),
        ("- func: a(Tensor self) -> Tensor\n\tvariants: method\n", 2, "malformed"),
        ("func: a(Tensor self) -> Tensor\n", 1, "not a list"),
        ("# x\n- variants: method\n", 2, "no 'func'"),
        ("- func: 3\n", 1, "no 'func'"),
        ("- just text\n", 1, "not a mapping"),
        # What is right by itself and not after upstream's entries, or not to PyTorch's parser.
        ("# x\n---\n- func: a() -> Tensor\n", 2, "document of its own"),
        ("\n  - func: a() -> Tensor\n", 2, "as upstream's"),
        ("[{func: a() -> Tensor}]\n", 1, "as upstream's"),
        ("- func: >\n    a(Tensor x,\n    Tensor y) -> Tensor\n", 1, "has a line end"),
        ("- func: a(Tensor x,  Tensor y) -> Tensor\n", 1, "blanks where one"),
        ("- func: a() -> Tensor\n  tags: x\n  tags: y\n", 3, "'tags' stands twice"),
        ("- func: a() -> Tensor\n  dispatch:\n    CPU: x\n    CPU: y\n", 4, "'CPU' stands twice"),
    ],
)
def test_faults_of_form_name_their_line(tmp_path: Path, native: str, line: int, says: str) -> None:
    with pytest.raises(AdditionsError, match=says) as caught:
        sample.write(tmp_path, native)
    assert caught.value.where == f"{tmp_path}/native_functions_additions.yaml:{line}"
    assert caught.value.exit_code == 10 and caught.value.next


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("native_functions.yaml", "native_functions_additions.yaml"),
        ("derivatives_additions.yml", "derivatives_additions.yaml"),
        ("fake_impls.py", "fake_impls_additions.py"),
    ],
)
def test_a_file_under_a_name_that_nobody_reads_is_refused(
    tmp_path: Path, name: str, right: str
) -> None:
    read = sample.write(tmp_path)
    if right == read.native.path.name:
        read.native.path.unlink()
    lay(tmp_path, {name: ""})
    with pytest.raises(AdditionsError, match="is not read") as caught:
        load(tmp_path)
    assert caught.value.where == f"{tmp_path}/{name}" and right in caught.value.why
    lay(tmp_path, {right: ""})
    assert load(tmp_path)


ENTRY = "- func: a(Tensor self) -> Tensor\n"
NESTED_ALIASES = "- func: x\n  a: &a [x, x]\n  b: &b [*a, *a]\n"
HOSTILE = [
    *((f"{ENTRY}  tags: {value}\n", 2) for value in (
        "2020-99-99", "!!int abc", "!!int ''", "0b_", "0x_", "9" * 5000, "!!float x", "!!bool x",
        "!!timestamp x", "!!python/name:os.system", "!mine x", "*nowhere", "&self [*self]",
        "[" * 5000 + "]" * 5000, "{a: " * 5000 + "}" * 5000,
    )),
    (ENTRY + "\n  ? [a, b]\n  : c\n", 3),
    (ENTRY + "  <<: {variants: method}\n", 2),
    (ENTRY + "  tags: \x07\n", 2),
    (NESTED_ALIASES, 3),
    ("- " * 5000, 1),
    (ENTRY + "---\n" + ENTRY, 2),
    ("- func: &a a(Tensor self) -> Tensor\n" + "- func: *a\n" * 2000, 1002),
    ("\x00", 1),
    (b"- func: a(Tensor self) -> Tensor\n- func: \xff\xfe\n", 2),
    ("- func: \u00e4".encode("utf-16"), 1),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), HOSTILE)
def test_hostile_yaml_is_refused_at_its_line_in_bounded_time(
    tmp_path: Path, text: str | bytes, line: int
) -> None:
    path = tmp_path / "native_functions_additions.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    started = time.monotonic()
    with pytest.raises(AdditionsError) as caught:
        load(tmp_path)
    assert caught.value.where == f"{path}:{line}"
    assert time.monotonic() - started < 5


def test_a_byte_order_mark_is_no_part_of_an_entry(tmp_path: Path) -> None:
    read = sample.write(tmp_path, "\ufeff" + sample.NATIVE, "\ufeff" + sample.DERIVATIVES)
    assert read.native.text == sample.NATIVE  # as it is appended to upstream's
    assert [e.name for e in read.derivatives.entries] == ["swing"]


def test_a_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    sample.write(tmp_path)
    for name in ("derivatives_additions.yaml", "aten_src/native/X.cpp"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            stream.truncate(1 << 33)
        with pytest.raises(AdditionsError, match="too large") as caught:
            load(tmp_path)
        assert caught.value.where == str(path)
        path.unlink()


@pytest.mark.parametrize(
    "put",
    [os.mkfifo, *(lambda path, to=to: path.symlink_to(to) for to in ("nowhere", "/dev/zero"))],
    ids=["FIFO", "dangling link", "link out"],
)
@pytest.mark.parametrize(
    "name",
    ["native_functions_additions.yaml", "derivatives_additions.yaml", "deprecated_additions.yaml",
     "fake_impls_additions.py", "aten_src", "aten_src/native", "aten_src/native/X.cpp",
     "aten_src/native/X.h", "aten_src/native/cuda/X.cuh", "patches", "patches/series",
     "overlay.toml", "citizenship.toml", "samples.py"],
)  # fmt: skip
def test_a_path_that_exists_and_cannot_be_read_is_never_absent(
    tmp_path: Path, put: Callable[[Path], None], name: str
) -> None:
    sample.write(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    put(path)
    with pytest.raises(AdditionsError) as caught:
        load(tmp_path)
    assert caught.value.where == str(path) and caught.value.why


@pytest.mark.parametrize(
    ("name", "put", "why"),
    [("aten_src", Path.touch, "a file, and a directory"),
     ("patches", Path.touch, "a file, and a directory"),
     ("derivatives_additions.yaml", Path.mkdir, "a directory, and a file")],
)  # fmt: skip
def test_a_file_where_a_directory_belongs_is_refused_and_the_other_way_round(
    tmp_path: Path, name: str, put: Callable[[Path], None], why: str
) -> None:
    sample.write(tmp_path)
    put(tmp_path / name)
    with pytest.raises(AdditionsError, match=f"it is {why} belongs here"):
        load(tmp_path)


def test_links_inside_the_additions_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    sample.write(tmp_path, native__Swing_cpp="")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "Sway.cpp").write_text("")
    source = tmp_path / "aten_src" / "native"
    (source / "cpu").symlink_to("../../more")
    (source / "Copy.cpp").symlink_to("Swing.cpp")
    names = [path.relative_to(tmp_path).as_posix() for path in load(tmp_path).sources]
    assert names == ["aten_src/native/Copy.cpp", "aten_src/native/Swing.cpp",
                     "aten_src/native/cpu/Sway.cpp"]  # fmt: skip
    (tmp_path / "more" / "round").symlink_to("../aten_src")
    with pytest.raises(AdditionsError, match="directory that contains it"):
        load(tmp_path)


def test_every_fault_of_an_additions_directory_is_named_in_one_run(tmp_path: Path) -> None:
    sample.write(tmp_path)
    (tmp_path / "derivatives_additions.yaml").write_text("- name: [\n")
    (tmp_path / "deprecated_additions.yaml").write_text("- 3\n")
    (tmp_path / "patches").write_text("")
    with pytest.raises(AdditionsError) as caught:
        load(tmp_path)
    said = caught.value.render()
    for name in ("derivatives_additions.yaml:", "deprecated_additions.yaml:1", "patches"):
        assert f"{tmp_path}/{name}" in said


def test_an_operator_declared_twice_is_refused_and_an_overload_is_not(tmp_path: Path) -> None:
    twice = "- func: a(Tensor self) -> Tensor\n- func: a(Tensor self, int n) -> Tensor\n"
    with pytest.raises(CollisionError) as caught:
        sample.write(tmp_path, twice)
    assert caught.value.where.endswith(":2") and ".yaml:1 " in caught.value.why
    overloads = twice.replace("a(Tensor self, int", "a.n(Tensor self, int")
    assert len(sample.write(tmp_path, overloads).native.entries) == 2


def test_an_empty_directory_is_no_additions_and_an_empty_file_adds_nothing(tmp_path: Path) -> None:
    with pytest.raises(AdditionsError, match="no additions directory") as caught:
        load(tmp_path)
    assert "--additions" in caught.value.next
    empty = sample.write(tmp_path, "# nothing yet\n")
    assert empty.native.entries == () and empty.sources == ()
