"""Weights: a safetensors file, and a JSON file of the same name with the config of the network.

Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from gridless.backends import existing
from gridless.data.files import whole_file
from gridless.tasks.registry import TASKS, find, task_name

# Weights that come with the package.
SHIPPED = Path(__file__).parent / "pretrained"


def save(
    model: nn.Module, path: str | Path, bits: int = 32, arguments: dict[str, Any] | None = None, **about: Any
) -> Path:
    """Write `path`.safetensors and `path`.json; return the path of the first.

    It first builds the network from the JSON data, and writes nothing if the files could not be loaded.

    Args:
        model: the network.
        path: path of the files; the suffix is optional.
        bits: 16 stores the weights of dense layers and convolutions as float16, half the size; loading makes them
            float32 again.
        arguments: for a network of your own class: plain values, the arguments of its constructor in
            `gl.load(path, model=Class)`. Networks of `gridless.models` record theirs.
        about: metadata for the JSON file, such as class_names, recipe and results. `task` is the name of its task
            (`gridless.tasks`), if it is not the task of its class.
    """
    from safetensors.torch import save as serialise

    from gridless.models.networks import task_of

    if not isinstance(model, nn.Module):
        remedy = "Call gl.save(model, path)."
        raise TypeError(f"save: the first argument is a {type(model).__name__}, not a network. {remedy}")
    if bits not in (16, 32):
        raise ValueError(f"save: bits is {bits}. Give 16 or 32.")
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    path, config = _stem(path), _config(model, arguments)
    task_id = about.pop("task", None) or task_of(config)
    task: Any = find(task_id) if task_id in TASKS else None
    classes = config.get("arguments", config).get("classes") if task is None else task.classes(config)
    if (names := about.get("class_names")) is not None:
        if isinstance(names, str):
            raise TypeError(f"save: class_names is one name, {names!r}. Give a list, [{names!r}, ...].")
        names = about["class_names"] = [str(name) for name in names]
        if isinstance(classes, int) and len(names) > classes:
            problem = f"class_names has {len(names)} names, but the network has {classes} classes"
            raise ValueError(f"save: {problem}. Give one for each.")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    if bits == 16:
        tensors = {name: _halved(name, tensor) for name, tensor in tensors.items()}
    about = {"model": config, **({"task": task_id} if task_id else {}), **about}
    text = json.dumps(about, indent=2)
    weights, description = (path.with_name(path.name + suffix) for suffix in (".safetensors", ".json"))
    # Both files appear only after both are complete.
    with whole_file(weights) as first, whole_file(description) as second:
        first.write(serialise(tensors))
        second.write(f"{text}\n".encode())
    return weights


def load(
    name: str | Path,
    device: torch.device | str = "cpu",
    classes: int | Sequence[str] | None = None,
    model: Callable[..., nn.Module] | None = None,
) -> Any:
    """Load a network in evaluation mode, by the name of shipped weights or by path.

    `model.about` has the metadata saved with it: class_names, recipe, results.

    Args:
        name: the name of shipped weights, or the path of a .safetensors file.
        device: the device of the network.
        classes: for fine-tuning: the number of your own classes, or their names. Layers whose size depends on the
            number of classes are initialised at random, all others from the file.
        model: for a network of your own class: that class. `load` never imports anything that a file names.
    """
    path, about = read_about(name)
    device = existing(device)
    tensors = _tensors(path)
    # Keep the random state of the caller.
    with torch.random.fork_rng(devices=[]):
        own = model is not None or "arguments" in about["model"]
        network = _make(about["model"], model, name) if own else _make_within(about["model"], tensors, str(path))
    check_fit(network, tensors, str(path))
    if classes is None:
        network.load_state_dict(tensors)
    else:
        count, names = _classes(classes)
        config, other = (_with_classes(about, n, name) for n in (count, count + 1))
        network = _make(config, model, name)
        with torch.random.fork_rng(devices=[]):
            sizes = {key: tensor.shape for key, tensor in _make(other, model, name).state_dict().items()}
        head = [key for key, tensor in network.state_dict().items() if tensor.shape != sizes[key]]
        _fill(network, tensors, name, head)
        task = {"task": about["task"]} if "task" in about else {}
        about = {"model": config, **task, "recipe": {**about.get("recipe", {}), "model": config}, "start": str(name)}
        about |= {"class_names": names} if names else {}
    network.about = about  # type: ignore[assignment]
    if not hasattr(network, "config"):
        network.config = about["model"]
    return network.to(device).eval()


def class_names(model: Any, classes: int) -> list[str]:
    """The class names saved with a network; classes without a name get their number."""
    names = list(getattr(model, "about", {}).get("class_names") or [])
    return names + [str(k) for k in range(len(names), classes)]


def _classes(classes: Any) -> tuple[int, list[str]]:
    """The number of classes, and their names, empty if only a number is given."""
    if isinstance(classes, str):
        raise TypeError(f"load: classes is one name, {classes!r}. Give a list, [{classes!r}, ...], or a number.")
    names: list[Any] = list(classes) if isinstance(classes, Iterable) else []
    number = isinstance(classes, int) and not isinstance(classes, bool)
    if not (number or isinstance(classes, Iterable)) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"load: classes is {classes!r}. Give a number, or a list of names.")
    count = classes if isinstance(classes, int) else len(names)
    if count < 1:
        raise ValueError(f"load: classes is {count}. Give at least 1.")
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"load: classes has {name!r} twice. Give each class its own name.")
    return count, names


def _config(model: nn.Module, arguments: dict[str, Any] | None) -> dict[str, Any]:
    """The config of a network; an error if it does not build the same network."""
    from gridless.models.networks import NETWORKS

    kind = type(model)
    own = NETWORKS.get(kind.__name__) is not kind
    saved: Any = getattr(model, "config", {})
    if not own:
        config, remedy = saved, "For other classes use gl.load(NAME, classes=N)."
    else:
        name = f"{kind.__module__}:{kind.__name__}"
        if arguments is None and isinstance(saved, dict) and saved.get("model") == name:
            arguments = saved["arguments"]
        config = {"model": name, "arguments": arguments or {}}
        remedy = "Give the arguments of its constructor: gl.save(model, path, arguments={...})."
    try:
        plain = json.loads(json.dumps(config))
        # Keep the random state of the caller.
        with torch.random.fork_rng(devices=[]):
            again = _make(plain, kind if own else None, kind.__name__)
    except Exception as error:
        raise TypeError(f"save: {kind.__name__} cannot be rebuilt: {error}. {remedy}") from None
    difference = _misfit(again, model.state_dict())
    plans = [getattr(network, "plan", None) for network in (model, again)]
    # Compare `text`, which has all digits: a printed plan rounds.
    if difference is None and len({getattr(plan, "text", str(plan)) for plan in plans}) > 1:
        difference = "its plan differs"
    if difference is not None:
        raise ValueError(f"save: the config makes another {kind.__name__}: {difference}. {remedy}")
    return config


def _make(config: dict[str, Any], model: Callable[..., nn.Module] | None, name: str | Path) -> nn.Module:
    """Build the network of a config, from `gridless.models` or from the user's class `model`."""
    from gridless.models import build

    own = "arguments" in config
    if model is not None:
        return model(**config["arguments"] if own else {k: v for k, v in config.items() if k != "model"})
    if own:
        raise ValueError(f"{name} has the class {config['model']}, which gridless does not have. Pass model=...")
    return build(config)


def _make_within(config: dict[str, Any], tensors: dict[str, torch.Tensor], path: str) -> nn.Module:
    """Build the network of a config. One much larger than its file is rejected before it takes time or memory.

    Networks of the user's own classes are not checked, because they may have parameters that they do not save.
    """
    numbers = sum(tensor.numel() for tensor in tensors.values())
    try:
        with _Bound(numbers, path) as bound:
            hook = register_module_parameter_registration_hook(bound.count)
            try:
                return _make(config, None, path)
            finally:
                hook.remove()
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"{path}: its config makes no network. {error}") from None


class _Bound(TorchFunctionMode):
    """Context that rejects tensors, or a sum of parameters, far larger than the file. It watches this thread only.

    A slightly larger network is built; `check_fit` then names the first tensor that does not fit.
    """

    def __init__(self, numbers: int, path: str) -> None:
        super().__init__()
        self.numbers, self.path, self.thread = numbers, path, threading.get_ident()
        self.sizes: dict[tuple[int, str], int] = {}

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function in (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn):
            sizes = args[0] if args and isinstance(args[0], Sequence) else args
            if all(isinstance(size, int) for size in sizes):
                self.check(math.prod(sizes))
        return function(*args, **kwargs or {})

    def count(self, module: nn.Module, name: str, parameter: torch.Tensor | None) -> None:
        """Count a parameter that a module registers."""
        if parameter is not None and threading.get_ident() == self.thread:
            self.sizes[id(module), name] = parameter.numel()
            self.check(sum(self.sizes.values()))

    def check(self, numbers: int) -> None:
        if numbers > 2 * self.numbers + 2**20:
            problem = f"it has {self.numbers} numbers, far fewer than its config needs"
            raise ValueError(f"{self.path}: weights of another network. {problem}")


def _with_classes(about: dict[str, Any], count: int, name: str | Path) -> dict[str, Any]:
    """The config of the same network for `count` classes, made by its task."""
    config = about["model"]
    if "arguments" in config:
        return {**config, "arguments": {**config["arguments"], "classes": count}}
    task = task_name(config, task=about.get("task"))
    other = find(task if task in TASKS else task_name(config)).with_classes(config, count)
    if other is None:
        raise ValueError(f"{name}: {config['model']} has no number of classes. Leave classes out.")
    return other


def available() -> list[str]:
    """Names of the weights that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.safetensors"))


def read_about(name: str | Path) -> tuple[Path, dict[str, Any]]:
    """The path of the weights, and the contents of the JSON file beside them."""
    path = _stem(name)
    if len(Path(name).parts) == 1 and not path.with_name(path.name + ".safetensors").is_file():
        if str(name) not in available():
            shipped = ", ".join(available()) or "none in this installation"
            raise ValueError(
                f"unknown weights {str(name)!r}. Choose from {shipped}, or give the path of a .safetensors file."
            )
        path = SHIPPED / str(name)
    weights, description = (path.with_name(path.name + suffix) for suffix in (".safetensors", ".json"))
    for file in (weights, description):
        if not file.is_file():
            if (Path(name) / "weights.safetensors").is_file():
                raise FileNotFoundError(f"{name} is the folder of a run. Give its weights, {Path(name) / 'weights'}.")
            raise FileNotFoundError(
                f"{file} is missing. Weights need a .safetensors and a .json file of the same name."
            )
    try:
        about = json.loads(description.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{description} is not JSON ({error}). Correct the file.") from None
    if not isinstance(about, dict) or not isinstance(about.get("model"), dict):
        raise ValueError(f"{description} does not name the model of the weights. Save them with gl.save.")
    about = {name: value for name, value in about.items() if value is not None}
    _check_about(about, description)
    return weights, about


# Entry of a JSON file -> its type, and the type of its contents.
_SHAPES: dict[str, tuple[type, type]] = {
    "class_names": (list, str), "parts": (list, str), "values": (list, int), "recipe": (dict, object),
    "results": (dict, object), "split": (str, object), "task": (str, object), "start": (str, object),
}  # fmt: skip
_TYPES = {list: "a list", dict: "a mapping", str: "text", int: "whole numbers"}


def _check_about(about: dict[str, Any], file: Path) -> None:
    """Reject a JSON file with an entry of a wrong type."""
    from gridless.models.networks import task_of

    if not isinstance(about["model"].get("model"), str):
        raise ValueError(f'{file}: `model` names no network. Add "model": NAME.')
    if not isinstance(about["model"].get("arguments", {}), dict):
        raise ValueError(f"{file}: `model.arguments` must be a mapping, not {about['model']['arguments']!r}")
    for name, (kind, content) in _SHAPES.items():
        value = about.get(name)
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{file}: `{name}` must be {_TYPES[kind]}, not {value!r}")
        wrong = [entry for entry in value or () if not isinstance(entry, content)] if kind is list else []
        if wrong:
            raise ValueError(f"{file}: `{name}` must hold {_TYPES[content]}, not {wrong[0]!r}")
    task, expected = about.get("task"), task_of(about["model"])
    if task in TASKS and expected is not None and task != expected:
        network = about["model"]["model"]
        raise ValueError(f"{file}: `task` is {task!r}, but {network} needs {expected!r}. Correct the file.")
    options = about.get("recipe", {}).get("data_options", {})
    if not isinstance(options, dict):
        raise ValueError(f"{file}: `recipe.data_options` must be a mapping, not {options!r}")


def restore(model: nn.Module, path: str | Path) -> None:
    """Fill a network from a safetensors file; for weights of another network the error names the first misfit."""
    tensors = _tensors(path)
    check_fit(model, tensors, str(path))
    model.load_state_dict(tensors)


def begin_with(model: nn.Module, name: str | Path) -> list[str]:
    """Fill all tensors that fit by name and shape from the weights of another network; returns their names."""
    return _fill(model, _tensors(read_about(name)[0]), name)


def _fill(
    model: nn.Module, tensors: dict[str, torch.Tensor], name: str | Path, without: Sequence[str] = ()
) -> list[str]:
    """Fill all tensors but `without` that fit by name and shape; returns their names."""
    wanted = {k: t for k, t in model.state_dict().items() if k not in without}
    fitting = {k: t for k, t in tensors.items() if k in wanted and _fits(t, wanted[k])}
    if not fitting:
        raise ValueError(
            f"no tensor of the weights {str(name)!r} fits {type(model).__name__} by name and shape. Give other weights."
        )
    model.load_state_dict(fitting, strict=False)
    return list(fitting)


def _tensors(path: str | Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read as safetensors ({error}). Download or save it again.") from None


def check_fit(model: nn.Module, tensors: dict[str, torch.Tensor], what: str) -> None:
    """Reject tensors of another network. The error names the first that is missing, of another shape, or unknown."""
    difference = _misfit(model, tensors)
    if difference is not None:
        raise ValueError(f"{what} is of another network: {difference}")


def _misfit(model: nn.Module, tensors: dict[str, torch.Tensor]) -> str | None:
    """The first tensor that is missing, of another shape, or unknown to the network, in words."""
    kind = type(model).__name__
    wanted = model.state_dict()
    for name, tensor in wanted.items():
        if name not in tensors:
            return f"the file lacks {name!r} of {kind}"
        saved = tensors[name]
        if not _fits(saved, tensor):
            here, there = (t.dtype if saved.shape == tensor.shape else tuple(t.shape) for t in (tensor, saved))
            return f"{name!r} of this {kind} is {here}, in the file {there}"
    return next((f"{kind} has no {name!r}" for name in tensors if name not in wanted), None)


def _fits(saved: torch.Tensor, wanted: torch.Tensor) -> bool:
    """True if shape and dtype agree; floating-point tensors of another precision fit, too."""
    same = saved.dtype == wanted.dtype or (saved.is_floating_point() and wanted.is_floating_point())
    return same and saved.shape == wanted.shape


def _halved(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Weights as float16. Biases and statistics stay float32: they are few, and their values may be large."""
    if tensor.ndim < 2 or not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    if not bool((half.isfinite() | ~tensor.isfinite()).all()):
        raise ValueError(f"save: {name} has values beyond 65504, too large for 16 bits. Save with 32.")
    return half


def _stem(path: str | Path) -> Path:
    """The path without the suffix of either file."""
    path = Path(path)
    return path.with_suffix("") if path.suffix in (".safetensors", ".json") else path
