"""The disk cache of the CPU kernels: a kernel is compiled anew when anything it is made of changes, and only then."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import gridless as gl
from gridless.compiled import made_of, njit
from gridless.geometry.rejection import cpu as rejection
from gridless.streaming import loop, panels, traces

PACKAGE = Path(gl.__file__).parent

# `total` reaches the other files only through `_step`, which stands below it.
OUTER = """
from gridless.compiled import njit
from sample.drivers import drive
from sample.inner import shifted
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
    print(drive(total, 3), sum(total.stats.cache_hits.values()), sum(total.stats.cache_misses.values()))
"""
INNER = """
from gridless.compiled import njit

@njit(cache=True)
def shifted(i):
    return i + 1
"""
NUMBERS = """
SCALE = 10
UNUSED = 1
"""
DRIVERS = """
def drive(function, count):
    return function(count)
"""


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A package of a kernel, two other files that the kernel is made of, and one that only calls it."""
    package = tmp_path / "sample"
    package.mkdir()
    files = {"__init__": "", "outer": OUTER, "inner": INNER, "numbers": NUMBERS, "drivers": DRIVERS}
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    return package


def run(package: Path) -> tuple[int, int, int]:
    """What the kernel returns in a process of its own, and how often the cache had it and had it not."""
    # Without the files of Python's own cache, which takes a file of the same size and second for the same.
    paths = os.pathsep.join([str(package.parent), str(PACKAGE.parent)])
    env = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", "from sample.outer import main; main()"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result, hits, misses = map(int, done.stdout.split())
    return result, hits, misses


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_kernel_is_compiled_anew_when_another_file_that_it_is_made_of_changes(sample: Path):
    assert run(sample) == (60, 0, 1)
    edit(sample / "drivers.py", "return function(count)", "return 1 * function(count)")
    edit(sample / "numbers.py", "UNUSED = 1", "UNUSED = 2")
    assert run(sample) == (60, 1, 0), "neither the file that only calls the kernel nor other constants are part of it"
    edit(sample / "numbers.py", "SCALE = 10", "SCALE = 20")
    assert run(sample) == (120, 0, 1)
    edit(sample / "inner.py", "i + 1", "i + 2")
    assert run(sample) == (180, 0, 1)


def test_all_kernels_of_the_package_have_this_cache():
    plain = re.compile(r"^\s*from numba import.*\bn?jit\b|numba\.n?jit\(", re.MULTILINE)
    own = [file for file in PACKAGE.rglob("*.py") if plain.search(file.read_text())]
    assert own == [PACKAGE / "compiled.py"]


def modules(sources: set[str]) -> set[str]:
    return {line.split()[0] for line in sources if re.fullmatch(r"gridless[\w.]* [0-9a-f]{64}", line)}


def test_a_kernel_is_made_of_the_functions_it_reaches_and_of_the_constants_they_use(monkeypatch: pytest.MonkeyPatch):
    kernel = loop.run.py_func
    sources, constants = made_of(kernel)
    files = ("kernels.products", "streaming.loop", "streaming.panels", "streaming.simd", "streaming.traces")
    assert modules(sources) == {f"gridless.{file}" for file in files}
    assert f"gridless {gl.__version__}" in sources
    monkeypatch.setattr(traces, "RUN_X", traces.RUN_X + 1)
    assert made_of(kernel)[1] != constants


def test_constants_of_another_cpu_leave_what_is_kept_for_this_one(monkeypatch: pytest.MonkeyPatch):
    """A stamp that changed would empty the cache; machines of several kinds may share one."""
    kernel = panels.product.py_func
    sources, constants = made_of(kernel)
    monkeypatch.setattr(panels, "BLOCK", panels.BLOCK // 2)
    assert made_of(kernel)[0] == sources
    assert made_of(kernel)[1] != constants


def test_what_only_calls_a_kernel_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch):
    kernel = rejection._reject.py_func
    before = made_of(kernel)
    assert modules(before[0]) == {"gridless.geometry.blocks", "gridless.geometry.rejection.cpu"}
    monkeypatch.setattr(rejection, "cut_examples", None)
    assert made_of(kernel) == before


FACTORS = np.arange(3.0)
NESTED = (1, ("a", 2.5))


@njit()
def weighted(i: int) -> float:
    return FACTORS[i] * NESTED[1][1] * np.pi


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FACTORS", np.arange(3.0) + 1),
        ("FACTORS", np.arange(3)),
        ("NESTED", (1, ("a", 2.0))),
        ("NESTED", (1, (2.5, "a"))),
    ],
)
def test_arrays_and_tuples_count_by_their_contents(monkeypatch: pytest.MonkeyPatch, name: str, value: object):
    before = made_of(weighted.py_func)
    assert before == made_of(weighted.py_func)
    monkeypatch.setattr(sys.modules[__name__], name, value)
    assert made_of(weighted.py_func) != before


def test_without_a_cache_it_is_plain_numba(monkeypatch: pytest.MonkeyPatch):
    assert weighted(2) == 2 * 2.5 * np.pi
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)

    def double(x: int) -> int:
        return 2 * x

    assert njit(nogil=True, cache=True)(double) is double
