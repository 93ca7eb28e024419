"""Recipes: everything that decides a training run, read from a YAML file into a documented pydantic model."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import torch
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, ValidationError, create_model
from torch import nn

from gridless.augment.policy import Policy
from gridless.data.labels import check_names
from gridless.tasks.registry import TASKS, data_names, find, task_name
from gridless.training.schedule import Cosine, Plateau

# Folders of recipes: beside the package in a checkout, inside the package if installed.
FOLDERS = (Path(__file__).parents[2] / "recipes", Path(__file__).parents[1] / "recipes")

_STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, use_attribute_docstrings=True)
_Count = Annotated[int, Field(ge=1)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(ge=0, le=1)]

_types = get_type_hints(Policy)
_entries: Any = {entry.name: (_types[entry.name], entry.default) for entry in dataclasses.fields(Policy)}
_Augment: Any = create_model("_Augment", __config__=_STRICT, **_entries)


def _policy(value: Any) -> Any:
    if value is None or isinstance(value, dict):
        values = dict(value or {})
        if isinstance(values.get("scale"), list):
            values["scale"] = tuple(values["scale"])
        return Policy(**_Augment(**values).model_dump())
    return value


class Recipe(BaseModel):
    """One training run. Every field can be changed on the command line: `--set epochs=10 --set augment.shift=0.1`."""

    model_config = _STRICT

    model: dict[str, Any]
    """Argument of `gridless.models.build`: name and arguments of the model. The default name is that of `start`."""
    start: str | None = None
    """Initial weights, by name or path: every tensor that fits by name and shape. None: initialised from the seed."""
    frozen: list[str] = []
    """Frozen parts of the network, such as [downs, blocks], including their normalisation."""
    data: str = "modelnet40"
    """The data set: modelnet40, semantickitti, shapenetpart, shapes; n_mnist, mnist_dvs, cifar10_dvs, n_caltech101,
    asl_dvs, n_cars, glyphs; spots, blobs; or folder: your own clouds or recordings. Your own task has its own data."""
    task: str | None = None
    """The task: classify, recordings, parts, scenes, track, or your own, FILE.py:CLASS, which runs that file. None: the
    task of the network and the data."""
    data_options: dict[str, Any] = {}
    """Further arguments of the data set, such as `scale: 4` of MNIST-DVS, `size: 1200` of a generated one, or `up: z`
    of a folder (`gl.data.CloudFolder`)."""
    points: _Count = 1024
    """Points per cloud, from the first on."""
    augment: Annotated[InstanceOf[Policy], BeforeValidator(_policy)] = Policy()
    """Augmentation of each training cloud."""
    transforms: list[Any] | None = None
    """Augmentation of each training recording, such as [ReverseTime, {Zoom: [0.8, 1.2]}]; None: the data set's."""
    prepare: list[Any] = []
    """Preparation of every recording, in training and evaluation, before that of the data set, such as
    [{PoolPixels: 2}]."""
    geometry: Literal["online", "workers", "offline"] = "online"
    """Computation of training geometry: `online` on the device, `workers` in processes, `offline` once, in files."""
    repeats: _Count | None = None
    """Augmentations of each example, which epochs cycle through. None: a new one in every epoch (`offline`: 8)."""
    epochs: _Count = 400
    """Passes over the training set."""
    batch_size: _Count = 128
    """Examples per step, over all devices."""
    optimiser: Literal["adam", "adamw"] = "adam"
    """`adam`, or `adamw` with weight decay decoupled from the gradient."""
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-3
    """Full learning rate."""
    epsilon: _NotNegative = 1e-7
    """Adam's epsilon."""
    l2: _NotNegative = 0.0
    """Coefficient of l2 * sum(w^2) in the loss, over the weights of dense layers and convolutions."""
    weight_decay: _NotNegative = 0.0
    """Weight decay of AdamW, over the same weights."""
    smoothing: _Share = 0.0
    """Label smoothing."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Maximum norm of the gradient; longer gradients are clipped to it."""
    schedule: Literal["plateau", "cosine"] = "plateau"
    """`plateau`, the paper's rule on training accuracy, or `cosine`."""
    factor: Annotated[float, Field(gt=0, le=1)] = 0.2
    """For `plateau`: factor by which the rate is multiplied."""
    patience: Annotated[int, Field(ge=0)] = 20
    """For `plateau`: epochs without a rise before the rate is multiplied."""
    warm_up: _NotNegative = 0.0
    """For `cosine`: epochs of linear warm-up."""
    floor: _Share = 0.0
    """For `cosine`: final rate, as a fraction of the full one."""
    norm_momentum: Annotated[float, Field(gt=0, le=1)] | None = None
    """Weight of the statistics of a batch in the running statistics at each step; None: that of the network."""
    average: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Decay of a moving average of the weights, which is evaluated and saved; None: no average."""
    precision: Literal["32", "bf16"] = "32"
    """`32`, or `bf16` by autocast (GPU only)."""
    capture: bool | None = None
    """Capture each step as a CUDA graph. None: capture if there is a GPU, one process and no edges of events."""
    votes: _Count = 1
    """Views of each example whose probabilities an evaluation averages; 1 is the example without augmentation."""
    validate_every: _Count = 10
    """Epochs between evaluations of the validation part."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] = 0
    """Seed of initialisation, order, augmentation and dropout."""

    def __init__(self, model: Any = None, /, **values: Any) -> None:
        values = values if model is None else {"model": model, **values}
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(" ".join(_messages(error, values))) from None
        check_names(self.data_options.get("names"), "recipe: data_options: names")
        if self.frozen and self.start is None:
            raise ValueError("recipe: frozen needs weights to start from. Add start: NAME.")
        if self.task_name in TASKS:
            task = find(self.task_name)
            if self.data not in task.data:
                choices = task.data if self.task else data_names()
                raise ValueError(f"recipe: data must be one of {', '.join(choices)}, not {self.data!r}.")
            task.check_recipe(self)

    @property
    def task_name(self) -> str:
        """The name of the task: `task` of the recipe, else that of its data and network."""
        return task_name(self.model, self.data, self.task)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """A recipe from the contents of a YAML or JSON file."""
        values = dict(values)
        model, start = values.get("model") or {}, values.get("start")
        if isinstance(model, dict) and "model" not in model and not isinstance(start, int | float | list | dict):
            if not start:
                remedy = "Give a network, model: {model: point_resnet_large}, or weights, start: NAME."
                raise ValueError(f"recipe: model is missing. {remedy}")
            from gridless.weights import read_about

            values["model"] = {**read_about(start)[1]["model"], **model}
        # YAML reads 32 without quotation marks as a number.
        if values.get("precision") == 32:
            values["precision"] = "32"
        if isinstance(values.get("frozen"), str):
            values["frozen"] = [values["frozen"]]
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, from which `from_dict` makes the same recipe."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        augment = dataclasses.asdict(self.augment)
        augment["scale"] = list(augment["scale"])
        values["augment"] = {k: v for k, v in augment.items() if v != math.inf}
        return copy.deepcopy(values)

    def changed(self, **changes: Any) -> Recipe:
        """The same recipe with other values; `augment__shift=0.1` and `model__width=64` reach inside."""
        return Recipe.from_dict(change(self.to_dict(), changes))

    def fitted(self, **facts: Any) -> Recipe:
        """The same recipe with values that a task derived from the data, without validation."""
        return self.model_copy(update=facts)

    # Components of a run.

    def make_model(self) -> nn.Module:
        """The network, initialised from the seed."""
        from gridless.models import build
        from gridless.nn.norm import BatchNorm
        from gridless.weights import begin_with

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = build(self.model)
        if self.norm_momentum is not None:
            for module in model.modules():
                if isinstance(module, BatchNorm):
                    module.momentum = self.norm_momentum
        taken = [] if self.start is None else begin_with(model, self.start)
        parts = dict(model.named_children())
        for name in self.frozen:
            if name not in parts:
                raise ValueError(f"recipe: frozen: the network has no part {name!r}. Choose from {', '.join(parts)}.")
            for tensor in parts[name].state_dict():
                if f"{name}.{tensor}" not in taken:
                    missing = f"the weights {self.start!r} have no {name}.{tensor} of this shape"
                    raise ValueError(f"recipe: frozen: {missing}. Leave {name} out, or start from other weights.")
            parts[name].requires_grad_(False)
        return model

    def make_schedule(self) -> Cosine | Plateau:
        if self.schedule == "cosine":
            return Cosine(self.learning_rate, self.epochs, self.warm_up, self.floor)
        return Plateau(self.learning_rate, self.factor, self.patience)

    def make_optimiser(self, model: nn.Module) -> torch.optim.Optimizer:
        """Adam with two parameter groups: weights with decay, and biases, norms and rates without."""
        weights, others = [], []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            # Biases and norms are vectors; the weights of dense layers and convolutions have more dimensions.
            decays = parameter.ndim > 1 and not name.endswith("log_rate")
            (weights if decays else others).append(parameter)
        device = next(model.parameters()).device
        on_gpu = device.type == "cuda"
        # The gradient of l2 * sum(w^2) is 2 * l2 * w, which equals the weight decay of Adam.
        decay = 2 * self.l2 if self.optimiser == "adam" else self.weight_decay
        kind = torch.optim.Adam if self.optimiser == "adam" else torch.optim.AdamW
        return kind(
            [{"params": weights, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}],
            lr=torch.tensor(self.learning_rate, device=device) if on_gpu else self.learning_rate,
            betas=(0.9, 0.999),
            eps=self.epsilon,
            fused=True,
            capturable=on_gpu,
        )


# Fields whose value is a mapping.
_WITH_NAMES = ("augment", "data_options", "model")


def change(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe with some changed; `augment__shift` and `model__width` reach inside."""
    for name, value in changes.items():
        outer, _, inner = name.partition("__")
        if not inner:
            values[outer] = value
            continue
        if outer not in Recipe.model_fields:
            raise ValueError(_unknown("recipe", outer, Recipe))
        if outer not in _WITH_NAMES:
            raise ValueError(f"recipe: {outer} is one value and has no entry {inner!r}. Give {outer}=VALUE.")
        values[outer] = {**(values.get(outer) or {}), inner: value}
    return values


# Error type of pydantic -> description of a valid value.
_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list, [...]",
    "dict_type": "a mapping, {NAME: VALUE}",
    "is_instance_of": "a mapping, {NAME: VALUE}",
}


def _messages(error: ValidationError, values: Mapping[str, Any]) -> list[str]:
    """One message for each error of pydantic: `recipe: NAME must be ..., not VALUE`."""
    messages = list[str]()
    for entry in error.errors():
        outer, *inner = entry["loc"]
        kind, names = (_Augment, inner) if outer == "augment" and inner else (Recipe, [outer, *inner])
        problem = entry.get("ctx", {}).get("error")
        if problem is not None:
            messages.append(str(problem))
        elif entry["type"] == "extra_forbidden":
            messages.append(_unknown("recipe: augment" if kind is _Augment else "recipe", str(names[0]), kind))
        elif kind is _Augment and names[0] == "scale":
            scale = values["augment"]["scale"]
            messages.append(f"recipe: augment.scale must be two numbers, such as [0.8, 1.25], not {scale!r}.")
        else:
            must = _TYPES.get(entry["type"]) or _bounds(kind.model_fields[str(names[0])])
            messages.append(f"recipe: {'.'.join(map(str, entry['loc']))} must be {must}, not {entry['input']!r}.")
    return list(dict.fromkeys(messages))


def _unknown(where: str, name: str, kind: Any) -> str:
    return f"{where}: unknown entry {name!r}. Choose from {', '.join(kind.model_fields)}."


def _bounds(field: Any) -> str:
    """The valid values of a field in words: its choices or its bounds."""
    kinds = [field.annotation, *get_args(field.annotation)]
    choices = [choice for kind in kinds if getattr(kind, "__origin__", None) is Literal for choice in get_args(kind)]
    if choices:
        return f"one of {', '.join(map(str, choices))}"
    metadata = [*field.metadata, *(entry for kind in kinds for entry in getattr(kind, "__metadata__", ()))]
    metadata = [inner for entry in metadata for inner in (getattr(entry, "metadata", None) or [entry])]
    names = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    bounds = {name: getattr(entry, name) for entry in metadata for name in names if hasattr(entry, name)}
    if set(bounds) == {"ge", "le"}:
        return f"from {bounds['ge']} to {bounds['le']}"
    return " and ".join(f"{names[name]} {bound}" for name, bound in bounds.items())


def available() -> dict[str, Path]:
    """Name -> path of all shipped recipes; names include the subfolder, such as `paper/n-mnist`."""
    paths = [(folder, path) for folder in FOLDERS if folder.is_dir() for path in sorted(folder.rglob("*.yaml"))]
    return {path.relative_to(folder).with_suffix("").as_posix(): path for folder, path in paths}


def load_recipe(name: str | Path, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Load a shipped recipe by name, or a YAML file by path, with the `changes` of `Recipe.changed`."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        known = available()
        if str(name) not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"unknown recipe {str(name)!r}. Choose from {names}, or give a YAML file.")
        path = known[str(name)]
    if not path.is_file():
        raise FileNotFoundError(f"recipe: there is no file {path}. Check the path.")
    values = read_yaml(path.read_bytes(), str(path))
    if not isinstance(values, dict):
        raise ValueError(f"{path}: not a mapping of names to values. Write one NAME: VALUE per line.")
    return Recipe.from_dict(change(values, changes or {}))


class _Plain(yaml.SafeLoader):
    """YAML loader that rejects aliases, which can expand to exhaust memory, and duplicate names.

    It reads 1e-3 as a number; YAML 1.1 reads it as a string.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(
                f"aliases, such as *{self.peek_event().anchor}, are not supported. Write the value out."
            )
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        names = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in names:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"{key.value!r} is repeated in line {line}. Keep one entry.")
            names.add(key.value if isinstance(key.value, str) else id(key))
        return node


_Plain.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(text: str | bytes, what: str) -> Any:
    try:
        return yaml.load(text, _Plain)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{what}: invalid YAML: {error}") from None
