"""`gridless show`: a cloud or a recording as a picture or as a page that can be turned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def show(
    file: Annotated[Path, typer.Argument(help="A cloud (PLY, PCD, LAS, NPY, XYZ...) or a recording of events.")],
    out: Annotated[Path | None, typer.Option(help="Where to: .png, .svg, .pdf or .html; else FILE with .png.")] = None,
    sample: Annotated[float | None, typer.Option(help="Mark a rejection sample of this radius.")] = None,
    ball: Annotated[float | None, typer.Option(help="Colour a few neighbourhoods of this radius.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was drawn as JSON.")] = False,
) -> None:
    """Draw a cloud, with samples or neighbourhoods, or a recording of events."""
    import gridless as gl

    facts: dict[str, object] = {"file": str(file)}
    thing = _read(file)
    if isinstance(thing, gl.Cloud):
        cloud = thing
        kept = gl.rejection_sample(cloud, radius=sample) if sample is not None else None
        near = gl.ball(cloud, cloud, ball) if ball is not None else None
        picture = gl.show(cloud, sample=kept, edges=near)
        facts |= {"points": len(cloud)} | ({"samples": len(kept)} if kept is not None else {})
        facts |= {"edges": len(near)} if near is not None else {}
    else:
        if sample is not None or ball is not None:
            raise ValueError("--sample and --ball are for clouds, not for recordings of events")
        picture = gl.show(thing)
        facts |= {"events": len(thing), "sensor": list(thing.sensor)}
    path = picture.save(out or file.with_suffix(".png"))
    facts["picture"] = str(path)
    print(json.dumps(facts) if as_json else ", ".join(f"{k} {v}" for k, v in facts.items()))


def _read(file: Path) -> Any:
    """A cloud where the suffix says so; else events; a table of plain numbers is a cloud after all."""
    from gridless.data import FormatError, read_cloud, read_events

    if not file.is_file():
        raise FileNotFoundError(f"no file {file}")
    if file.suffix.lower() in (".ply", ".pcd", ".las", ".laz", ".xyz", ".pts") or file.name.endswith(".pcd.bin"):
        return read_cloud(file)
    try:
        return read_events(file)
    except FormatError:
        if file.suffix.lower() not in (".npy", ".npz", ".csv", ".txt", ".bin"):
            raise
        return read_cloud(file)
