"""The process that `isolation` starts, as a script: one job from its input, one answer to its output.

It imports what the job needs and nothing else of the package.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path


def main() -> None:
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)  # what libraries print is no answer
        sys.path[:] = pickle.load(sys.stdin.buffer)
        reader, path, options, seconds, memory = pickle.load(sys.stdin.buffer)
        _limit(seconds, memory)
        try:
            answer = "result", reader(path, **options)
        except MemoryError:
            answer = "memory", None
        except Exception as error:
            answer = "error", error
        pickle.dump(answer, output)


def _limit(seconds: float, memory: int) -> None:
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    except (ImportError, OSError):  # not Linux
        return
    for kind, most in (
        (resource.RLIMIT_AS, memory + pages * resource.getpagesize()),
        (resource.RLIMIT_CPU, int(seconds) + 1),  # should the process that waits be killed
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
