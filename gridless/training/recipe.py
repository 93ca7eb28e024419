"""Recipes: everything that decides a training run, as a YAML file that is read into a documented dataclass."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from gridless.augment.policy import Policy
from gridless.data.folder import check_names
from gridless.training.examples import CLOUDS, FOLDER, RECORDINGS, Clouds, Recordings, prepared_sensor, transform_of
from gridless.training.schedule import Cosine, Plateau

# Beside the package in a checkout, inside it once installed.
FOLDERS = (Path(__file__).parents[2] / "recipes", Path(__file__).parents[1] / "recipes")


GEOMETRY = ("online", "workers", "offline")
DATA = (*CLOUDS, *RECORDINGS, FOLDER)


@dataclass(frozen=True)
class Recipe:
    """One training run. Every field can be changed on the command line: `--set epochs=10 --set augment.shift=0.1`."""

    model: dict[str, Any]
    """What `gridless.models.build` takes: the model's name, and its arguments. Without a name: that of `start`."""
    start: str | None = None
    """Weights to begin with, by name or path: every tensor that fits by name and shape; None: from the seed."""
    frozen: list[str] = field(default_factory=list)
    """Parts of the network, such as [downs, blocks], that stay as they begin, their normalisation included."""
    data: str = "modelnet40"
    """The data set: modelnet40, semantickitti, shapenetpart, shapes; n_mnist, mnist_dvs, cifar10_dvs, n_caltech101,
    asl_dvs, n_cars, glyphs; or folder: your own files, of the kind that the network takes."""
    data_options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the data set, such as `scale: 4` of MNIST-DVS, `size: 1200` of one that is generated, or
    `up: z` of a folder (`gl.data.CloudFolder`)."""
    points: int = 1024
    """Points per cloud: the first so many."""
    augment: Policy = field(default_factory=Policy)
    """What is done to each training cloud."""
    transforms: list[Any] | None = None
    """What is done to each training recording, such as [ReverseTime, {Zoom: [0.8, 1.2]}]; None: as the data set's."""
    prepare: list[Any] = field(default_factory=list)
    """What is done to every recording before the data set's own preparation, in training and afterwards, such as
    [{PoolPixels: 2}]."""
    geometry: str = "online"
    """Where geometry for training is made: `online`, on the device; `workers`, in processes; `offline`, in files."""
    repeats: int = 8
    """Of `offline`: epochs whose augmentations are kept; later epochs take them in turn."""
    epochs: int = 400
    """Passes over the training set."""
    batch_size: int = 128
    """Examples per step, over all devices."""
    optimiser: str = "adam"
    """`adam`, or `adamw` whose weight decay is apart from the gradient."""
    learning_rate: float = 1e-3
    """The full rate."""
    epsilon: float = 1e-7
    """Adam's epsilon."""
    l2: float = 0.0
    """l2 * sum(w^2) is added to the loss, over the weights of dense layers and convolutions."""
    weight_decay: float = 0.0
    """AdamW's, over the same weights."""
    smoothing: float = 0.0
    """Label smoothing."""
    clip: float | None = None
    """Longest gradient; longer ones are shortened to it."""
    schedule: str = "plateau"
    """`plateau`, the paper's rule on training accuracy, or `cosine`."""
    factor: float = 0.2
    """Of `plateau`: what the rate is multiplied by."""
    patience: int = 20
    """Of `plateau`: epochs without a rise."""
    warm_up: float = 0.0
    """Of `cosine`: epochs of linear rise."""
    floor: float = 0.0
    """Of `cosine`: the last rate, as a part of the full one."""
    norm_momentum: float | None = None
    """How much of a batch's statistics the running ones take on at each step; None: as the network has it."""
    average: float | None = None
    """Keep a moving average of the weights, with this much of it kept at each step, and ship that."""
    precision: str = "32"
    """`32`, or on a GPU `bf16` by autocast."""
    capture: bool | None = None
    """Capture each step as a graph on the GPU; None does where there is a GPU, one process and no edges of events."""
    votes: int = 1
    """Views of each example whose probabilities are averaged in an evaluation: 1 is the example as it is."""
    validate_every: int = 10
    """Epochs between evaluations of the validation part."""
    seed: int = 0
    """Of initialisation, order, augmentation and dropout."""

    def __post_init__(self) -> None:
        _one_of("data", self.data, DATA)
        _one_of("geometry", self.geometry, GEOMETRY)
        _one_of("optimiser", self.optimiser, ("adam", "adamw"))
        _one_of("schedule", self.schedule, ("plateau", "cosine"))
        _one_of("precision", self.precision, ("32", "bf16"))
        for entry in dataclasses.fields(self):
            _check_kind(entry.name, str(entry.type), getattr(self, entry.name))
        for name, (range_, fits) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not fits(value):
                raise ValueError(f"recipe: {name} must be {range_}, not {value}")
        if self.of_points and self.votes > 1:
            raise ValueError(f"recipe: votes are for classes, and of {self.data} the parts of points are learned")
        if self.recordings and self.augment != Policy():
            raise ValueError("recipe: augment is for clouds; what is done to recordings is said by transforms")
        for name in ("transforms", "prepare"):
            if getattr(self, name) and not self.recordings:
                raise ValueError(f"recipe: {name} is for recordings; what is done to clouds is said by augment")
        check_names(self.data_options.get("names"), "recipe: data_options: names")
        for entry in [*(self.transforms or ()), *self.prepare]:
            transform_of(entry)
        if self.frozen and self.start is None:
            raise ValueError("recipe: frozen parts would keep random weights: say which to begin with, start: NAME")

    @property
    def recordings(self) -> bool:
        """Whether it is about recordings; a folder's are, where the network is for events."""
        from gridless.models import NETWORKS

        events = getattr(NETWORKS.get(self.model.get("model", "")), "__module__", "").endswith("events")
        return self.data in RECORDINGS or (self.data == FOLDER and events)

    @property
    def of_points(self) -> bool:
        """Whether what is learned is the label of every point."""
        labelling = str(self.model.get("model")).lower().replace("_", "").startswith("pointunet")
        return self.data in ("semantickitti", "shapenetpart") or (self.data == FOLDER and labelling)

    def fitted(self, data: Clouds | Recordings) -> Recipe:
        """The recipe; of a folder, with a network for as many classes and features, their scales and the sensor."""
        if self.data != FOLDER:
            return self
        if isinstance(data, Recordings):
            recorded = data.events.sensor
            seen = prepared_sensor(self, recorded)
            given = {"sensor": list(seen), **self.model, "classes": len(data.class_names)}
            if tuple(given["sensor"]) != seen:
                of = "{0} x {1}".format
                words = f"{of(*seen)} pixels once they are prepared, and the network is for {of(*given['sensor'])}"
                raise ValueError(f"recipe: model.sensor: recordings of {of(*recorded)} have {words}: leave it out")
            options = self.data_options if seen == recorded else {**self.data_options, "sensor": list(recorded)}
            return dataclasses.replace(self, model=given, data_options=options)
        channels = sum(data.rows[name].shape[2] for name in data.features)
        seen = {"in_channels": channels} if channels or "in_channels" in self.model else {}
        whole = self.model.get("model") in ("PointUNetPlus", "point_unet_plus")
        kinds = {"parts": [len(data.parts)]} if whole else {"classes": len(data.parts or data.class_names)}
        options = self.data_options | ({"scales": dict(data.scales)} if data.scales else {})
        return dataclasses.replace(self, model={**self.model, **kinds, **seen}, data_options=options)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        values = dict(values)
        _known(values, cls, "recipe")
        _check_kind("model", "dict | None", values.get("model"))
        _check_kind("start", "str | None", values.get("start"))
        if "model" not in (values.get("model") or {}):
            if not values.get("start"):
                words = "give at least its name, model: {model: point_resnet_large}, or weights to begin with, start:"
                raise ValueError(f"recipe: `model` is missing: {words}")
            from gridless.weights import read_about

            values["model"] = {**read_about(values["start"])[1]["model"], **(values.get("model") or {})}
        # As YAML reads what is written without quotation marks.
        if values.get("precision") == 32:
            values["precision"] = "32"
        if isinstance(values.get("frozen"), str):
            values["frozen"] = [values["frozen"]]
        _check_kind("augment", "dict | None", values.get("augment"))
        augment = dict(values.pop("augment", None) or {})
        _known(augment, Policy, "recipe: augment")
        for entry in dataclasses.fields(Policy):
            if entry.name in augment and entry.name != "scale":
                _check_kind(f"augment.{entry.name}", str(entry.type), augment[entry.name])
        if "scale" in augment:
            given = augment["scale"]
            if not isinstance(given, (list, tuple)) or [type(v) in (int, float) for v in given] != [True, True]:
                raise ValueError(f"recipe: augment.scale must be two numbers, such as [0.8, 1.25], not {given!r}")
            augment["scale"] = tuple(float(v) for v in given)
        return cls(augment=Policy(**augment), **values)

    def to_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        values["augment"]["scale"] = list(values["augment"]["scale"])
        values["augment"] = {k: v for k, v in values["augment"].items() if v != math.inf}
        return values

    def changed(self, **changes: Any) -> Recipe:
        """The same recipe with other values; `augment__shift=0.1` and `model__width=64` reach inside."""
        values = self.to_dict()
        for name, value in changes.items():
            outer, _, inner = name.partition("__")
            if inner:
                _known({outer: value}, Recipe, "recipe")
                if not isinstance(values[outer], dict):
                    raise ValueError(f"recipe: {outer} is one value, without {inner!r} in it: give {outer}=VALUE")
                values[outer] = {**values[outer], inner: value}
            else:
                values[outer] = value
        return Recipe.from_dict(values)

    # What a run is made of.

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
                raise ValueError(f"recipe: frozen: the network has no part {name!r}: there are {', '.join(parts)}")
            for tensor in parts[name].state_dict():
                if f"{name}.{tensor}" not in taken:
                    raise ValueError(f"recipe: frozen: the weights {self.start!r} have no {name}.{tensor} that fits")
            parts[name].requires_grad_(False)
        return model

    def make_schedule(self) -> Cosine | Plateau:
        if self.schedule == "cosine":
            return Cosine(self.learning_rate, self.epochs, self.warm_up, self.floor)
        return Plateau(self.learning_rate, self.factor, self.patience)

    def make_optimiser(self, model: nn.Module) -> torch.optim.Optimizer:
        """Adam over two groups: weights, which are kept small, and biases, norms and rates."""
        weights, others = [], []
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            # Biases and norms are vectors; the weights of dense layers and convolutions have more dimensions.
            decays = parameter.ndim > 1 and not name.endswith("log_rate")
            (weights if decays else others).append(parameter)
        device = next(model.parameters()).device
        on_gpu = device.type == "cuda"
        # The gradient of l2 * sum(w^2) is 2 * l2 * w, which is what Adam's own weight decay adds.
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


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "text"),
    "list": ((list, tuple), "a list, [...]"),
    "dict": ((dict,), "a mapping, {NAME: VALUE}"),
}
_RANGES: dict[str, tuple[str, Callable[[float], bool]]] = {
    "clip": ("above 0", lambda value: value > 0),
    "average": ("above 0 and below 1", lambda value: 0 < value < 1),
    "norm_momentum": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "epsilon": ("at least 0", lambda value: 0 <= value < math.inf),
    "l2": ("at least 0", lambda value: 0 <= value < math.inf),
    "weight_decay": ("at least 0", lambda value: 0 <= value < math.inf),
    "smoothing": ("from 0 to 1", lambda value: 0 <= value <= 1),
    "patience": ("at least 0", lambda value: value >= 0),
    "seed": ("from -2^63 to 2^64 - 1", lambda value: -(2**63) <= value < 2**64),
    "factor": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "warm_up": ("at least 0", lambda value: 0 <= value < math.inf),
    "floor": ("from 0 to 1", lambda value: 0 <= value <= 1),
    "learning_rate": ("positive", lambda value: 0 < value < math.inf),
    **dict.fromkeys(
        ("points", "repeats", "epochs", "batch_size", "votes", "validate_every"),
        ("at least 1", lambda value: value >= 1),
    ),
}


def _check_kind(name: str, kind: str, value: Any) -> None:
    """Refuse a value that is not of a field's type."""
    types, words = _KINDS.get(kind.partition(" ")[0].partition("[")[0], ((type(value),), ""))
    if type(value) not in types and not (value is None and "None" in kind):
        raise ValueError(f"recipe: {name} must be {words}, not {value!r}")


def _one_of(name: str, value: Any, allowed: tuple) -> None:
    if value not in allowed:
        raise ValueError(f"recipe: {name} must be one of {', '.join(allowed)}, not {value!r}")


def _known(values: dict[str, Any], cls: type, what: str) -> None:
    names = [f.name for f in dataclasses.fields(cls)]
    for name in values:
        if name not in names:
            raise ValueError(f"{what}: unknown entry {name!r}: there are {', '.join(names)}")


def available() -> dict[str, Path]:
    """Recipes by name; those of a subfolder by its name too, such as `paper/n-mnist`."""
    paths = [(folder, path) for folder in FOLDERS if folder.is_dir() for path in sorted(folder.rglob("*.yaml"))]
    return {path.relative_to(folder).with_suffix("").as_posix(): path for folder, path in paths}


def load_recipe(name: str | Path) -> Recipe:
    """A recipe by the name of a shipped one, or by the path of a YAML file."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        known = available()
        if str(name) not in known:
            raise ValueError(
                f"unknown recipe {str(name)!r}: there are {', '.join(known) or 'none'}, or give a YAML file"
            )
        path = known[str(name)]
    if not path.is_file():
        raise FileNotFoundError(f"no recipe at {path}")
    values = read_yaml(path.read_bytes(), str(path))
    if not isinstance(values, dict):
        raise ValueError(f"{path} must be a mapping of names to values")
    return Recipe.from_dict(values)


class _Plain(yaml.SafeLoader):
    """YAML without aliases, a few lines of which stand for more values than any memory holds, and with each name once.
    1e-3 is a number, which YAML 1.1 takes for a word."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"an alias, *{self.peek_event().anchor}: write the value out")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        names = set()
        for key, _ in node.value:
            if isinstance(key.value, str) and key.value in names:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"{key.value!r} is there twice, the second time in line {line}: keep one of them")
            names.add(key.value if isinstance(key.value, str) else id(key))
        return node


_Plain.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(text: str | bytes, what: str) -> Any:
    try:
        return yaml.load(text, _Plain)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not YAML that can be used here: {error}") from None
