"""glTF 2.0, `.glb` and `.gltf`: the triangles of all meshes of the scene, each where its node puts it.

Buffers are in the file itself, as the binary part or as base64; other files are not opened.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np

from gridless.data.errors import FormatError
from gridless.data.readers.clouds.base import Source
from gridless.data.readers.meshes.base import Mesh

TYPES = {5120: "i1", 5121: "u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
WIDTH = {"SCALAR": 1, "VEC3": 3}
TRIANGLES, STRIP, FAN = 4, 5, 6
JSON, BINARY = 0x4E4F534A, 0x004E4942


def read(source: Source) -> Mesh:
    document, binary = _parts(source)
    try:
        parts = list(_Scene(source, document, binary).meshes())
    except FormatError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise source.error(f"the document is not as glTF 2.0 says: {type(error).__name__} {str(error)[:200]}") from None
    if not parts:
        raise source.error("holds no triangles")
    starts = np.cumsum([0] + [len(vertices) for vertices, _ in parts])
    corners = np.concatenate([faces.reshape(-1) + start for (_, faces), start in zip(parts, starts, strict=False)])
    return Mesh(np.concatenate([vertices for vertices, _ in parts]), corners, np.full(len(corners) // 3, 3))


def _parts(source: Source) -> tuple[Any, bytes]:
    """The document, and the binary part of a `.glb`."""
    chunks = {JSON: source.data, BINARY: b""}
    if source.data.startswith(b"glTF"):
        chunks, at = {JSON: b"", BINARY: b""}, 12
        while at < len(source.data):
            size, kind = struct.unpack("<II", source.stored("bytes of a chunk's head", 8, 1, at))
            chunk = source.stored("bytes of a chunk", size, 1, at + 8)
            if kind in chunks and not chunks[kind]:
                chunks[kind] = chunk
            at += 8 + size
    try:
        return json.loads(chunks[JSON]), chunks[BINARY]
    except (ValueError, RecursionError) as error:
        raise source.error(f"not glTF: {str(error)[:200]}", 0) from None


class _Scene:
    def __init__(self, source: Source, document: Any, binary: bytes) -> None:
        self.source, self.document, self.binary = source, document, binary
        self.buffers: dict[int, bytes] = {}
        if document.get("extensionsRequired"):
            raise source.error(f"needs the extensions {str(document['extensionsRequired'])[:80]}")

    def meshes(self):
        """Vertices (V, 3) and corners (T, 3) of each part of each mesh in the scene."""
        nodes = self.document.get("nodes", [])
        scenes = self.document.get("scenes")
        roots = scenes[_whole(self.document.get("scene", 0))]["nodes"] if scenes else range(len(nodes))
        origin = np.eye(4)
        waiting, seen = [(node, origin) for node in roots], set()
        while waiting:
            number, above = waiting.pop()
            if _whole(number) in seen:
                raise self.source.error(f"node {number} has two parents, or is its own")
            seen.add(number)
            node = nodes[number]
            place = above @ _matrix(node)
            waiting += [(child, place) for child in node.get("children", [])]
            if "mesh" in node:
                for part in self.document["meshes"][_whole(node["mesh"])]["primitives"]:
                    # Also where it is empty, so that few bytes cannot ask for endless work.
                    self.source.limits.unpacked("a mesh", 1000)
                    mode = part.get("mode", TRIANGLES)
                    if mode in (TRIANGLES, STRIP, FAN):
                        vertices = self.numbers(part["attributes"]["POSITION"], 3).astype(np.float64)
                        yield vertices @ place[:3, :3].T + place[:3, 3], self.faces(part, mode, len(vertices))

    def faces(self, part: dict, mode: int, vertices: int) -> np.ndarray:
        order = self.numbers(part["indices"], 1)[:, 0] if "indices" in part else np.arange(vertices)
        if order.dtype.kind == "f" or (len(order) and int(order.max()) >= vertices):
            raise self.source.error(f"a corner is no number below {vertices}, the number of vertices")
        order = order.astype(np.int64)
        if mode == TRIANGLES:
            return order[: len(order) // 3 * 3].reshape(-1, 3)
        first = order[:-2] if mode == STRIP else np.broadcast_to(order[:1], (max(len(order) - 2, 0),))
        return np.stack([first, order[1:-1], order[2:]], 1)

    def numbers(self, number: int, width: int) -> np.ndarray:
        """An accessor as (count, width)."""
        accessor = self.document["accessors"][_whole(number)]
        if "sparse" in accessor or WIDTH.get(accessor["type"]) != width:
            raise self.source.error(f"accessor {number} is sparse, or not of {width} numbers")
        view = self.document["bufferViews"][_whole(accessor["bufferView"])]
        data = self.buffer(_whole(view["buffer"]))
        start, length = _whole(view.get("byteOffset", 0)), _whole(view["byteLength"])
        kind, count = np.dtype(TYPES[accessor["componentType"]]), _whole(accessor["count"])
        stride, skip = _whole(view.get("byteStride", kind.itemsize * width)), _whole(accessor.get("byteOffset", 0))
        # Of the last, only its own bytes must be there.
        end = skip + (count - 1) * stride + width * kind.itemsize if count else 0
        if start + length > len(data) or end > length or stride < kind.itemsize:
            raise self.source.error(f"truncated: accessor {number} reaches beyond its buffer of {len(data)} bytes")
        self.source.limits.unpacked("a mesh", count * width * 8)
        if not count:
            return np.empty((0, width), kind)
        return np.ndarray((count, width), kind, data, start + skip, (stride, kind.itemsize))

    def buffer(self, number: int) -> bytes:
        if number not in self.buffers:
            uri = self.document["buffers"][number].get("uri")
            if uri is None:
                self.buffers[number] = self.binary
            elif uri.startswith("data:") and ";base64," in uri[:200]:
                self.buffers[number] = base64.b64decode(uri.split(",", 1)[1], validate=True)
            else:
                raise self.source.error(f"its buffer is in another file, {uri[:80]!r}: convert it to .glb")
        return self.buffers[number]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise ValueError(f"{str(value)[:40]!r} is no whole number")
    return value


def _matrix(node: dict) -> np.ndarray:
    """Where a node puts its mesh (4, 4)."""
    if "matrix" in node:
        return np.array(node["matrix"], np.float64).reshape(4, 4).T
    x, y, z, w = np.array(node.get("rotation", [0, 0, 0, 1]), np.float64)
    turn = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    place = np.eye(4)
    place[:3, :3] = turn * np.array(node.get("scale", [1, 1, 1]), np.float64)
    place[:3, 3] = node.get("translation", [0, 0, 0])
    return place
