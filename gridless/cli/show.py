"""`gridless show`: a cloud, a mesh or a recording as a picture, as a page that can be turned, or as a video."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gridless.kernels.progress import shown


def show(
    file: Annotated[Path, typer.Argument(help="A cloud (PLY, PCD, LAS, NPY, XYZ...), a mesh, or a recording.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Where to: .png, .svg, .pdf or .html; else FILE with .png, where that is not another's."),
    ] = None,
    sample: Annotated[float | None, typer.Option(help="Mark a rejection sample of this radius.")] = None,
    ball: Annotated[float | None, typer.Option(help="Colour a few neighbourhoods of this radius.")] = None,
    colour: Annotated[str | None, typer.Option(help="Colour by these rows, such as label, intensity or rgb.")] = None,
    names: Annotated[str | None, typer.Option(help="Names of the classes from 0 on, for the legend: road,car.")] = None,
    points: Annotated[int | None, typer.Option(min=1, help="Points that are drawn at most; else 40,000.")] = None,
    model: Annotated[str | None, typer.Option(help="Colour by the parts that these segmentation weights find.")] = None,
    category: Annotated[str | None, typer.Option(help="With --model: what the cloud shows.")] = None,
    up: Annotated[str, typer.Option(help="The axis that points up: x, y or z.")] = "z",
    view: Annotated[str, typer.Option(help="Events in space and time, as a frame or as a time surface.")] = "space",
    topic: Annotated[str | None, typer.Option(help="Of a recording of ROS, where several topics can be drawn.")] = None,
    video: Annotated[Path | None, typer.Option(help="Write the recording as a video, .gif or .mp4.")] = None,
    fps: Annotated[float, typer.Option(help="Frames of the video in a second.")] = 25,
    speed: Annotated[float, typer.Option(help="How fast the video runs: 0.1 is ten times slower than life.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was drawn as JSON.")] = False,
) -> None:
    """Draw a cloud, with samples or neighbourhoods, a mesh, or a recording of events."""
    import gridless as gl
    from gridless.pictures import MARK, read

    facts: dict[str, object] = {"file": str(file)}
    class_names: Any = None if names is None else [name.strip() for name in names.split(",")]
    drawn = out or file.with_suffix(".png")
    if out is None and video is None and drawn.exists() and MARK.encode() not in drawn.read_bytes()[:200]:
        raise ValueError(f"{drawn} is there, and no picture of {file}: say where to with --out, or replace it so")
    if model is not None:
        (thing, class_names), colour = _parts(model, file, category, up), "part"
    else:
        thing = read(file, topic)
    if isinstance(thing, gl.Cloud):
        kept = gl.rejection_sample(thing, radius=sample) if sample is not None else None
        near = gl.ball(thing, thing, ball) if ball is not None else None
        picture = gl.show(thing, kept, near, colour, up, view, class_names, points)
        facts |= {"points": len(thing)} | ({"samples": len(kept)} if kept is not None else {})
        facts |= {"edges": len(near)} if near is not None else {}
    else:
        if sample is not None or ball is not None:
            raise ValueError("--sample and --ball are for clouds, not for meshes or recordings of events")
        picture = gl.show(thing, None, None, colour, up, view, class_names, points)
        if isinstance(thing, gl.Events):
            facts |= {"events": len(thing), "sensor": list(thing.sensor)}
        else:
            facts |= {"triangles": len(thing.corners)}
    facts["drawn"] = picture.words
    if video is not None:
        facts["video"] = str(picture.video(video, fps, speed))
    if video is None or out is not None:
        facts["picture"] = str(picture.save(drawn))
    print(json.dumps(facts) if as_json else shown(", ".join(f"{k} {v}" for k, v in facts.items())))


def _parts(weights: str, file: Path, category: str | None, up: str):
    """The cloud of a file with the part of each point as the rows `part`, and the names of the parts by number."""
    from tempfile import TemporaryDirectory

    import gridless as gl
    from gridless.tasks import task_of

    network = gl.load(weights)
    task, options = task_of(network), {"up": up} | ({"category": category} if category else {})
    if "--category" not in task.options["predict"]:
        raise ValueError(f"{weights} is {task.network}: points are coloured by one that finds parts")
    with TemporaryDirectory() as folder:
        answer = task.predict(network, file, {**options, "out": Path(folder)})
        cloud, parts = gl.read_cloud(answer.record["written"]), list(answer.record[task.records])
    values = network.about.get("values") or range(len(parts))
    return cloud, dict(zip(values, parts))
