"""An overlay beside an official torch: active everywhere that torch is, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from subject import Archive, Subject

from torchfork.upstream.archives import read_record
from torchfork.upstream.base import Base
from torchfork.util import venv
from torchfork.util.files import sha256_file

HAS = "import json, torch; print(json.dumps(hasattr(torch, 'gdh')))"


def said(subject: Subject, *arguments: str | Path, **extra: str) -> str:
    done = subject.run([subject.python, *arguments], cwd=None, **extra)
    return done.stdout.strip().splitlines()[-1]


def test_it_is_small_and_requires_exactly_its_torch(overlay_wheel: Path, wheel: Archive) -> None:
    assert overlay_wheel.stat().st_size < 4e6
    metadata = Archive(overlay_wheel).metadata
    assert metadata["Requires-Dist"] == f"torch=={wheel.version.partition('+')[0]}"


def test_functions_methods_modules_and_autograd_nodes_are_there(with_overlay: Subject) -> None:
    program = """
import json, torch
x = torch.arange(6.0).reshape(2, 3).requires_grad_()
node = torch.sigmoid_ext(x).grad_fn.name()
conv = torch.nn.DepthwiseConv2dExt(2)
torch.nn.functional.depthwise_conv2d_ext(torch.ones(1, 2, 4, 4), conv.weight).sum().backward()
print(json.dumps([node, x.gdh().shape == (6,), conv.weight.grad is not None]))
"""
    assert with_overlay.ask(program) == ["SigmoidExtBackward0", True, True]


def test_torchs_own_files_stay_as_they_were(with_overlay: Subject, base_wheel: Archive) -> None:
    """Nothing but what imports compile is new, and every file is the wheel's."""
    torch = with_overlay.site / "torch"
    there = {
        path.relative_to(with_overlay.site).as_posix(): path
        for path in torch.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    record = read_record(base_wheel.text("dist-info/RECORD"))
    rows = {name: row for name, row in record.items() if name.startswith("torch/")}
    assert len(rows) > 5000 and there.keys() == rows.keys()
    wrong = [
        name
        for name, row in rows.items()
        if not row.matches(bytes.fromhex(sha256_file(there[name])))
    ]
    assert wrong == []


@pytest.mark.parametrize("flag", ["-I", "-E", "-B"])
def test_flags_of_the_interpreter_do_not_matter(with_overlay: Subject, flag: str) -> None:
    assert said(with_overlay, flag, "-c", HAS) == "true"


@pytest.mark.parametrize("place", ["the environment's own", "a --target directory"])
def test_where_pth_files_are_not_read_importing_it_first_activates_it(
    with_overlay: Subject, subject: Subject, overlay_wheel: Path, tmp_path: Path, place: str
) -> None:
    site = [str(with_overlay.site), str(subject.site)]  # what torch requires is in the second
    if place == "a --target directory":
        install: list[str | Path] = ["-m", "pip", "install", "--no-deps", "--target", tmp_path]
        with_overlay.run([with_overlay.python, *install, overlay_wheel])
        site.insert(0, str(tmp_path))
    path = os.pathsep.join(site)
    assert said(with_overlay, "-S", "-c", HAS, PYTHONPATH=path) == "false"
    program = f"import torch_ext; {HAS}; print(torch_ext.__file__)"
    done = with_overlay.run([with_overlay.python, "-S", "-c", program], PYTHONPATH=path)
    assert done.stdout.split() == ["true", f"{site[0]}/torch_ext/__init__.py"]


def test_in_an_archive_one_line_says_why_it_cannot_be_active(
    with_overlay: Subject, overlay_wheel: Path
) -> None:
    done = subprocess.run(
        [with_overlay.python, "-S", "-c", f"import torch_ext; {HAS}"], cwd=with_overlay.neutral,
        env={**with_overlay.environment(),
             "PYTHONPATH": os.pathsep.join(map(str, (overlay_wheel, with_overlay.site)))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: torch_ext lies in an archive")
    assert str(overlay_wheel) in last


def test_an_environment_above_another_one_has_torch_from_below(
    with_overlay: Subject, subject: Subject, overlay_wheel: Path, base: Base, tmp_path: Path
) -> None:
    """As with --system-site-packages: torch lies below, the overlay in the environment's own."""
    python = venv.make(tmp_path / "above", base.interpreter, tmp_path, "")
    assert (
        venv.pip_run(python, tmp_path, "install", "--no-deps", str(overlay_wheel)).returncode == 0
    )
    question = "import sysconfig; print(sysconfig.get_path('platlib'))"
    site = Path(with_overlay.run([python, "-c", question]).stdout.strip())
    (site / "below.pth").write_text(f"{with_overlay.site}\n{subject.site}\n")
    program = f"{HAS}; print(torch.__file__)"
    done = with_overlay.run([python, "-c", program])
    assert done.stdout.split() == ["true", str(with_overlay.site / "torch/__init__.py")]


@pytest.mark.parametrize("first", ["torch", "torchgen"])
def test_code_generators_see_the_additions(with_overlay: Subject, first: str) -> None:
    program = f"""
import json, {first}, pathlib, torchgen
yaml = pathlib.Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
import torch
print(json.dumps(["func: gdh(" in yaml.read_text(), hasattr(torch, "gdh")]))
"""
    assert with_overlay.ask(program) == [True, True]


def test_a_code_generator_of_another_torch_stays_what_it_is(
    with_overlay: Subject, tmp_path: Path
) -> None:
    """Of a checkout, say, that is first on the path."""
    (tmp_path / "torchgen").symlink_to(with_overlay.site / "torchgen")
    program = "import json, torch, torchgen\n"
    program += "print(json.dumps([torchgen.__file__, hasattr(torch, 'gdh')]))"
    found = json.loads(said(with_overlay, "-c", program, PYTHONPATH=str(tmp_path)))
    assert found == [str(tmp_path / "torchgen/__init__.py"), True]


def test_a_variable_switches_it_off(with_overlay: Subject) -> None:
    assert said(with_overlay, "-c", HAS, TORCHFORK_OVERLAY="0") == "false"


def test_a_program_without_torch_imports_one_small_module(with_overlay: Subject) -> None:
    program = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    with_it = set(with_overlay.ask(program))
    site = with_overlay.site
    (site / "torch_ext.pth").rename(site / "torch_ext.off")
    try:
        without = set(with_overlay.ask(program))
    finally:
        (site / "torch_ext.off").rename(site / "torch_ext.pth")
    assert with_it - without == {"torch_ext"}


def test_worker_processes_have_it(with_overlay: Subject, tmp_path: Path) -> None:
    program = tmp_path / "workers.py"
    program.write_text(
        """
import json, multiprocessing, torch

def has(queue):
    import torch
    queue.put(hasattr(torch, "gdh"))

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return torch.ones(2, 2).gdh()

if __name__ == "__main__":
    found = []
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=has, args=(queue,))
        process.start()
        found.append(queue.get(timeout=120))
        process.join()
    loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1)
    found.append([list(batch.shape) for batch in loader] == [[2, 4], [2, 4]])
    print(json.dumps(found))
"""
    )
    assert said(with_overlay, program) == "[true, true, true]"


def test_compiled_scripted_and_pickled_programs_run(with_overlay: Subject, tmp_path: Path) -> None:
    program = tmp_path / "programs.py"
    program.write_text(
        """
import io, json, pickle, torch

x, w = torch.rand(1, 2, 5, 5), torch.rand(2, 1, 3, 3)

def f(x, w):
    return torch.depthwise_conv2d_ext(x, w, padding=1).gdh()

expected = f(x, w)
scripted = torch.jit.script(f)
compiled = torch.compile(f, fullgraph=True)
saved = io.BytesIO()
torch.jit.save(scripted, saved)
saved.seek(0)
conv = torch.nn.DepthwiseConv2dExt(2, padding=1)
again = pickle.loads(pickle.dumps(conv))
print(json.dumps([
    torch.equal(scripted(x, w), expected), torch.allclose(compiled(x, w), expected),
    torch.equal(torch.jit.load(saved)(x, w), expected), torch.equal(again(x), conv(x)),
]))
"""
    )
    assert said(with_overlay, program) == "[true, true, true, true]"


def test_an_extension_calls_the_operators(with_overlay: Subject, tmp_path: Path) -> None:
    """Headers and library of the overlay come before torch's, also under --as-needed."""
    (tmp_path / "extension.cpp").write_text(
        "#include <torch/extension.h>\n"
        "at::Tensor both(const at::Tensor& x) { return at::gdh(x) + x.gdh(); }\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("both", &both); }\n'
    )
    program = f"""
import json, torch
from torch.utils.cpp_extension import load
built = load("extension", [{str(tmp_path / "extension.cpp")!r}],
             build_directory={str(tmp_path)!r}, extra_cflags=["-O0"],
             extra_ldflags=["-Wl,--as-needed"])
print(json.dumps(built.both(torch.ones(2, 2)).tolist()))
"""
    assert with_overlay.ask(program) == [2.0, 2.0, 2.0, 2.0]


@pytest.fixture
def other_torch(with_overlay: Subject, tmp_path: Path) -> Path:
    """A directory with a torch package whose files are links, to change some of."""
    copy = tmp_path / "elsewhere" / "torch"
    copy.mkdir(parents=True)
    for path in (with_overlay.site / "torch").iterdir():
        (copy / path.name).symlink_to(path)
    return copy


def replace(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text, encoding="utf-8")


def test_another_build_of_torch_is_imported_without_it_and_with_one_warning(
    with_overlay: Subject, other_torch: Path
) -> None:
    version = other_torch / "version.py"
    replace(version, version.read_text().replace("git_version = '", "git_version = 'f00"))
    done = with_overlay.run([with_overlay.python, "-c", HAS], PYTHONPATH=str(other_torch.parent))
    assert done.stdout.strip() == "false"
    assert done.stderr.count("UserWarning") == 1
    assert "torch-ext 1.0" in done.stderr and "f00" in done.stderr
    assert "python -m pip install 'torch==" in done.stderr


def test_a_torch_whose_covered_files_were_changed_is_imported_without_it(
    with_overlay: Subject, other_torch: Path
) -> None:
    overrides = other_torch / "overrides.py"
    replace(overrides, overrides.read_text() + "# edited\n")
    done = with_overlay.run([with_overlay.python, "-c", HAS], PYTHONPATH=str(other_torch.parent))
    assert done.stdout.strip() == "false"
    assert "torch/overrides.py of the installed torch was changed" in done.stderr


def test_the_same_torch_from_elsewhere_has_it(with_overlay: Subject, other_torch: Path) -> None:
    assert said(with_overlay, "-c", HAS, PYTHONPATH=str(other_torch.parent)) == "true"


def test_two_overlays_are_refused_and_both_are_named(with_overlay: Subject) -> None:
    site = with_overlay.site
    other = site / "torch_other"
    shutil.copytree(site / "torch_ext", other)
    (site / "torch_other.pth").write_text("import torch_other\n")
    try:
        done = subprocess.run(
            [with_overlay.python, "-c", "import torch"], cwd=with_overlay.neutral,
            env=with_overlay.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        shutil.rmtree(other)
        (site / "torch_other.pth").unlink()
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "ImportError" in last
    assert "torch_ext" in last and "torch_other" in last


@pytest.fixture
def uninstalled(with_overlay: Subject, overlay_wheel: Path) -> Iterator[None]:
    assert venv.pip_run(
        with_overlay.python, with_overlay.neutral, "uninstall", "-y", "torch-ext"
    ).returncode == 0  # fmt: skip
    yield
    outcome = venv.pip_run(
        with_overlay.python, with_overlay.neutral, "install", "--no-deps", str(overlay_wheel)
    )
    assert outcome.returncode == 0


@pytest.mark.usefixtures("uninstalled")
def test_uninstalling_leaves_nothing(with_overlay: Subject) -> None:
    assert said(with_overlay, "-c", HAS) == "false"
    left = [
        path for path in with_overlay.site.rglob("*")
        if "torch_ext" in path.name or path.name == "torch-stubs"
    ]  # fmt: skip
    assert left == []
