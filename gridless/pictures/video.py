"""Events as moving images: GIF through Pillow, MP4 through ffmpeg."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from gridless.data.files import whole_file, write_whole
from gridless.data.images import frames
from gridless.pictures.colours import BLUE, RED
from gridless.structures import Events

# Frames of small sensors are enlarged by a whole factor to about this width in pixels.
WIDE = 320


def painted(channels: Tensor, most: float) -> np.ndarray:
    """Counts or freshness (2 or 1, H, W) as an image (H, W, 3) uint8 on white: OFF blue, ON red, `most` in full."""
    shares = (channels.cpu().numpy() / most).clip(0, 1)[..., None]
    # A single event stays visible; a pixel with both polarities has a colour closer to the stronger one.
    strong = np.where(shares > 0, 0.35 + 0.65 * shares, 0)
    weight = strong**2 / np.maximum((strong**2).sum(0), 1e-9)
    colour = sum(w * c for w, c in zip(weight, (BLUE, RED)))
    return (255 - strong.max(0) * (255 - colour)).astype(np.uint8)


def event_images(events: Events, fps: float = 25, speed: float = 1) -> Iterator[np.ndarray]:
    """An image (H, W, 3) uint8 for every `speed` / `fps` seconds of a recording."""
    if not fps > 0 or not speed > 0:
        raise ValueError(f"a video needs fps and speed above 0, not {fps} and {speed}")
    if not len(events):
        raise ValueError("a video needs events, but there are no events")
    step = max(int(1e6 * speed / fps), 1)
    span = int(events.time[-1] - events.time[0])
    cuts = torch.arange(0, span + step + 1, step) + events.time[0].cpu()
    bounds = torch.searchsorted(events.time.cpu(), cuts)
    larger = max(WIDE // events.sensor[0], 1)
    for a, b in zip(bounds.tolist(), bounds[1:].tolist()):
        yield painted(frames(events[a:b])[0], 2).repeat(larger, 0).repeat(larger, 1)


def write_video(path: str | Path, images: Iterator[np.ndarray], fps: float) -> Path:
    """Images (H, W, 3) uint8 as a .gif or an .mp4, whole or not at all."""
    path = Path(path)
    if path.suffix == ".gif":
        return _gif(path, images, fps)
    if path.suffix != ".mp4":
        raise ValueError(f"{path.name} is not a video format. The name must end in .gif or .mp4.")
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        raise FileNotFoundError("an MP4 needs ffmpeg, which is not on the path. Install it, or write a .gif.")
    return _mp4(ffmpeg, path, images, fps)


def _gif(path: Path, images: Iterator[np.ndarray], fps: float) -> Path:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("a GIF needs Pillow. Run pip install pillow.") from error
    shades = (Image.fromarray(image).quantize(32) for image in images)
    with whole_file(path) as file:
        # Browsers do not show frames of less than 20 ms as such.
        next(shades).save(file, "GIF", save_all=True, append_images=shades, duration=max(round(1000 / fps), 20), loop=0)
    return path


def _mp4(ffmpeg: str, path: Path, images: Iterator[np.ndarray], fps: float) -> Path:
    first = next(images)
    height, width = first.shape[:2]
    with TemporaryDirectory() as folder:
        video = Path(folder) / "video.mp4"
        # Players want even sides and colours at half resolution.
        arguments = f"-y -loglevel error -f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {fps} -i -".split()
        arguments += ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white", "-pix_fmt", "yuv420p", str(video)]
        with subprocess.Popen([ffmpeg, *arguments], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            try:
                for image in chain([first], images):
                    process.stdin.write(image.tobytes())
                process.stdin.close()
            except BrokenPipeError:
                pass
            said = process.stderr.read().decode(errors="replace").strip()
        if process.returncode or not video.is_file():
            raise RuntimeError(f"ffmpeg could not write {path.name}: {said[-300:] or process.returncode}")
        return write_whole(path, video.read_bytes())
