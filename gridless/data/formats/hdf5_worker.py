"""A process of its own that reads HDF5 files, because a damaged file can make the HDF5 library hang or crash.

Run as a script, without the package: `python hdf5_worker.py`. Each line of its input is a request, JSON with `path`,
`size` (of the file), `aliases` (of x, y, t, p) and `memory` (bytes the process may use). Each answer is 8 bytes of
length, JSON of that length (`error`, or `arrays` as [name, dtype, shape] and `sensor`), and the bytes of the arrays.
"""

import json
import re
import struct
import sys

import h5py
import numpy as np

PLACES = ("CD/events", "events", "/")
PLURALS = {"xs": "x", "ys": "y", "ts": "t", "ps": "p"}
# Deflate shrinks by 1032 at most.
MAX_RATIO = 1100


def read(path, size, aliases):
    """Arrays by field name, or one structured array under the name "", and the sensor or None."""
    with h5py.File(path, "r") as root:
        for place in PLACES:
            node = root.get(place)
            if isinstance(node, h5py.Dataset):
                return dataset(node, size, place), sensor(node.attrs, root.attrs)
            if isinstance(node, h5py.Group) and (names := fields(node, aliases)):
                return group(node, names, size), sensor(node.attrs, root.attrs)
        found = ", ".join(list(root)[:20]) or "nothing"
        raise ValueError(f"has no events: looked for {', '.join(PLACES)} and found {found}")


def dataset(node, size, place):
    array = load(node, size)
    if array.dtype.names:
        return {"": array}
    if array.ndim == 2 and array.shape[1] == 4:
        return {name: array[:, i] for i, name in enumerate("txyp")}
    raise ValueError(f"{place} is {array.shape} {array.dtype}, neither structured nor (events, 4)")


def fields(node, aliases):
    """Name in the file of each of x, y, t, p; empty unless all four are there."""
    found = {}
    for name in node:
        plain = PLURALS.get(name.lower(), name.lower())
        for field, known in aliases.items():
            if plain in known and field not in found and isinstance(node.get(name), h5py.Dataset):
                found[field] = name
    return found if len(found) == 4 else {}


def group(node, names, size):
    arrays = {field: load(node[name], size) for field, name in names.items()}
    if arrays["t"].dtype.kind == "f":
        micro = np.round(arrays["t"].astype(np.float64) * 1e6)
        if not np.isfinite(micro).all() or (np.abs(micro) >= 2**62).any():
            raise ValueError("has times that are not finite")
        arrays["t"] = micro.astype(np.int64)
    if arrays["p"].dtype.kind == "f" and np.isin(arrays["p"], (-1, 0, 1)).all():
        arrays["p"] = arrays["p"].astype(np.int8)
    offset = node.get("t_offset", node.file.get("t_offset"))
    if isinstance(offset, h5py.Dataset):
        if offset.size != 1 or offset.dtype.kind not in "iu":
            raise ValueError(f"t_offset is {offset.shape} {offset.dtype}, not one whole number")
        arrays["t"] = arrays["t"].astype(np.int64) + int(offset[()].item())
    return arrays


def load(node, size):
    if node.dtype.hasobject or node.dtype.kind not in "iufbV":
        raise ValueError(f"{node.name} holds {node.dtype}, not numbers")
    promised = node.size * node.dtype.itemsize
    if promised > MAX_RATIO * size:
        raise ValueError(f"{node.name} would unpack to {promised} bytes")
    try:
        return node[()]
    except OSError as error:
        remedy = (
            "; Prophesee's codec needs its HDF5 plugin"
            if "plugin" in str(error) or "required filter" in str(error)
            else ""
        )
        raise ValueError(f"{node.name} cannot be read: {str(error)[:200]}{remedy}") from None


def sensor(*places):
    for attributes in places:
        size = None
        for name in ("sensor", "geometry"):
            value = attributes.get(name)
            if isinstance(value, bytes):
                value = value.decode("latin-1")
            said = re.match(r"(\d{1,5})x(\d{1,5})$", value) if isinstance(value, str) else None
            size = said.groups() if said else value if isinstance(value, np.ndarray) else size
        if "width" in attributes and "height" in attributes:
            size = attributes["width"], attributes["height"]
        if "sensor_resolution" in attributes:
            size = attributes["sensor_resolution"][::-1]
        if size is not None:
            width, height = (int(v) for v in size)
            if not (0 < width < 2**31 and 0 < height < 2**31):
                raise ValueError(f"says the sensor is {width} x {height}")
            return width, height
    return None


def limit_memory(size):
    try:
        import resource
    except ImportError:  # Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def main():
    out = sys.stdout.buffer
    for line in sys.stdin:
        request = json.loads(line)
        limit_memory(request["memory"])
        arrays = {}
        try:
            arrays, size = read(request["path"], request["size"], request["aliases"])
            arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
            listed = [[name, np.lib.format.dtype_to_descr(a.dtype), a.shape] for name, a in arrays.items()]
            answer = json.dumps({"arrays": listed, "sensor": size})
        except Exception as error:
            arrays, answer = {}, json.dumps({"error": str(error)[:400] or type(error).__name__})
        head = answer.encode()
        out.write(struct.pack("<q", len(head)) + head)
        for array in arrays.values():
            out.write(array.reshape(-1).view(np.uint8).data)
        out.flush()


if __name__ == "__main__":
    main()
