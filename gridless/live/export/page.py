"""`gridless export --web`: the same C as WebAssembly, in a page that opens offline and reads recordings."""

from __future__ import annotations

import base64
import html
import re
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


# Words of class names, and what the page draws for networks that know them.
DRAWN = {
    "car": {"car", "cars", "vehicle", "vehicles"},
    "arms": {"arm", "arms", "hand", "hands", "wave", "waving", "clap", "clapping", "gesture", "gestures"},
    "digits": {*"0123456789", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"},
}


def web(
    model: nn.Module,
    out: str | Path,
    bits: int = 32,
    chunk: int = 2048,
    title: str | None = None,
    tracks: bool = False,
) -> Path:
    """Write a page with the network to the folder `out`: `index.html`, which opens without a server, and `network.js`.

    The page shows events, the prediction and the probabilities over time. Its events come from recordings (.raw, .dat,
    .bin, .csv, .aedat4, .es, .npy) that are opened or dropped, from the webcam, whose frames become events where the
    logarithm of the light changes, or from a drawing that fits the names of the classes. Needs a compiler for
    WebAssembly: pip install ziglang, or clang and lld.

    Args:
        model: any network that `gl.stream` runs, in evaluation mode.
        out: a folder; it is made, and files of these names in it are replaced.
        bits: of weights and traces, 32 or 16.
        chunk: input events that go through the network together.
        title: the name at the top of the page; by default the name of the weights or recipe, else of the class.
        tracks: the two outputs are the position (x, y) of an object, not logits of classes.
    """
    folder, files = as_folder(out), texts(model, bits, chunk)
    settings = dict(re.findall(r"#define NET_(CLASSES|WIDTH|HEIGHT) (\d+)", files["network.h"]))
    count = int(settings["CLASSES"])
    if tracks and count != 2:
        raise ValueError(f"web: a network that tracks has 2 outputs, x and y, not {count}. Leave out tracks.")
    names = ["x", "y"] if tracks else [shown(name) for name in class_names(model, count)]
    with tempfile.TemporaryDirectory() as name:
        work = write(Path(name), files | {"web.c": (HERE / "web" / "web.c").read_text("utf-8")})
        compiled([*_compiler(), *FLAGS, "web.c", "-o", "network.wasm"], work)
        code = base64.b64encode((work / "network.wasm").read_bytes()).decode()
    about = f"An event network ({type(model).__name__}) for {settings['WIDTH']} x {settings['HEIGHT']} pixels that " + (
        "follows an object." if tracks else f"tells {len(names)} classes apart."
    )
    values = {
        "TITLE": html.escape(shown(title or _title(model))),
        "ABOUT": html.escape(shown(about)),
        "NAMES": script(names),
        "TRACKS": script(tracks),
        "SOURCE": script(drawing(names if getattr(model, "about", {}).get("class_names") else [])),
        "FORMATS": (HERE / "web" / "formats.js").read_text("utf-8"),
    }
    page = (HERE / "web" / "index.html").read_text("utf-8")
    # In one pass: a name that looks like a placeholder stays a name.
    page = re.sub(r"@(TITLE|ABOUT|NAMES|TRACKS|SOURCE|FORMATS)@", lambda match: values[match[1]], page)
    # A script, because pages that are files may not fetch other files.
    return write(folder, {"index.html": page, "network.js": f'const NETWORK = "{code}";\n'})


def drawing(names: list[str]) -> str:
    """The drawing that the page shows before a recording is loaded: digits, arms, car or shapes, by the class names."""
    class_words = [set(re.findall(r"[a-z]+|\d", name.lower())) for name in names]
    for source in ("arms", "car"):
        if any(word & DRAWN[source] for word in class_words):
            return source
    digits = sum(bool(word & DRAWN["digits"]) for word in class_words)
    return "digits" if names and 2 * digits > len(names) else "shapes"


def _title(model: nn.Module) -> str:
    about = getattr(model, "about", {})
    return str(about.get("name") or about.get("recipe", {}).get("name") or type(model).__name__)


def _compiler() -> list[str]:
    if zig():
        return [*zig(), "-target", "wasm32-freestanding"]
    if shutil.which("clang") and shutil.which("wasm-ld"):
        return ["clang", "--target=wasm32"]
    raise RuntimeError("no compiler for WebAssembly was found. Run pip install ziglang, or install clang and lld.")
