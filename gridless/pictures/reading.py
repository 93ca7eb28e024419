"""Files as the structures that pictures draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gridless.pictures.drawing import Triangles


def _read_bag(file: Path, topic: str | None) -> Any:
    from gridless.data import read_cloud, read_events
    from gridless.data.readers.bags import Bag
    from gridless.data.readers.clouds.ros import TYPES as CLOUDS
    from gridless.data.readers.events.ros import TYPES as EVENTS

    with Bag.open(file) as bag:
        topics = bag.topics()
    clouds = [name for name, (kind, _) in topics.items() if kind in CLOUDS]
    if topic in clouds or (topic is None and clouds and not any(kind in EVENTS for kind, _ in topics.values())):
        return read_cloud(file, topic=topic)
    return read_events(file, topic=topic)


def read(file: Path, topic: str | None = None) -> Any:
    """Read a file as a cloud, a mesh or events, depending on its name; a text file of plain numbers is a cloud.

    From a ROS bag it reads the events, or else the first cloud; `topic` chooses one.
    """
    from gridless.data import FormatError, read_cloud, read_events
    from gridless.data.errors import check_file
    from gridless.data.readers.bags import is_bag
    from gridless.data.readers.clouds import MESHES
    from gridless.data.readers.meshes import read_triangles

    if is_bag(file):
        return _read_bag(file, topic)
    if topic is not None:
        raise FormatError(file, "has no topics. The option topic is for ROS recordings.")
    check_file(file)
    suffix = file.suffix.lower()
    if suffix in MESHES:
        return Triangles(read_triangles(file))
    if suffix == ".ply":
        try:
            return Triangles(read_triangles(file))
        except FormatError:
            return read_cloud(file)
    if suffix in (".asc", ".e57", ".pcd", ".las", ".laz", ".xyz", ".pts") or file.name.endswith(".pcd.bin"):
        return read_cloud(file)
    try:
        return read_events(file)
    except FormatError:
        if suffix not in (".npy", ".npz", ".csv", ".txt", ".bin"):
            raise
        return read_cloud(file)
