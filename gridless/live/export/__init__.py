"""`gl.export`: a trained event network as C99 that needs nothing: no allocation, no library, no Python."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from gridless.live.export.folder import as_folder, texts, write

__all__ = ["export"]


def export(model: nn.Module, out: str | Path, bits: int = 32, chunk: int = 2048, name: str = "net") -> Path:
    """Write a trained event network as C to the folder `out`, and return it.

    `network.c` and `network.h` are the network: C99, no allocation, no state outside the caller's memory, no library.
    Beside them: `golden.h` and `test.c`, which test it with the logits of a recording; `Makefile` and `CMakeLists.txt`;
    `network.hpp` for C++; `README.md` with sizes and cost. The same weights give the same text, byte for byte, and the
    text gives the same bits on every machine and compiler.

    Args:
        model: any network that `gl.stream` runs, in evaluation mode.
        out: a folder; it is made, and files of these names in it are replaced.
        bits: of weights and traces: 32 or 16. 16 needs half the memory, and is faster on processors that fuse products
            with sums. Logits then move by about 1e-4 of the largest.
        chunk: input events that go through the network together. A small one needs less memory, for small boards.
        name: prefix of functions, types and macros, and the namespace of C++. Networks with other names go into one
            program.
    """
    return write(as_folder(out), texts(model, bits, chunk, name))
