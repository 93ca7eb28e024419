"""The disk cache of the CPU kernels: a kernel is compiled anew when a file changes that its own one imports."""

from __future__ import annotations

import compileall
import os
import re
import subprocess
import sys
from pathlib import Path

import numba
import pytest

import gridless as gl
from gridless.kernels import compile
from gridless.kernels.compile import _file, digest, njit

PACKAGE = Path(gl.__file__).parent

OUTER = """
from gridless.kernels.compile import njit
from sample.inner import (
    shifted,
)
from sample.numbers import SCALE

@njit(cache=True)
def total(count):
    sum = 0
    for i in range(count):
        sum += _step(i)
    return sum

@njit(cache=True)
def _step(i):
    return SCALE * shifted(i)

def main():
    from sample.numbers import UNUSED
    print(total(3), sum(total.stats.cache_hits.values()), sum(total.stats.cache_misses.values()))
"""
INNER = """
from gridless.kernels.compile import njit
from sample import steps

@njit(cache=True, inner=True)
def shifted(i):
    return i + steps.STEP
"""
NUMBERS = """
SCALE = 10
UNUSED = 1
"""
DRIVERS = """
from sample.outer import main
main()
"""


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A package of a kernel, three other files that the kernel is made of, and one that only calls it."""
    package = tmp_path / "sample"
    package.mkdir()
    files = {
        "__init__": "",
        "outer": OUTER,
        "inner": INNER,
        "numbers": NUMBERS,
        "steps": "STEP = 1",
        "drivers": DRIVERS,
    }
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    return package


def run(package: Path) -> tuple[int, int, int]:
    """Result of the kernel in a separate process, and hits and misses of the cache."""
    done = process(package)
    result, hits, misses = map(int, done.stdout.split())
    return result, hits, misses


def process(package: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    # Without the files of Python's own cache, which takes a file of the same size and second for the same; and without
    # what the package imports, torch above all: only its `kernels.compile` is needed.
    env = os.environ | {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"} | settings
    code = "import sys, types; sys.modules['gridless'] = own = types.ModuleType('gridless')"
    code += f"; own.__path__ = [{str(PACKAGE)!r}]"
    run = [sys.executable, "-c", f"{code}; import sample.drivers"]
    done = subprocess.run(run, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.mark.slow
def test_a_kernel_is_compiled_anew_when_a_file_changes_that_its_own_imports(sample: Path):
    assert run(sample) == (60, 0, 1)
    edit(sample / "drivers.py", "main()", "main() # again")
    assert run(sample) == (60, 1, 0), "a file that only calls the kernel is no part of it"
    edit(sample / "numbers.py", "SCALE = 10", "SCALE = 20")
    assert run(sample) == (120, 0, 1)
    edit(sample / "steps.py", "STEP = 1", "STEP = 2")
    assert run(sample) == (180, 0, 1)


@pytest.mark.slow
def test_a_kernel_that_cannot_be_kept_on_disk_runs_and_the_remedy_is_said_once(sample: Path):
    (sample / "__pycache__").touch()
    done = process(sample, XDG_CACHE_HOME=str(sample / "__init__.py"), NUMBA_CACHE_DIR="")
    assert done.stdout == "60 0 1\n"
    assert done.stderr.count("NUMBA_CACHE_DIR") == 1


@pytest.mark.slow
def test_a_package_without_sources_runs_and_does_not_name_a_folder_that_would_not_help(sample: Path):
    compileall.compile_dir(sample, legacy=True, quiet=1)
    for file in sample.glob("*.py"):
        file.unlink()
    done = process(sample)
    assert done.stdout == "60 0 1\n"
    assert ".py files" in done.stderr
    assert "NUMBA_CACHE_DIR" not in done.stderr


def test_all_kernels_of_the_package_have_this_cache():
    plain = re.compile(r"^\s*from numba import.*\bn?jit\b|numba\.n?jit\(", re.MULTILINE)
    texts = {file: file.read_text() for file in PACKAGE.rglob("*.py")}
    assert [file for file, text in texts.items() if plain.search(text)] == [PACKAGE / "kernels" / "compile.py"]
    options = [option for text in texts.values() for option in re.findall(r"^ *@njit(.*)", text, re.MULTILINE)]
    assert len(options) > 100
    # The live loop is not cached where operations were added at run time.
    assert all("cache=True" in option or "cache=CACHED" in option for option in options)


def test_a_kernel_is_made_of_the_files_that_its_own_imports(monkeypatch: pytest.MonkeyPatch):
    imported = set(_file("gridless.geometry.nearest.cpu")[1])
    assert {"gridless.geometry.blocks", "gridless.kernels.simd_blocks", "gridless.structures"} <= imported
    files = dict.fromkeys(["gridless.kernels.simd_blocks", "gridless.structures.cloud", "gridless.training.run"])
    for name in files:
        text, more = _file(name)

        def changed(module: str, name: str = name, text: str = text, more: list[str] = more) -> tuple[str, list[str]]:
            return (text + "changed", more) if module == name else _file(module)

        with monkeypatch.context() as patch:
            patch.setattr(compile, "_file", changed)
            files[name] = digest.__wrapped__("gridless.geometry.nearest.cpu")
    now = digest("gridless.geometry.nearest.cpu")
    assert [found != now for found in files.values()] == [True, True, False]


def test_python_cannot_call_what_only_kernels_call():
    @njit(inner=True)
    def double(x: int) -> int:
        return 2 * x

    @njit()
    def fourfold(x: int) -> int:
        return double(double(x))

    assert fourfold(2) == 8
    with pytest.raises(TypeError, match=r"double.*inner=True"):
        double(2)


def test_without_a_cache_it_is_plain_numba(monkeypatch: pytest.MonkeyPatch):
    def double(x: int) -> int:
        return 2 * x

    assert njit()(double)(2) == 4
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    assert njit(nogil=True, cache=True, inner=True)(double) is double
