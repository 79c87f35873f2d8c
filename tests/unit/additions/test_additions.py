"""Reading additions: names, lines and sources; each fault in them with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_additions as sample

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


def test_a_line_belongs_to_the_entry_above_it(tmp_path: Path) -> None:
    native = sample.write(tmp_path).native
    assert [native.entry_at(line) for line in (1, 2, 6)] == [None, *[native.entries[0]] * 2]
    assert native.entry_at(9) == native.entries[1]


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
    assert len(prints) == 6
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
        ("- func: a() -> Tensor\n  tags: x\n  tags: y\n", 3, "'tags' stands twice"),
        ("- func: a() -> Tensor\n  dispatch:\n    CPU: x\n    CPU: y\n", 4, "'CPU' stands twice"),
    ],
)
def test_faults_of_form_name_their_line(tmp_path: Path, native: str, line: int, says: str) -> None:
    with pytest.raises(AdditionsError, match=says) as caught:
        sample.write(tmp_path, native)
    assert caught.value.where == f"{tmp_path}/native_functions_additions.yaml:{line}"
    assert caught.value.exit_code == 10 and caught.value.next


def test_text_that_is_not_utf8_is_malformed_and_no_crash(tmp_path: Path) -> None:
    (tmp_path / "native_functions_additions.yaml").write_bytes(b"- func: \xff\xfe\n")
    with pytest.raises(AdditionsError, match="malformed"):
        load(tmp_path)


def test_an_operator_declared_twice_names_both_lines(tmp_path: Path) -> None:
    twice = "- func: a(Tensor self) -> Tensor\n- func: a(Tensor self, int n) -> Tensor\n"
    with pytest.raises(CollisionError) as caught:
        sample.write(tmp_path, twice)
    assert caught.value.where.endswith(":2") and ".yaml:1 " in caught.value.why


def test_overloads_of_one_name_are_no_duplicates(tmp_path: Path) -> None:
    overloads = "- func: a(Tensor self) -> Tensor\n- func: a.n(Tensor self, int n) -> Tensor\n"
    assert len(sample.write(tmp_path, overloads).native.entries) == 2


def test_an_empty_directory_is_no_additions_and_an_empty_file_adds_nothing(tmp_path: Path) -> None:
    with pytest.raises(AdditionsError, match="no additions directory") as caught:
        load(tmp_path)
    assert "--additions" in caught.value.next
    empty = sample.write(tmp_path, "# nothing yet\n")
    assert empty.native.entries == () and empty.sources == ()
