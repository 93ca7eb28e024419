"""`gridless export`: a trained event network as C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    weights: Annotated[str, typer.Argument(help="Shipped weights by name, or the path of a .safetensors file.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    bits: Annotated[int, typer.Option(help="Bits of a weight: 32, or 16 for half the size.")] = 32,
    chunk: Annotated[
        int, typer.Option(help="Input events that are worked on together: few need less memory, many less time.")
    ] = 2048,
    check: Annotated[
        bool, typer.Option("--check", help="Compile it in every way at hand, and compare all results bit for bit.")
    ] = False,
    events: Annotated[int, typer.Option(min=1, help="How many events --check runs.")] = 20_000,
) -> int:
    """A trained event network as C99 that needs no allocation and no library, with a test that knows its answers.

    `--check` compiles with gcc and clang at every level of optimisation, and with zig (pip install ziglang) for x86-64,
    ARM, RISC-V and WebAssembly, which run in qemu-user and wasmtime (pip install wasmtime) where these are found.
    """
    from gridless.streaming.export import export as write
    from gridless.streaming.export.check import check as checked
    from gridless.weights import load

    folder = write(load(weights), out, bits, chunk)
    print(f"{folder}: network.c, network.h, network.hpp, test.c, golden.h, Makefile, CMakeLists.txt, README.md")
    if check:
        results = []
        for result in checked(folder, events):
            print(result, flush=True)
            results.append(result)
        print(f"the same bits in all {len(results)} ways, {events:,} events each")
    return 0
