"""Diagrams of plans, networks and blocks: boxes and arrows in matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import fx, nn

from gridless.nn.blocks import sampled, with_coords
from gridless.pictures.figures import BLUE, GREEN, GREY, RED, new_figure
from gridless.plan import Name, Plan, Step

# Inches between the centres of boxes, and colours of boxes.
ACROSS, DOWN = 2.5, 0.72
CLOUDS, EDGES, LAYERS, OTHERS = BLUE, RED, GREEN, GREY


class Box(NamedTuple):
    """A box of a diagram: column and row of its centre, its text and its colour."""

    column: float
    row: float
    text: str
    colour: str = OTHERS


def diagram(boxes: Mapping[str, Box], arrows: Iterable[tuple[str, str]], divide: float | None = None) -> Any:
    """Boxes by name and arrows between them; `divide` is the column of a dashed line."""
    columns, rows = [box.column for box in boxes.values()], [box.row for box in boxes.values()]
    left, right, top, bottom = min(columns) - 0.6, max(columns) + 0.6, min(rows) - 0.7, max(rows) + 0.7
    figure = new_figure(ACROSS * (right - left), DOWN * (bottom - top))
    axes = figure.add_subplot()
    axes.set(xlim=(left * ACROSS, right * ACROSS), ylim=(bottom * DOWN, top * DOWN))
    axes.axis("off")
    drawn = {
        name: axes.text(
            box.column * ACROSS, box.row * DOWN, box.text, ha="center", va="center", fontsize=8, zorder=3,
            bbox={"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": box.colour, "linewidth": 1.2},
        )
        for name, box in boxes.items()
    }  # fmt: skip
    for begin, end in arrows:
        one, other = boxes[begin], boxes[end]
        # Arrows that pass other boxes of their column are bent around them.
        bend = 0.35 if one.column == other.column and abs(one.row - other.row) > 1.5 else 0.0
        axes.annotate(
            "", (other.column * ACROSS, other.row * DOWN), (one.column * ACROSS, one.row * DOWN), zorder=2,
            arrowprops={"arrowstyle": "->", "color": OTHERS, "patchA": drawn[begin].get_bbox_patch(),
                        "patchB": drawn[end].get_bbox_patch(), "connectionstyle": f"arc3,rad={bend}"},
        )  # fmt: skip
    if divide is not None:
        axes.axvline(divide * ACROSS, color=OTHERS, linestyle="--", linewidth=1)
    return figure


def of_plan(plan: Plan, sizes: Mapping[str, str] | None = None) -> tuple[dict[str, Box], list[tuple[str, str]]]:
    """The lines of a plan, one row each: clouds and streams on the left, searches beside them.

    `sizes` are further labels for each line, such as its number of points.
    """
    boxes, arrows = {}, []
    for row, (name, step) in enumerate(plan.steps.items()):
        makes_cloud = name.startswith("X")
        label = _words(name, step) + (f"\n{sizes[name]}" if sizes and name in sizes else "")
        boxes[str(name)] = Box(0 if makes_cloud else 1, row, label, CLOUDS if makes_cloud else EDGES)
        arrows += [(str(read), str(name)) for read in dict.fromkeys(step.inputs)]
    return boxes, arrows


def of_network(
    model: nn.Module, sizes: Mapping[str, str] | None = None
) -> tuple[dict[str, Box], list[tuple[str, str]]]:
    """The plan of a network, and its convolutions in the order of their edges: the paper's figure 2."""
    plan: Any = model.plan
    boxes, arrows = of_plan(plan, sizes)
    before, row, placed = None, -1.0, set[str]()
    for name, layer, edges in layers_of(model):
        origins = [str(edges)] if str(edges) in boxes else [str(edges.source), str(edges.target)]
        row = max(row + 1, max(boxes[each].row for each in origins))
        if len(origins) == 2 and origins[1] not in placed:
            # A stream without searches is placed beside the first convolution that targets it.
            boxes[origins[1]] = boxes[origins[1]]._replace(row=row)
            placed.add(origins[1])
        boxes[name] = Box(2, row, f"{_role(layer, edges, plan)}\n{tuple(layer.weight.shape)}", LAYERS)
        arrows += [(each, name) for each in dict.fromkeys(origins)]
        if before is not None:
            arrows.append((before, name))
        before = name
    return boxes, arrows


def layers_of(model: nn.Module) -> list[tuple[str, Any, Name]]:
    """Convolutions of a network with their names and edges, by the line of the plan that their targets come from."""
    lines = list(model.plan.steps)  # type: ignore[union-attr]
    convolutions = []
    for name, layer in model.named_modules():
        edges = getattr(layer, "edges", getattr(layer, "near", None))
        if isinstance(edges, Name) and hasattr(layer, "weight"):
            # Implicit edges, such as those of event streams, take the place of their targets.
            at = lines.index(str(edges)) if str(edges) in lines else lines.index(str(edges.target))
            convolutions.append((at, name, layer, edges))
    return [each[1:] for each in sorted(convolutions, key=lambda each: each[0])]


def of_block(module: nn.Module) -> tuple[dict[str, Box], list[tuple[str, str]]]:
    """The diagram of a block, traced from its `forward` by `torch.fx`: one row per step, from top to bottom."""
    graph = _Tracer().trace(module)
    modules, boxes, arrows = dict(module.named_modules()), {}, []
    depth: dict[fx.Node, int] = {}
    columns: dict[fx.Node, int] = {}
    taken: set[tuple[int, int]] = set()
    for node in graph.nodes:
        inputs = [each for each in node.all_input_nodes if each in depth]
        if node.op == "placeholder" and node.name != "features":
            continue
        depth[node] = max((depth[each] for each in inputs), default=-1) + 1
        column = min((columns[each] for each in inputs), default=0)
        while (column, depth[node]) in taken:
            column += 1
        columns[node] = column
        taken.add((column, depth[node]))
        boxes[node.name] = Box(column, depth[node], _operation(node, modules), CLOUDS if not inputs else OTHERS)
        arrows += [(each.name, node.name) for each in inputs]
    return boxes, arrows


class _Tracer(fx.Tracer):
    """Reads blocks down to layers with weights, norms and dropouts."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=(sampled, with_coords))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return bool(m._parameters or m._buffers) or not list(m.children())


def _words(name: str, step: Step) -> str:
    settings = ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                         for key, value in step.settings)  # fmt: skip
    return f"{name}: {step.op.replace('_', ' ')}" + (f"\n{settings}" if settings else "")


def _role(layer: nn.Module, edges: Name, plan: Plan) -> str:
    if type(layer).__name__ == "FeaturelessConv":
        return "featureless conv"
    if edges.source == edges.target:
        return "in-place conv"
    transposed = str(edges) in plan.steps and plan.steps[str(edges)].op == "transpose"
    return "up-sample conv" if transposed else "down-sample conv"


def _operation(node: fx.Node, modules: Mapping[str, nn.Module]) -> str:
    if node.op == "call_module":
        return _layer(modules[str(node.target)])
    if node.op == "call_function":
        name = getattr(node.target, "__name__", str(node.target))
        return {"add": "+", "sampled": "sampled points", "with_coords": "with coordinates"}.get(name, name)
    return {"relu": "ReLU"}.get(str(node.target), str(node.target))


def _layer(layer: Any) -> str:
    kind = type(layer).__name__
    if kind == "BatchNorm":
        return {"before": "ReLU, norm", "after": "norm, ReLU"}.get(str(getattr(layer, "relu", None)), "norm")
    if kind == "Dropout":
        return f"dropout {layer.p:g}"
    if kind == "Dense":
        return f"dense {layer.in_features} to {layer.out_features}"
    if kind == "EventConv":
        return f"event conv {tuple(layer.weight.shape)}"
    return f"conv {tuple(layer.weight.shape)}" if hasattr(layer, "weight") else kind
