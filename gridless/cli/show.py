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
        typer.Option(help="The picture: .png, .svg, .pdf or .html; default: FILE with .png, unless that is a file."),
    ] = None,
    sample: Annotated[float | None, typer.Option(help="Mark a rejection sample of this radius.")] = None,
    ball: Annotated[float | None, typer.Option(help="Colour a few neighbourhoods of this radius.")] = None,
    colour: Annotated[str | None, typer.Option(help="Colour by these rows, such as label, intensity or rgb.")] = None,
    names: Annotated[str | None, typer.Option(help="Names of the classes from 0 on, for the legend: road,car.")] = None,
    points: Annotated[int | None, typer.Option(min=1, help="Points that are drawn at most; else 40,000.")] = None,
    model: Annotated[str | None, typer.Option(help="Colour by the parts that these segmentation weights find.")] = None,
    category: Annotated[str | None, typer.Option(help="With --model: what the cloud shows.")] = None,
    up: Annotated[str, typer.Option(help="The axis that points up: x, y or z.")] = "z",
    view: Annotated[
        str, typer.Option(help="Events: space (in space and time), frame, or surface (time surface).")
    ] = "space",
    topic: Annotated[str | None, typer.Option(help="Recordings of ROS: the topic, if several can be drawn.")] = None,
    video: Annotated[Path | None, typer.Option(help="Write the recording as a video, .gif or .mp4.")] = None,
    fps: Annotated[float, typer.Option(help="Frames of the video in a second.")] = 25,
    speed: Annotated[float, typer.Option(help="Speed of the video: 0.1 is ten times slower than real time.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was drawn as JSON.")] = False,
) -> None:
    """Draw a cloud, with samples or neighbourhoods, a mesh, or a recording of events."""
    from gridless.pictures import MARK, read

    class_names: Any = None if names is None else [name.strip() for name in names.split(",")]
    target = out or file.with_suffix(".png")
    if out is None and video is None and target.exists() and MARK.encode() not in target.read_bytes()[:200]:
        raise ValueError(f"{target} exists and is no picture of gridless. Give --out (with this name to replace it).")
    if model is not None:
        (drawing, class_names), colour = _with_parts(model, file, category, up), "part"
    else:
        drawing = read(file, topic)
    options = {"colour": colour, "up": up, "view": view, "class_names": class_names, "max_points": points}
    picture, counts = _draw(drawing, sample, ball, options)
    facts: dict[str, Any] = {"file": str(file), **counts, "drawn": picture.words}
    if video is not None:
        facts["video"] = str(picture.video(video, fps, speed))
    if video is None or out is not None:
        facts["picture"] = str(picture.save(target))
    print(json.dumps(facts) if as_json else shown(", ".join(f"{k} {v}" for k, v in facts.items())))


def _draw(
    drawing: Any, sample: float | None, ball: float | None, options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The picture of a cloud, a mesh or a recording, and how many points, samples, edges, events or triangles it has.

    Args:
        drawing: the cloud, mesh or recording.
        sample: the radius of a rejection sample to mark.
        ball: the radius of neighbourhoods to colour.
        options: for `gl.show`.
    """
    import gridless as gl

    if isinstance(drawing, gl.Cloud):
        samples = gl.rejection_sample(drawing, radius=sample) if sample is not None else None
        edges = gl.ball(drawing, drawing, ball) if ball is not None else None
        counted = {"points": drawing, "samples": samples, "edges": edges}
        counts = {name: len(value) for name, value in counted.items() if value is not None}
        return gl.show(drawing, sample=samples, edges=edges, **options), counts
    if sample is not None or ball is not None:
        raise ValueError("--sample and --ball need a cloud, not a mesh or a recording. Leave them out.")
    if isinstance(drawing, gl.Events):
        return gl.show(drawing, **options), {"events": len(drawing), "sensor": list(drawing.sensor)}
    return gl.show(drawing, **options), {"triangles": len(drawing.corners)}


def _with_parts(weights: str, file: Path, category: str | None, up: str) -> tuple[Any, dict[int, str]]:
    """The cloud of a file with the part of each point as the rows `part`, and the names of the parts by number."""
    from tempfile import TemporaryDirectory

    import gridless as gl
    from gridless.tasks import task_of

    network = gl.load(weights)
    task, options = task_of(network), {"up": up} | ({"category": category} if category else {})
    if "--category" not in task.options["predict"]:
        raise ValueError(f"--model {weights} is {task.network}. Give a network for parts, such as shapenetpart.")
    with TemporaryDirectory() as folder:
        answer = task.predict(network, file, {**options, "out": Path(folder)})
        cloud, parts = gl.read_cloud(answer.record["written"]), list(answer.record[task.records])
    values = network.about.get("values") or range(len(parts))
    return cloud, dict(zip(values, parts))
