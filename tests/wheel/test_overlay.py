"""An overlay beside an official torch: active everywhere that torch is, and nothing left behind."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from subject import Archive, Subject

from torchfork.upstream.base import Base
from torchfork.util import venv

HAS = "import json, torch; print(json.dumps(hasattr(torch, 'gdh')))"


def contents(root: Path) -> dict[str, str]:
    """Every file below a directory with its hash; what an import compiles is left out."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def said(subject: Subject, *arguments: str | Path, **extra: str) -> str:
    done = subject.run([subject.python, *arguments], cwd=None, **extra)
    return done.stdout.strip().splitlines()[-1]


def test_it_is_small_and_requires_exactly_its_torch(overlay_wheel: Path, wheel: Archive) -> None:
    assert overlay_wheel.stat().st_size < 5e6
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


def test_torchs_own_files_stay_as_they_were(with_overlay: Subject, base: Base) -> None:
    original = contents(base.root / "torch")
    assert len(original) > 5000
    assert contents(with_overlay.site / "torch") == original


@pytest.mark.parametrize("flag", ["-I", "-E", "-B"])
def test_flags_of_the_interpreter_do_not_matter(with_overlay: Subject, flag: str) -> None:
    assert said(with_overlay, flag, "-c", HAS) == "true"


def test_where_pth_files_are_not_read_importing_it_first_activates_it(
    with_overlay: Subject,
) -> None:
    site = str(with_overlay.site)
    assert said(with_overlay, "-S", "-c", HAS, PYTHONPATH=site) == "false"
    assert said(with_overlay, "-S", "-c", f"import torch_ext; {HAS}", PYTHONPATH=site) == "true"


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
