"""The package as a whole: what it exports, what it imports, what its command line says."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import gridless as gl
from gridless.cli import main as command_line

PACKAGE = Path(gl.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def _name(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def _exported(tree: ast.Module) -> bool:
    return any(isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__" for n in tree.body)


def _for_type_checkers(tree: ast.Module) -> Iterator[str]:
    """The names that a module imports under TYPE_CHECKING."""
    for node in tree.body:
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            for line in node.body:
                assert isinstance(line, ast.ImportFrom)
                yield from (alias.asname or alias.name for alias in line.names)


@cache
def _trees() -> dict[str, ast.Module]:
    return {_name(file): ast.parse(file.read_text()) for file in MODULES}


def test_every_exported_name_resolves():
    trees = _trees()
    exporting = [name for name in trees if _exported(trees[name])]
    assert "gridless" in exporting
    for name in exporting:
        module = import_module(name)
        assert len(set(module.__all__)) == len(module.__all__), f"{name}.__all__ names something twice"
        missing = [export for export in module.__all__ if not hasattr(module, export)]
        assert not missing, f"{name}.__all__ names {missing}, which {name} does not have"


def test_modules_are_reached_from_the_package():
    for name in gl._MODULES:
        assert getattr(gl, name) is import_module(f"gridless.{name}")
    assert set(dir(gl)) == {*gl.__all__, *gl._MODULES, *gl._INNER, "__version__"}


def test_what_the_pages_say_of_the_package_is_there_from_the_first():
    """Not only after something else has imported it."""
    pages = [PACKAGE.parent / "README.md", *(PACKAGE.parent / "docs").rglob("*.md")]
    assert {name for page in pages for name in re.findall(r"\bgl\.(\w+)", page.read_text("utf-8"))} <= set(dir(gl))


def test_text_is_read_alike_whatever_encoding_a_platform_prefers():
    """On Windows that is the code page: names of files would not be found again in lists of them."""
    left = []
    for name, tree in _trees().items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            given = {word.arg: word.value for word in call.keywords}
            text = getattr(call.func, "attr", "") == "read_text" and not call.args
            if getattr(call.func, "id", "") == "open":
                mode = [*call.args[1:2], given.get("mode", ast.Constant("r"))][0]
                text = "b" not in getattr(mode, "value", "b")
            if text and "encoding" not in given:
                left.append(f"{name}, line {call.lineno}")
    assert left == []


def test_an_unknown_name_is_refused_by_name():
    with pytest.raises(AttributeError, match="no attribute 'convolve'"):
        gl.convolve  # noqa: B018


def test_type_checkers_see_every_lazy_name():
    """Names that are imported when first touched are listed three times: for Python, for `*`, and for type checkers."""
    assert set(gl._LAZY) <= set(gl.__all__)
    assert set(gl._LAZY) <= set(_for_type_checkers(_trees()["gridless"]))
    assert set(gl.data._LAZY) == set(_for_type_checkers(_trees()["gridless.data"]))


def test_every_module_says_what_it_is_for():
    assert [name for name, tree in _trees().items() if not ast.get_docstring(tree)] == []


def _public() -> dict[str, Any]:
    """Public functions, classes and their methods, by name."""
    public: dict[str, Any] = {}
    for module in [gl, *(getattr(gl, name) for name in gl._MODULES)]:
        for name in getattr(module, "__all__", ()):
            value = public[name] = getattr(module, name)
            methods = vars(value).items() if isinstance(value, type) else ()
            public |= {f"{name}.{key}": getattr(f, "__func__", f) for key, f in methods if not key.startswith("_")}
    return {name: value for name, value in public.items() if inspect.isfunction(value) or inspect.isclass(value)}


def _arguments(value: Any) -> list[str]:
    try:
        return [name for name in inspect.signature(value).parameters if name not in ("self", "cls")]
    except (TypeError, ValueError):
        return []


def _said(value: Any) -> str:
    """The docstrings of a function, or of a class, its bases and its fields."""
    kinds = value.__mro__ if isinstance(value, type) else (value,)
    texts = [text for kind in kinds for text in (kind.__doc__, vars(kind).get("__init__", kind).__doc__) if text]
    if hasattr(value, "__dataclass_fields__") or hasattr(value, "model_fields"):
        texts += re.findall(r'^    (\w+): [^\n]*\n    """', inspect.getsource(value), re.MULTILINE)
    return " ".join(texts)


def test_public_functions_of_many_arguments_document_each_of_them():
    """By name, or by the name of a function whose arguments they are."""
    public, missing = _public(), {}
    for name, value in public.items():
        if len(arguments := _arguments(value)) > 3:
            text = _said(value)
            others = re.findall(r"(?:those|as) (?:of|in)\s+`(?:gl\.|torch\.nn\.)?([\w.]+)`", text)
            known = {a for other in others for a in _arguments(public.get(other, getattr(torch.nn, other, None)))}
            left = [a for a in arguments if a not in known and not re.search(rf"\b{a}\b", text)]
            missing |= {name: left} if left else {}
    assert missing == {}


def _is_lazy(tree: ast.Module) -> bool:
    """True if a package imports names when they are first used."""
    return any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)


def _imports(tree: ast.Module, modules: set[str]) -> set[str]:
    """The modules that a module imports, at its top, inside its functions, or for type checkers; of a package that
    imports names when they are first used, what type checkers see of them does not count."""
    nodes = list(ast.walk(tree))
    for node in tree.body if _is_lazy(tree) else ():
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            nodes = [n for n in nodes if n not in set(ast.walk(node))]
    imported = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are written in full"
            within = [f"{node.module}.{alias.name}" for alias in node.names]
            imported |= {full if full in modules else node.module or "" for full in within}
    return imported & modules


@pytest.mark.parametrize("where", ["gridless", "benchmarks"])
def test_there_are_no_import_circles(where: str):
    files = (PACKAGE.parent / "benchmarks").glob("*.py")
    trees = _trees() if where == "gridless" else {file.stem: ast.parse(file.read_text()) for file in files}
    left = {name: _imports(tree, set(trees)) - {name} for name, tree in trees.items()}
    # Modules that import none of those left are put aside; what remains imports itself, in the end.
    while free := {name for name, imported in left.items() if not imported & set(left)}:
        left = {name: imported for name, imported in left.items() if name not in free}
    assert {name: sorted(imported & set(left)) for name, imported in left.items()} == {}


@pytest.mark.slow
def test_importing_the_package_imports_nothing_slow():
    """torch comes with the first name, compilers, plotting and training with the first thing that needs them."""
    code = "import sys, gridless; print(*sys.modules); gridless.Cloud, gridless.Plan; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert result.returncode == 0, result.stderr
    before, names = (line.split() for line in result.stdout.splitlines())
    assert not {"torch", "numpy"} & set(before)
    slow = {"numba", "triton", "lightning", "matplotlib", "scipy", "h5py", "torch_geometric"}
    assert not slow & set(names)
    # Settings of OpenMP have no effect once torch has loaded it.
    assert names.index("gridless.kernels.openmp") < names.index("torch")


@pytest.mark.slow
def test_ctrl_c_while_torch_is_imported_is_one_line(tmp_path: Path):
    """The command line itself imports nothing slow, so that it is there to take the interrupt."""
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    paths = os.pathsep.join([str(tmp_path), str(PACKAGE.parent)])
    command = [sys.executable, "-m", "gridless", "predict", "scan.ply"]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    assert (result.returncode, result.stderr) == (130, "gridless predict: interrupted\n")


def test_the_version_is_the_one_that_is_built():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    assert gl.__version__ == project["version"]


@pytest.mark.slow
def test_help_names_every_command(capsys: pytest.CaptureFixture[str]):
    assert command_line.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in command_line.COMMANDS)
    assert command_line.main([]) == 0
    assert capsys.readouterr().out == text
    if Path("/dev/full").exists():
        command = [sys.executable, "-m", "gridless"]
        with open("/dev/full", "w") as full:
            ended = subprocess.run(command, cwd=PACKAGE.parent, stdout=full, stderr=subprocess.PIPE, text=True)
        assert ended.stderr.splitlines()[0] == "gridless --help: [Errno 28] No space left on device"
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]):
    assert command_line.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"gridless {name}" in text
    assert "--help" in text


def test_an_unknown_command_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]):
    assert command_line.main(["trian"]) == 2
    assert re.search("'trian'.*train, precompute, evaluate", capsys.readouterr().err)


def test_a_wrong_option_is_refused_by_name(capsys: pytest.CaptureFixture[str]):
    assert command_line.main(["demo", "--no-such-option"]) == 2
    assert "--no-such-option" in capsys.readouterr().err


@pytest.mark.slow
def test_output_that_nobody_reads_to_its_end_is_no_error():
    setup = (
        "import gridless.cli.demo as d; d.demo = lambda: print('\\u00fc' * 100_000); from gridless.cli.main import main"
    )
    command = [sys.executable, "-c", f"{setup}; raise SystemExit(main(['demo']))"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(4) == rb"\xfc"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_ctrl_c_in_a_command_says_that_it_was_interrupted(monkeypatch, capsys: pytest.CaptureFixture[str]):
    def stop() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gridless.cli.demo.demo", stop)
    assert command_line.main(["demo"]) == 130
    assert capsys.readouterr().err == "gridless demo: interrupted\n"


# Counts of points, edges or events of one batch, and sizes derived from them.
SIZES = {
    *("rows", "num_rows", "last", "tiles", "numbers", "edges", "each", "points", "sources", "targets"),
    *("examples", "visits", "filled", "programs", "cells", "slices", "across", "up", "levels"),
}


def test_kernels_are_not_specialised_on_the_sizes_of_a_batch():
    """Triton compiles again if a size that it may specialise on is 1 or a multiple of 16: seconds, in the middle of
    training."""
    left_alone = 0
    for path in MODULES:
        text = path.read_text()
        body = ast.parse(text).body
        assigned = " ".join(ast.unparse(node) for node in body if isinstance(node, ast.Assign))
        launched = set(re.findall(r"\w+", assigned)) if "Launcher" in assigned else set()
        for node in body:
            marks = [mark for mark in getattr(node, "decorator_list", ()) if ".jit" in ast.unparse(mark)]
            if not marks:
                continue
            listed = re.findall(r"'(\w+)'", ast.unparse(marks[0]))
            given = {a.arg for a in node.args.args if a.annotation is None}
            assert given.issuperset(listed), f"{path.name}: {node.name} has no {set(listed) - given}"
            # Helpers are called by kernels; kernels are launched.
            if node.name.endswith("_kernel") or node.name in launched or re.search(rf"\b{node.name}\[[(g]", text):
                tensors = set(re.findall(r"(?:load|store|atomic_add)\((\w+)\b", ast.unparse(node)))
                sizes = SIZES & given - tensors
                assert sizes.issubset(listed), f"{path.name}: {node.name} is specialised on {sizes - set(listed)}"
                left_alone += len(sizes)
    assert left_alone > 60


def test_ops_are_functions_of_gl_ops_and_their_folders_are_still_imported():
    for name in set(gl.ops.__all__) - {"FLOPS"}:
        assert callable(getattr(gl.ops, name)), name
    folder = import_module("gridless.ops.point_conv")
    assert folder.point_conv is gl.ops.point_conv is gl.point_conv
    import_module("gridless.ops.point_conv.reference")
    assert callable(gl.ops.point_conv)
