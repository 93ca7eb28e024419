"""Scans without a header: KITTI's `.bin` (x, y, z, intensity) and nuScenes' `.pcd.bin` (also the ring), all float32.

Beside a scan of SemanticKITTI, or in the folder `labels` beside its folder, is a `.label` file: for each point a class
and an instance.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gridless.data.readers.clouds.base import Points, Source, named


def read(source: Source) -> Points:
    names = ["x", "y", "z", "intensity"]
    if source.path.name.lower().endswith(".pcd.bin"):
        names.append("ring")
    size = 4 * len(names)
    over = len(source.data) % size
    if over:
        message = f"truncated, or not {' '.join(names)} in float32: {over} bytes remain after points of {size} bytes"
        raise source.error(message, len(source.data) - over)
    table = np.frombuffer(source.data, "<f4").reshape(-1, len(names))
    return named(source, [*zip(names, table.T, strict=True), *_labels(source, len(table))])


def label_files(scan: Path) -> list[Path]:
    """The two places of a scan's labels: beside it, or in the folder `labels` beside its folder."""
    beside = scan.with_suffix(".label")
    return [beside, scan.parent.parent / "labels" / beside.name]


def _labels(source: Source, count: int) -> list[tuple[str, np.ndarray]]:
    label_file = next((p for p in label_files(source.path) if p.is_file()), None)
    if label_file is None:
        return []
    labels = Source.of(label_file)
    if len(labels.data) != 4 * count:
        raise labels.error(f"holds {len(labels.data) / 4:g} labels, but {source.path.name} {count} points")
    values = np.frombuffer(labels.data, "<u4").astype(np.int64)
    return [("label", values & 0xFFFF), ("instance", values >> 16)]
