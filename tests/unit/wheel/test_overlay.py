"""An overlay in environments of every kind: it is active, or one line says why it is not.

The torch here is small but real in what matters: libraries that the loader binds by their SONAME,
and a torch._C that asks them which operators there are.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import sample_wheel as sample
from sample_files import lay

from torchfork.upstream.base import Base, Interpreter
from torchfork.upstream.wheel import Opening, open_wheel
from torchfork.wheel.overlay import Name, pack
from torchfork.wheel.pack import DEFAULT_EPOCH

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="makes shared libraries")
TORCH = "torch==9.1.0+cpu"
COMMIT, OTHER = sample.COMMIT[:12], sample.OTHER_COMMIT[:12]
OPERATORS = "import torch; print(*torch._C.operators())"
STOCK, ADDED = "relu", "relu gdh"

SOURCES = {
    "torch_cpu": 'const char *base() { return "relu"; }',
    "torch": "extern const char *base(); const char *names() { return base(); }",
    "torch_python": "extern const char *names(); const char *asked() { return names(); }",
}
WITH_GDH = {
    "torch": 'extern const char *base(); const char *names() { base(); return "relu gdh"; }'
}
BINDINGS = """
#include <Python.h>
extern const char *asked();
static PyObject *operators(PyObject *self, PyObject *args) {
  return PyObject_CallMethod(PyUnicode_FromString(asked()), "split", NULL);
}
static PyMethodDef methods[] = {{"operators", operators, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", "", -1, methods};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""


def compiled(root: Path, sources: Mapping[str, str]) -> None:
    """torch's libraries, each with the one before it as what it needs, and its bindings."""
    library = root / "torch" / "lib"
    library.mkdir(parents=True, exist_ok=True)
    needed: list[str] = []
    include = f"-I{sysconfig.get_path('include')}"
    for name, text in {**sources, "": BINDINGS}.items():
        soname = f"lib{name}.so"
        target = library / soname if name else root / "torch" / f"_C{sample.SUFFIX}"
        rpath = "-Wl,-rpath,$ORIGIN:$ORIGIN/lib"
        command = ["gcc", "-xc", "-", "-shared", "-fPIC", include, "-o", str(target),
                   f"-L{library}", *needed, rpath]  # fmt: skip
        subprocess.run([*command, f"-Wl,-soname,{soname}"] if name else command,
                       input=text, text=True, check=True)  # fmt: skip
        needed = ["-Wl,--no-as-needed", f"-l{name}"]


@dataclass(frozen=True)
class Shelf:
    """A torch, an overlay of it, and other releases of torch: an index for pip and uv."""

    root: Path
    base: Base
    overlay: Path

    @property
    def index(self) -> Path:
        return self.root / "index"


@dataclass(frozen=True)
class Environment:
    """A virtual environment, with what the index has."""

    interpreter: Interpreter
    shelf: Shelf

    @property
    def python(self) -> Path:
        return self.interpreter.executable

    @property
    def site(self) -> Path:
        return self.interpreter.site_packages

    def variables(self, more: Mapping[str, str]) -> dict[str, str]:
        """As a user has them, who installs from the shelf into this environment."""
        hidden = ("PYTHON", "PIP_", "UV_", "TORCHFORK")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        index = str(self.shelf.index)
        pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": index, "PIP_NO_INDEX": "1",
               "PIP_PYTHON": str(self.python), "PIP_YES": "1"}  # fmt: skip
        uv = {"UV_CACHE_DIR": str(self.shelf.root / "uv"), "UV_FIND_LINKS": index,
              "UV_NO_CONFIG": "1", "UV_OFFLINE": "1",
              "VIRTUAL_ENV": str(self.python.parents[1])}  # fmt: skip
        return {**kept, **pip, **uv, **more}

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program, from where no torch lies."""
        return subprocess.run(
            [str(part) for part in command], cwd=self.shelf.root, capture_output=True, text=True,
            env=self.variables(variables), check=False,
        )  # fmt: skip

    def ask(self, program: str, *flags: str, **variables: str) -> tuple[str, str]:
        """What a program prints, and what it says on standard error."""
        done = self.run(self.python, *flags, "-c", program, **variables)
        return done.stdout.strip(), done.stderr.strip()

    def install(self, *what: str | Path, by: str = "uv", **variables: str) -> str:
        """Install, or uninstall; what the installer says."""
        uv = Path(sys.executable).with_name("uv")
        program = [uv, "pip"] if by == "uv" else [sys.executable, "-m", "pip"]
        done = self.run(*program, *what, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    root = tmp_path_factory.mktemp("shelf")
    index = root / "index"
    compiled(root / "base", SOURCES)
    libraries = {
        path.relative_to(root / "base").as_posix(): path.read_bytes()
        for path in (root / "base").rglob("*.so")
    }
    stub = f"torch/_C{sample.SUFFIX}.stub"
    init = {
        "torch/__init__.py": b"from . import _C, overrides\nfrom .version import __version__\n",
        "torchgen/__init__.py": b"",
        "torch/nn/__init__.py": b"", "torch/nn/functional.py": b"",
    }  # fmt: skip

    def torch(version: str, commit: str = sample.COMMIT) -> Path:
        files = {**sample.contents(version, commit=commit), **libraries, **init}
        del files["torch/_C.py"], files[stub]
        return sample.write_wheel(index, sample.with_record(files), version=version)

    official = torch("9.1.0+cpu")
    torch("9.1.0+cu130")
    torch("9.2.0", commit=sample.OTHER_COMMIT)
    known = sample.releases(root / "releases.toml", official)
    base = open_wheel(official, Opening(sample.this_python(), known, root / "cache"))
    tree = root / "tree"
    shutil.copytree(root / "base", tree)
    compiled(tree, {**SOURCES, **WITH_GDH})
    for name in ("torch_cpu", "torch_python"):
        (tree / "torch" / "lib" / f"lib{name}.so").unlink()
    names = {"torch/overrides.py": "NAMES = ['relu', 'gdh']\n", "torch/added.pyi": ""}
    lay(tree, {**names, "torch/nn/__init__.py": "ADDED = 'Gdh'\n"})
    return Shelf(root, base, pack(base, tree, Name("torch-ext", "1.0"), index, DEFAULT_EPOCH))


@pytest.fixture
def bare(shelf: Shelf, tmp_path: Path) -> Environment:
    return Environment(sample.environment(tmp_path / "venv"), shelf)


@pytest.fixture(scope="module")
def kept(shelf: Shelf, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Official torch and the overlay, for tests that change nothing."""
    root = tmp_path_factory.mktemp("kept") / "venv"
    made = Environment(sample.environment(root), shelf)
    made.install("install", TORCH, shelf.overlay)
    return made


@pytest.fixture
def user(kept: Environment, bare: Environment) -> Environment:
    """The same, to be changed."""
    shutil.copytree(kept.site, bare.site, dirs_exist_ok=True)
    return bare


@pytest.mark.parametrize("by", ["pip", "uv"])
def test_both_installers_bring_it_and_leave_nothing(bare: Environment, by: str) -> None:
    """Not even what imports compiled, nor anything among torch's own files."""
    before = set(bare.site.rglob("*"))
    bare.install("install", TORCH, by=by)
    assert bare.ask(OPERATORS) == (STOCK, "")
    bare.install("install", "torch-ext", by=by)
    assert bare.ask(f"{OPERATORS}; import torchgen.gen") == (ADDED, "")
    assert list((bare.site / "torch_ext").rglob("*.pyc"))
    bare.install("uninstall", "torch-ext", by=by)
    assert bare.ask(OPERATORS) == (STOCK, "")
    bare.install("uninstall", "torch", by=by)
    assert set(bare.site.rglob("*")) == before


@pytest.mark.parametrize("flags", ["-I", "-E", "-B", "-O", "-OO", "-Werror"])
def test_flags_of_the_interpreter_do_not_matter(kept: Environment, flags: str) -> None:
    assert kept.ask(OPERATORS, flags) == (ADDED, "")


def test_a_variable_switches_it_off(kept: Environment) -> None:
    assert kept.ask(OPERATORS, TORCHFORK_OVERLAY="0") == (STOCK, "")


def test_a_program_without_torch_imports_one_small_module(user: Environment) -> None:
    modules = "import sys; print(*sorted(sys.modules))"
    with_it = set(user.ask(modules)[0].split())
    (user.site / "torch_ext.pth").write_text("#\n")  # reading brings a codec, from Python 3.13 on
    assert with_it - set(user.ask(modules)[0].split()) == {"torch_ext"}


@pytest.mark.parametrize("place", ["the environment's own", "a --target directory"])
def test_where_pth_files_are_not_read_it_is_imported_before_torch(
    kept: Environment, tmp_path: Path, place: str
) -> None:
    path = str(kept.site)
    if place == "a --target directory":
        kept.install("install", "--no-deps", "--target", tmp_path, kept.shelf.overlay)
        path = os.pathsep.join((str(tmp_path), path))
    assert kept.ask(OPERATORS, "-S", PYTHONPATH=path) == (STOCK, "")
    assert kept.ask(f"import torch_ext\n{OPERATORS}", "-S", PYTHONPATH=path) == (ADDED, "")
    out, warned = kept.ask(f"{OPERATORS}\nimport torch_ext", "-S", PYTHONPATH=path)
    assert out == STOCK
    assert warned.startswith("<string>:2: UserWarning: torch was imported before torch_ext")
    off = {"PYTHONPATH": path, "TORCHFORK_OVERLAY": "0"}
    assert kept.ask(f"{OPERATORS}\nimport torch_ext", "-S", **off) == (STOCK, "")


def in_an_archive(user: Environment) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(map(str, (user.shelf.overlay, user.site)))}


def beside_another(user: Environment) -> dict[str, str]:
    shutil.copytree(user.site / "torch_ext", user.site / "torch_other")
    (user.site / "torch_other.pth").write_text("import torch_other\n")
    return {}


@pytest.mark.parametrize(
    ("arrange", "flags", "said"),
    [
        (in_an_archive, "-S", "torch_ext lies in an archive"),
        (beside_another, "-B", "only one can be active: torch_other and torch_ext"),
    ],
)
def test_what_cannot_be_is_refused_by_one_line_however_often_it_is_tried(
    user: Environment, arrange: Callable[[Environment], dict[str, str]], flags: str, said: str
) -> None:
    """Programs catch an ImportError of torch and go on, and it must not be there by half then."""
    variables = arrange(user)
    once = "import torch_ext\nfor _ in range(3):\n try: import torch\n"
    out, error = user.ask(f"{once} except ImportError as error: print(error)", flags, **variables)
    assert error == "" and out.count(said) == 3 and len(out.splitlines()) == 3
    assert "TORCHFORK_OVERLAY=0" in out
    off = user.ask(OPERATORS, flags, **variables, TORCHFORK_OVERLAY="0")
    assert off == (STOCK, "")


def upgraded(user: Environment) -> dict[str, str]:
    said = user.install("install", "--upgrade", "torch", by="pip")
    assert "torch-ext 1.0+torch9.1.0.cpu requires torch==9.1.0" in said
    return {}


def of_another_build(user: Environment) -> dict[str, str]:
    user.install("install", "torch==9.1.0+cu130")  # which satisfies the overlay's requirement
    return {}


def edited(user: Environment) -> dict[str, str]:
    (user.site / "torch" / "overrides.py").write_text("NAMES = []\n")
    return {}


def editable(user: Environment) -> dict[str, str]:
    """As `pip install --editable` of PyTorch's sources."""
    checkout = user.python.parents[2] / "checkout"
    sample.make_editable(user.site, checkout)
    lay(checkout, {"torch/version.py": sample.version_file("9.3.0a0+git", sample.OTHER_COMMIT)})
    return {}


@pytest.mark.parametrize(
    ("arrange", "found"),
    [
        (upgraded, f"torch 9.2.0 (commit {OTHER}) is installed"),
        (of_another_build, f"torch 9.1.0+cu130 (commit {COMMIT}) is installed"),
        (edited, "torch/overrides.py of the installed torch was changed"),
        (editable, f"torch 9.3.0a0+git (commit {OTHER}) is installed"),
    ],
)
def test_for_another_torch_one_warning_says_so_and_its_command_mends_it(
    user: Environment, arrange: Callable[[Environment], dict[str, str]], found: str
) -> None:
    variables = arrange(user)
    out, warned = user.ask(f"\n{OPERATORS}; import torchgen", **variables)
    assert out == STOCK
    made_for = f"torch-ext 1.0+torch9.1.0.cpu was made for torch 9.1.0+cpu (commit {COMMIT}"
    assert warned.startswith(f"<string>:2: UserWarning: {made_for}")
    assert warned.count("UserWarning") == 1 and found in warned
    if arrange is editable:
        return  # pip would have to uninstall it
    command = shlex.split(warned.partition("To mend it: python -m pip ")[2].partition(" (")[0])
    user.install(*command, by="pip")
    assert user.ask(OPERATORS) == (ADDED, "")


def test_a_changed_package_has_torchs_other_modules_and_place(kept: Environment) -> None:
    place = kept.site / "torch" / "nn" / "__init__.py"
    program = "import torch.nn.functional; print(torch.nn.ADDED, torch.nn.__file__)"
    assert kept.ask(program) == (f"Gdh {place}", "")


def test_the_same_torch_from_elsewhere_has_it(user: Environment, tmp_path: Path) -> None:
    shutil.move(user.site / "torch", tmp_path / "torch")
    assert user.ask(OPERATORS, PYTHONPATH=str(tmp_path)) == (ADDED, "")


def test_a_program_may_ask_for_torch_before_the_path_leads_to_one(
    user: Environment, tmp_path: Path
) -> None:
    """As a notebook does that installs it, or a program that looks for optional packages."""
    shutil.move(user.site / "torch", tmp_path / "torch")
    asked = "import importlib.util as u, sys; assert not u.find_spec('torch')"
    assert user.ask(f"{asked}; sys.path.append({str(tmp_path)!r}); {OPERATORS}") == (ADDED, "")


def test_the_torch_that_is_imported_decides_not_one_that_was_asked_for(
    user: Environment, tmp_path: Path
) -> None:
    user.install("install", "--no-deps", "--target", tmp_path, "torch==9.2.0")
    asked = "import importlib.util as u, sys; assert u.find_spec('torch')"
    program = f"{asked}; sys.path.insert(0, {str(tmp_path)!r}); u.find_spec('torch')"
    out, warned = user.ask(f"{program}\n{OPERATORS}")
    assert out == STOCK
    assert warned.count("UserWarning") == 1 and f"torch 9.2.0 (commit {OTHER})" in warned


def test_other_programs_finders_are_passed_over(user: Environment) -> None:
    """Also one of before Python 3.4, as Python itself does."""
    old = "type('Old', (), {'find_module': lambda *_: None})()"
    (user.site / "first.pth").write_text(f"import sys; sys.meta_path.insert(0, {old})\n")
    assert user.ask(OPERATORS) == (ADDED, "")


def test_an_environment_above_another_one_has_torch_from_below(
    kept: Environment, bare: Environment
) -> None:
    """As with --system-site-packages: torch lies below, the overlay in the environment's own."""
    bare.install("install", "--no-deps", bare.shelf.overlay)
    (bare.site / "below.pth").write_text(f"{kept.site}\n")
    place = kept.site / "torch" / "__init__.py"
    assert bare.ask(f"{OPERATORS}; print(torch.__file__)") == (f"{ADDED}\n{place}", "")


def test_a_user_has_it_in_a_directory_of_their_own(bare: Environment, tmp_path: Path) -> None:
    """pip install --user, with torch in the system's."""
    bare.install("install", TORCH)
    settings = bare.python.parents[1] / "pyvenv.cfg"
    settings.write_text(settings.read_text().replace("packages = false", "packages = true"))
    base = {"PYTHONUSERBASE": str(tmp_path / "user")}
    bare.install("install", "--user", "--no-deps", bare.shelf.overlay, by="pip", **base)
    assert bare.ask(OPERATORS, **base) == (ADDED, "")
    assert bare.ask(OPERATORS, "-s", **base) == (STOCK, "")


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_worker_processes_have_it(kept: Environment, tmp_path: Path, method: str) -> None:
    """Also where .pth files are not read: a worker imports the program's main module."""
    program = tmp_path / "workers.py"
    program.write_text(
        "import multiprocessing\nimport torch_ext\nimport torch\n"
        "if __name__ == '__main__':\n"
        f"    with multiprocessing.get_context({method!r}).Pool(2) as pool:\n"
        "        print(*pool.apply(torch._C.operators))\n"
    )
    for flags in ([], ["-S"]):
        done = kept.run(kept.python, *flags, program, PYTHONPATH=str(kept.site))
        assert (done.stdout.strip(), done.stderr) == (ADDED, "")


@pytest.mark.parametrize("first", ["torch", "torchgen"])
def test_the_code_generator_is_the_overlays(kept: Environment, first: str) -> None:
    program = f"import {first}, torchgen; print(torchgen.__file__); {OPERATORS}"
    own = kept.site / "torch_ext" / "torchgen" / "__init__.py"
    assert kept.ask(program) == (f"{own}\n{ADDED}", "")


def test_a_code_generator_of_another_torch_stays_what_it_is(
    kept: Environment, tmp_path: Path
) -> None:
    """Of a checkout, say, that is first on the path."""
    lay(tmp_path, {"torchgen/__init__.py": ""})
    program = f"{OPERATORS}; import torchgen; print(torchgen.__file__)"
    own = tmp_path / "torchgen" / "__init__.py"
    assert kept.ask(program, PYTHONPATH=str(tmp_path)) == (f"{ADDED}\n{own}", "")
