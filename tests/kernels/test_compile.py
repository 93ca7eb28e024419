"""Kernels compile with the installed Triton, without a GPU; `tests/compile_kernels.py` has more variants."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]

# In a process of its own: it needs Triton without its interpreter, and with another driver.
CODE = """
import sys
from tests import compile_kernels as kernels

launches = kernels.launched(list(kernels.CASES))
assert not (missing := kernels.forgotten(launches)), missing
few = {one.name: one for one in launches if one.name in sys.argv[1:]}
assert len(few) == len(sys.argv[1:])
for result in kernels.compiled(list(few.values()), [90], 1):
    assert result.error is None, result
whole = few["structures.transpose.gpu._targets"]
broken = whole._replace(options=whole.options | {"BLOCK": 3})  # not a power of two
assert next(kernels.compiled([broken], [90], 1)).error is not None
"""


@pytest.mark.slow
def test_every_kernel_is_among_those_that_are_compiled_and_a_few_of_them_compile(tmp_path):
    few = ("structures.transpose.gpu._targets", "geometry.rejection.gpu._decide", "ops.segment_pool.gpu._mean")
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, *few],
        cwd=ROOT,
        env={**env, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
