"""`gridless export --web`: the same C as WebAssembly, in a page that opens offline and makes its own events."""

from __future__ import annotations

import base64
import html
import shutil
import tempfile
from pathlib import Path

from torch import nn

from gridless.kernels.progress import shown
from gridless.live.export.check import compiled, zig
from gridless.live.export.folder import as_folder, texts, write
from gridless.live.export.writer import HERE
from gridless.live.view import script
from gridless.weights import class_names

FLAGS = ("-std=c99", "-O3", "-msimd128", "-nostdlib", "-Wl,--no-entry", "-Wl,--strip-all")


def web(model: nn.Module, out: str | Path, bits: int = 32, chunk: int = 2048) -> Path:
    """Write a page with the network to the folder `out`: `index.html`, which opens without a server, and `network.js`.

    Its events come from moving digits, from a recording that is dropped onto it, or from the webcam, whose frames
    become events where the logarithm of the light changes. Needs a compiler for WebAssembly: pip install ziglang, or
    clang and lld.
    """
    folder, files = as_folder(out), texts(model, bits, chunk)
    classes = int(files["network.h"].partition("#define NET_CLASSES ")[2].split()[0])
    names = [shown(name) for name in class_names(model, classes)]
    title = files["README.md"].splitlines()[0].removeprefix("# ")
    with tempfile.TemporaryDirectory() as name:
        work = write(Path(name), files | {"web.c": (HERE / "web" / "web.c").read_text("utf-8")})
        compiled([*_compiler(), *FLAGS, "web.c", "-o", "network.wasm"], work)
        code = base64.b64encode((work / "network.wasm").read_bytes()).decode()
    page = (
        (HERE / "web" / "index.html")
        .read_text("utf-8")
        .replace("@TITLE@", html.escape(shown(title)))
        .replace("@NAMES@", script(names))
    )
    # A script, because pages that are files may not fetch other files.
    return write(folder, {"index.html": page, "network.js": f'const NETWORK = "{code}";\n'})


def _compiler() -> list[str]:
    if zig():
        return [*zig(), "-target", "wasm32-freestanding"]
    if shutil.which("clang") and shutil.which("wasm-ld"):
        return ["clang", "--target=wasm32"]
    raise RuntimeError("no compiler for WebAssembly was found: pip install ziglang, or install clang and lld")
