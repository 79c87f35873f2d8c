"""An overlay beside an official torch: active everywhere that torch is, and nothing left behind."""

from __future__ import annotations

import os
from pathlib import Path

from subject import Archive, Subject

from torchfork.upstream.archives import read_record
from torchfork.util.files import sha256_file


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


def test_compiled_scripted_and_pickled_programs_run_where_pth_files_are_not_read(
    with_overlay: Subject, subject: Subject, tmp_path: Path
) -> None:
    """With inductor's compilers in worker processes, and as AOTInductor's package."""
    program = tmp_path / "programs.py"
    program.write_text(
        """
import io, json, pickle, sys, torch_ext, torch
from torch._inductor import aoti_compile_and_package, aoti_load_package, config
from torch._inductor.async_compile import AsyncCompile

config.compile_threads, config.worker_start_method = 2, "subprocess"
AsyncCompile.wait_pool_ready()
x, w = torch.rand(1, 2, 5, 5), torch.rand(2, 1, 3, 3)

def f(x, w):
    return torch.sigmoid_ext(torch.depthwise_conv2d_ext(x, w, padding=1)).sin().gdh()

class F(torch.nn.Module):
    def forward(self, x, w):
        return f(x, w)

expected = f(x, w)
scripted = torch.jit.script(f)
compiled = torch.compile(f, fullgraph=True)
saved = io.BytesIO()
torch.jit.save(scripted, saved)
saved.seek(0)
conv = torch.nn.DepthwiseConv2dExt(2, padding=1)
again = pickle.loads(pickle.dumps(conv))
exported = torch.export.export(F(), (x, w))
package = aoti_compile_and_package(exported, package_path=__file__ + ".pt2")
print(json.dumps([
    torch.equal(scripted(x, w), expected), torch.allclose(compiled(x, w), expected),
    torch.equal(torch.jit.load(saved)(x, w), expected), torch.equal(again(x), conv(x)),
    torch.allclose(aoti_load_package(package)(x, w), expected),
]))
"""
    )
    path = f"{with_overlay.site}{os.pathsep}{subject.site}"
    done = with_overlay.run([with_overlay.python, "-S", program], PYTHONPATH=path)
    assert done.stdout.splitlines()[-1] == "[true, true, true, true, true]"


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


def test_torchs_own_files_stay_as_they_were(with_overlay: Subject, base_wheel: Archive) -> None:
    """Nothing but what imports compile is new, after all the tests above."""
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
