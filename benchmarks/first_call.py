"""The README's first prediction in a new process: with an empty cache of compiled kernels, then with the cache.

    python benchmarks/first_call.py                                     (about a minute on one core)

Seconds of processor time of the whole process, imports included, on one thread: other work on the machine counts
little.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile

from common import RESULTS, ROOT, report

PREDICTION = """
import gridless as gl
model = gl.load("modelnet40-plus")
p = gl.training.classify(model, gl.data.sample_path("chair"), up="z")
assert model.about["class_names"][p.argmax()] == "chair"
"""


def seconds(cache: str) -> float:
    """Processor time of a process that makes the prediction with compiled kernels in this folder."""
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, **threads, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", PREDICTION], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        rows = [{"cache": state, "s": seconds(cache)} for state in ("empty", "full")]
    report(RESULTS / "first_call.json", rows)


if __name__ == "__main__":
    main()
