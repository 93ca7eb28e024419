"""Damaged files for all readers: `make fuzz SECONDS=600`, or `python tests/fuzz.py --seconds 600 [NAME ...]`.

Without names a fifth of the time goes to random live networks (`fuzz_live.py`; NAME `live` runs only those). A tenth of
the rest goes to trainings that are killed and resumed (`fuzz_resume.py`).

A process with limited memory reads one damaged file after the other and says which; another watches it. A wrong kind of
exception, a crash, a hang, or a read that takes seconds is a finding. Its file is kept in `fuzz-findings/`. Case n of
run r is always the same file; the next run has others.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parent
MEMORY = 3 << 29  # bytes, beyond those of the process when it starts
HANG = 120.0  # seconds without a word
SLOW = 10.0  # seconds of the processor

WORDS = (
    b"-1 0 1 3 4294967295 1000000000000 99999999999999999999999 nan 1e400 1,5 0x10 1_0 x vertex list # [] {}".split()
)
SIZES = (0, 1, 2, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 10**12)


class Seed(NamedTuple):
    """A valid file for a fuzzer to damage, and the function that reads it."""

    name: str
    make: Callable[[], bytes]
    suffix: str
    read: Callable


def die_of_damage(path: Path) -> None:
    if path.stem == "damaged":
        os.abort()


DIES = Seed("dies", lambda: b"whole", ".bad", die_of_damage)  # for the test of the fuzzer


class Finding(NamedTuple):
    name: str
    number: int
    what: str


def whole_files(names: list[str]) -> list[tuple[Seed, bytes]]:
    """Files of events, clouds and meshes whose names contain one of `names`, or all."""
    sys.path[:0] = [str(TESTS / "data"), str(TESTS.parent)]
    import cloud_files
    import event_encoders

    files = []
    for seed in [DIES] if names == [DIES.name] else event_encoders.SEEDS + cloud_files.SEEDS:
        if not names or any(name in seed.name for name in names):
            # Those of packages that are not installed are left out.
            with suppress(ImportError, pytest.skip.Exception):
                files.append((seed, seed.make()))
    return files


def damaged(chance: random.Random, data: bytes, other: bytes = b"") -> bytes:
    """With bytes, words, numbers, lines and blocks changed, lost, repeated, or taken from another file; in headers more
    often than behind them."""
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 6])):
        at = int(chance.random() ** chance.choice([1, 2, 3]) * len(out))
        size = chance.choice([1, 2, 4, 8, 28, 100, 1000])
        match chance.randrange(12) if out else None:
            case 0:
                out[at] = chance.randrange(256)
            case 1:
                out[at] ^= 1 << chance.randrange(8)
            case 2:
                del out[at : at + chance.choice([1, 8, size, len(out)])]
            case 3:
                out[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 4 | 5:
                size = chance.choice([1, 2, 4, 8])
                number = chance.choice(SIZES) % (1 << 8 * size)
                out[at : at + size] = number.to_bytes(size, chance.choice(["little", "big"]))
            case 6:
                words = list(re.finditer(rb"[^\s,;:{}\[\]\"]+", bytes(out[:4000])))
                if words:
                    word = words[int(chance.random() ** 2 * len(words))]
                    out[word.start() : word.end()] = chance.choice(WORDS)
            case 7:
                lines = out.split(b"\n")
                line = lines.pop(int(chance.random() ** 2 * len(lines)))
                for _ in range(chance.randrange(3)):
                    lines.insert(chance.randrange(len(lines) + 1), line)
                out = bytearray(b"\n".join(lines))
            case 8:
                block = out[at : at + size]
                out[at:at] = block * min(chance.choice([1, 2, 10, 1000]), 100_000 // (len(block) + 1))
            case 9:
                start = chance.randrange(len(out))
                out[at : at + size] = out[start : start + size]
            case 10:
                start = int(chance.random() ** 2 * len(other))
                out[at : at + size] = other[start : start + size]
            case _:
                out += chance.randbytes(chance.randrange(1, 30))
    return bytes(out)


def case(files: list[tuple[Seed, bytes]], run: int, number: int) -> tuple[Seed, bytes]:
    chance = random.Random(f"{run} {number}")
    seed, data = files[number % len(files)]
    return seed, damaged(chance, data, chance.choice(files)[1])


def check(seed: Seed, path: Path) -> None:
    """Raises what is not the documented error, and where what was read is not in order."""
    from gridless.data import FormatError
    from gridless.structures import Events

    try:
        value = seed.read(path)
    except FormatError as error:
        if error.path != path or str(path) not in str(error):
            raise AssertionError(f"the error does not name {path}") from error
        return
    if isinstance(value, Events):
        value.check()
    else:
        assert value.coords.ndim == 2


# The process that reads.


def work(names: list[str], run: int, start: int, end: int) -> None:
    """Reads the cases from `start` on; says each number before it begins, and what went wrong, as a line of JSON."""
    out, sys.stdout = sys.stdout, sys.stderr
    files = whole_files(names)
    with tempfile.TemporaryDirectory() as folder:
        for seed, data in files:  # as they are, so that kernels are compiled
            path = Path(folder) / f"whole{seed.suffix}"
            path.write_bytes(data)
            seed.read(path)
            print(start - 1, file=out, flush=True)  # compiling takes minutes on a slow machine, and is no hang
        limit_memory()
        for number in range(start, end):
            print(number, file=out, flush=True)
            seed, data = case(files, run, number)
            path = Path(folder) / f"damaged{seed.suffix}"
            path.write_bytes(data)
            began = time.process_time()
            try:
                check(seed, path)
            except BaseException:
                print(json.dumps([number, traceback.format_exc(limit=-6)]), file=out, flush=True)
            if (seconds := time.process_time() - began) > SLOW:
                print(json.dumps([number, f"takes {seconds:.1f} seconds"]), file=out, flush=True)


def limit_memory() -> None:
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)


# The process that watches.


def findings(names: list[str], run: int, end: int, seconds: float = float("inf")) -> Iterator[Finding]:
    """Failures of the first `end` cases of a run, or of as many as the time allows."""
    files = whole_files(names)
    number, stop = 0, time.monotonic() + seconds
    while number < end and time.monotonic() < stop:
        command = [sys.executable, __file__, "--work", str(run), str(number), str(end), *names]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process,
        ):
            last, what = number - 1, ""
            try:
                for line in _lines(process, stop):
                    said = json.loads(line)
                    if isinstance(said, int):
                        last = said
                    else:
                        yield Finding(files[said[0] % len(files)][0].name, said[0], said[1])
                if time.monotonic() < stop:
                    process.wait(HANG)
            except (TimeoutError, subprocess.TimeoutExpired):
                what = f"hangs: nothing for {HANG:.0f} seconds"
            finally:
                process.kill()
                process.wait()
            if not what and process.returncode and time.monotonic() < stop:
                errors.seek(0)
                what = f"dies of {_name(process.returncode)}\n{errors.read()[-3000:].decode(errors='replace')}"
        if what and last < number:
            raise RuntimeError(f"the process that reads does not begin: {what}")
        if what:
            yield Finding(files[last % len(files)][0].name, last, what)
        number = last + 1
    print(f"run {run}: {number} cases of {len(files)} files", file=sys.stderr)


def _lines(process: subprocess.Popen, stop: float) -> Iterator[bytes]:
    """Output of the process, until it ends or the time is over."""
    assert process.stdout is not None
    rest = b""
    while time.monotonic() < stop:
        # Read without a buffer, in which `select` would not see what is left.
        ready, _, _ = select.select([process.stdout], [], [], min(HANG, max(stop - time.monotonic(), 0.1)))
        if not ready:
            if time.monotonic() < stop:
                raise TimeoutError
            return
        more = os.read(process.stdout.fileno(), 1 << 16)
        if not more:
            return
        *lines, rest = (rest + more).split(b"\n")
        yield from lines


def _name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--run", type=int, help="its number; without one, the time of day")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--work", type=int, nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="only formats whose names contain one of these")
    options = parser.parse_args()
    if options.work:
        return work(options.names, *options.work)
    run = int(time.time()) if options.run is None else options.run
    bad = False
    if not options.names or "live" in options.names:
        # Random live networks, in a fifth of the time.
        options.seconds, share = 0.8 * options.seconds, 0.2 * options.seconds
        command = [sys.executable, str(TESTS / "fuzz_live.py"), "--run", str(run), "--seconds", str(share)]
        bad = subprocess.run(command, check=False).returncode != 0
        if options.names == ["live"]:
            sys.exit(bad)
    files, counts = whole_files(options.names), Counter()
    seconds = options.seconds if options.names else 0.9 * options.seconds
    for finding in findings(options.names, run, sys.maxsize, seconds):
        seed, data = case(files, run, finding.number)
        options.out.mkdir(exist_ok=True)
        path = options.out / f"{seed.name.replace(' ', '-')}-{run}-{finding.number}{seed.suffix}"
        path.write_bytes(data)
        counts[seed.name] += 1
        print(f"{path}: {finding.what}", flush=True)
    if not options.names:
        from fuzz_resume import findings as of_resumed_runs

        for finding in of_resumed_runs(run, options.seconds - seconds):
            counts["resumed runs"] += 1
            print(finding, flush=True)
    for name, count in counts.most_common():
        print(f"{count} findings in {name}")
    sys.exit(bad or bool(counts))


if __name__ == "__main__":
    main()
