"""`gridless export --check`: compile an export in every way at hand, and require the same digest of all results."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

from gridless.live.export.golden import packets

# Options of compilers; -march=native with GNU's dialect would fuse products and sums if it could.
LEVELS = (("-std=c99", "-O0"), ("-std=c99", "-O1"), ("-std=c99", "-O2"), ("-std=c99", "-O3"))
NATIVE = ("-std=gnu17", "-O3", "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native")

# Long sums fused with their products: other bits, but the same ones on all machines that can.
FUSED = "-DNET_FUSED"
FUSES = platform.machine() in ("aarch64", "arm64")

HERE = "this machine"

# Other machines that zig compiles for, with their emulators.
TARGETS = {
    "x86_64-linux-musl": "qemu-x86_64",
    "aarch64-linux-musl": "qemu-aarch64",
    "arm-linux-musleabihf": "qemu-arm",
    "riscv64-linux-musl": "qemu-riscv64",
    "wasm32-wasi": "wasmtime",
}

# Targets that can fuse, with zig's options.
FUSING = {"x86_64-linux-musl": ["-mcpu=x86_64_v3"], "aarch64-linux-musl": [], "riscv64-linux-musl": []}

SECONDS = 36_000

# Largest difference of C from the engine, which fuses products with sums where it can; by bits.
BESIDE = {32: 1e-6, 16: 1e-2}

REMEDY = "Install gcc or clang, or pip install ziglang"


@dataclass(frozen=True)
class Result:
    """Result of one way to compile: the digest of all predictions, microseconds per event, error and logits."""

    target: str
    compiler: str
    digest: str
    micros: float
    error: float
    logits: tuple[float, ...]  # after the golden recording

    def __str__(self) -> str:
        speed = f"{self.micros:.3f} us per event" if self.micros else ""
        return f"{self.target:<22}{self.compiler:<48}{self.digest}  error {self.error:.1e}  {speed}".rstrip()


def compilers() -> list[list[str]]:
    """The C compilers of this machine; zig's comes from PyPI (ziglang)."""
    paths = [path for path in map(shutil.which, ("gcc", "clang")) if path] or [shutil.which("cc")]
    commands = [[path] for path in paths if path]
    return commands or ([zig()] if zig() else [])


def zig() -> list[str]:
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    return ["zig", "cc"] if shutil.which("zig") else []


def library(folder: Path, out: Path) -> Path:
    """The network as a shared library `out`, compiled for this machine."""
    if not compilers():
        raise RuntimeError(f"check: no C compiler was found. {REMEDY}.")
    part = out.with_suffix(f".{os.getpid()}")
    compiled([*compilers()[0], *NATIVE, "-fPIC", "-shared", "network.c", "-o", str(part.resolve())], folder)
    return part.replace(out)


def ways() -> list[tuple[str, list[str]]]:
    """Every target and compiler at hand, with its options."""
    levels = (*LEVELS, NATIVE, *([("-std=c99", "-O2", FUSED)] if FUSES else []))
    commands = [(HERE, [*cc, *flags]) for cc in compilers() for flags in levels]
    for target in TARGETS if zig() else ():
        if runner(target) is not None:
            command = [*zig(), "-target", target, "-std=c99", "-O3"]
            commands.append((target, command))
            if target in FUSING:
                commands.append((target, [*command, *FUSING[target], FUSED]))
    return commands


def check(
    folder: str | Path, events: int = 20_000, chosen: Sequence[tuple[str, list[str]]] | None = None
) -> Iterator[Result]:
    """Compile and run the test of an export in the chosen ways, or in all of `ways()`.

    A way is the name of a target and the command of a compiler with its options: `("this machine", ["gcc", "-O2"])`, or
    one of `TARGETS`, such as `("wasm32-wasi", [*zig(), "-target", "wasm32-wasi", "-O3"])`.

    Raises if a compiler or a test fails, or if two results differ in a bit. Results with fused sums are compared with
    one another, and so are those without.
    """
    folder = Path(folder)
    if not (folder / "network.c").is_file():
        raise FileNotFoundError(f"check: {folder} holds no network.c. Write it with gridless export --out {folder}.")
    chosen = ways() if chosen is None else chosen
    if not chosen:
        raise RuntimeError(f"check: no C compiler was found. {REMEDY}.")
    for target, _ in chosen:
        if target not in (HERE, *TARGETS):
            raise ValueError(f"check: there is no target {target!r}. Choose from {', '.join((HERE, *TARGETS))}.")
    firsts: dict[bool, Result] = {}
    with tempfile.TemporaryDirectory() as name:
        for target, command in chosen:
            program = Path(name) / "program.exe"  # Windows runs no other
            compiler = " ".join(["zig" if "-target" in command else Path(command[0]).name, *_options(command)])
            compiled([*command, "network.c", "test.c", "-o", str(program)], folder)
            text = _run(target, program, [str(events)])
            matches = [re.search(pattern, text) for pattern in _PATTERNS]
            if not all(matches):
                raise ValueError(f"check: the test of {folder} failed on {target} ({compiler}):\n{text}")
            digest, micros, error, logits = (match[1] for match in matches if match)
            values = tuple(np.frombuffer(bytes.fromhex(logits), ">f4").tolist())
            result = Result(target, compiler, digest, float(micros), float(error), values)
            yield result
            first = firsts.setdefault(FUSED in command, result)
            if result.digest != first.digest:
                raise ValueError(f"check: the results differ in a bit:\n{first}\n{result}")


def beside_engine(model: nn.Module, result: Result, bits: int = 32) -> float:
    """Difference of C's logits of the golden recording from the engine's, relative to the largest; checked."""
    from gridless.live.engine import Engine
    from gridless.live.export.folder import GOLDEN

    engine = Engine(model)
    for packet in packets(GOLDEN, engine.program.streams[0].sensor):
        engine(packet)
    expected, logits = engine.predict().double(), torch.tensor(result.logits, dtype=torch.float64)
    difference = float((expected - logits).abs().max() / expected.abs().max().clamp(min=1e-30))
    if not difference <= BESIDE[bits]:
        raise ValueError(
            f"check: C's logits differ from the engine's by {difference:.1e} of the largest (limit {BESIDE[bits]:.0e})"
        )
    return difference


def _options(command: list[str]) -> list[str]:
    return [word for word in command if word.startswith(("-O", "-s", "-mc", "-mar", "-f", "-D"))]


_PATTERNS = (
    r"digest +(\w{16})", r"speed +([\d.]+)", r"relative error (-?nan|[\d.e+-]+)", r"logits +([0-9a-f ]+)"
)  # fmt: skip


def runner(target: str) -> list[str] | None:
    """The command that runs programs of a target: empty for this machine, or an emulator; None without one."""
    if target == HERE:
        return []
    name = TARGETS[target]
    if name == "wasmtime":
        return [sys.executable, str(Path(__file__).with_name("wasm.py"))] if find_spec("wasmtime") else None
    if name == f"qemu-{platform.machine()}":
        return []
    path = shutil.which(name) or shutil.which(f"{name}-static")
    return [path] if path else None


def compiled(command: list[str], folder: Path) -> None:
    """Run a compiler in a folder, and raise its messages if it fails."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stderr[-3000:]}")


def _run(target: str, program: Path, arguments: list[str]) -> str:
    command = [*(runner(target) or []), str(program), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    return result.stdout + result.stderr
