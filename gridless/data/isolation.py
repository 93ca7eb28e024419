"""A reader in a process of its own, for files that are not trusted.

The libraries that unpack some formats can crash, hang or take all memory on a damaged file. In a process of its own
that becomes a `FormatError`. The process is no sandbox: it has the rights of its user.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gridless.data.errors import FormatError
from gridless.data.limits import Limits

T = TypeVar("T")

# Seconds for any file, and bytes a second beyond that.
SECONDS, PACE = 60.0, 1e6
# Bytes for any file, beyond what the process has when it starts, and copies of what the file may unpack to.
MEMORY, COPIES = 1 << 30, 4
# Threads would take memory that the file does not ask for.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
_CHILD = Path(__file__).with_name("isolated_process.py")


def read_isolated(reader: Callable[..., T], path: str | Path, max_bytes: int | None = None, **options: Any) -> T:
    """Call `reader(path, max_bytes=max_bytes, **options)` in a process that starts and ends with the call.

    Returns or raises what the reader does. Limits: 60 seconds plus one for each megabyte of the file; 1 GiB of memory
    plus four times `max_bytes` (see `gridless.data.limits`; Linux only). Exceeding them, or a crash, raises
    `FormatError`. An exception in this process, such as an interrupt, ends the other one.
    """
    path = Path(path)
    limits = Limits(path, max_bytes)
    seconds, memory = SECONDS + path.stat().st_size / PACE, MEMORY + COPIES * limits.max_bytes
    job = (reader, path, {"max_bytes": max_bytes, **options}, seconds, memory)
    request = pickle.dumps(sys.path) + pickle.dumps(job)
    command, environment = [sys.executable, "-P", str(_CHILD)], {**os.environ, **_ONE_THREAD}
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, env=environment) as process:
        try:
            answer, _ = process.communicate(request, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise FormatError(path, f"its reader did not finish in {seconds:.0f} seconds") from None
        finally:
            # Killed and waited for, whatever happened: nothing is left behind.
            process.kill()
            process.wait()
    if process.returncode:
        raise FormatError(path, f"its reader died: {_cause(process.returncode)}")
    kind, value = pickle.loads(answer)
    if kind == "memory":
        raise FormatError(path, f"its reader needs more than {memory} bytes of memory. Pass a larger max_bytes.")
    if kind == "error":
        raise value
    return value


def _cause(code: int) -> str:
    try:
        return f"exit status {code}" if code > 0 else signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
