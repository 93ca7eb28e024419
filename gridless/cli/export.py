"""`gridless export`: a trained event network as C."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gridless.cli.options import WeightsName


def export(
    weights: WeightsName,
    out: Annotated[Path | None, typer.Option(help="The folder for the C.")] = None,
    web: Annotated[Path | None, typer.Option(help="A folder for a page with the network, as WebAssembly.")] = None,
    bits: Annotated[int, typer.Option(help="Bits of weights and traces: 32, or 16 for half the size.")] = 32,
    chunk: Annotated[
        int, typer.Option(help="Input events that are worked on together: few need less memory, many less time.")
    ] = 2048,
    name: Annotated[
        str, typer.Option(help="What the names in C begin with; networks with other names go into one program.")
    ] = "net",
    check: Annotated[
        bool, typer.Option("--check", help="Compile it in every way at hand, and compare all bits, and the engine.")
    ] = False,
    events: Annotated[int, typer.Option(min=1, help="How many events --check runs.")] = 20_000,
) -> int:
    """A trained event network as C99 that needs no allocation and no library, with a test that knows its answers.

    `--check` compiles with gcc and clang at every level of optimisation, and with zig (pip install ziglang) for x86-64,
    ARM, RISC-V and WebAssembly, which run in qemu-user and wasmtime (pip install wasmtime) where these are found.
    """
    from gridless.live.export import export as write
    from gridless.live.export.check import beside_engine
    from gridless.live.export.check import check as checked
    from gridless.weights import load

    if out is None and web is None:
        raise ValueError("the output folder is missing. Give --out DIR for C, or --web DIR for a page.")
    if check and out is None:
        raise ValueError("--check needs the C files. Give --out DIR.")
    model = load(weights)
    if web is not None:
        from gridless.live.export.page import web as page
        from gridless.tasks import task_of

        path = Path(weights)
        # A run's weights are called weights; its folder has the name.
        title = path.resolve().parent.name if path.stem == "weights" else path.stem
        tracks = task_of(model).classes(model.config) is None
        print(f"{page(model, web, bits, chunk, title, tracks) / 'index.html'}: open it in a browser")
    if out is not None:
        print(f"{write(model, out, bits, chunk, name)}: network.c and network.h; README.md says the rest")
    if check:
        results = []
        for result in checked(str(out), events):
            print(result, flush=True)
            results.append(result)
        print(f"the same bits in all {len(results)} ways, {events:,} events each")
        print(f"beside the live engine: {beside_engine(model, results[0], bits):.1e} of the largest logit")
    return 0
