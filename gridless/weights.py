"""Weights: one safetensors file, and beside it one JSON file that says which network they belong to.

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
from gridless.tasks import TASKS, find, task_name

# Weights that come with the package.
SHIPPED = Path(__file__).parent / "pretrained"


def save(
    model: nn.Module, path: str | Path, bits: int = 32, arguments: dict[str, Any] | None = None, **about: Any
) -> Path:
    """Write `path`.safetensors and `path`.json; `about` (class_names, recipe, results...) is kept in the JSON file.

    The JSON file also names the task (`gridless.tasks`): that of `about`, else what the network is for.

    A network of `gridless.models` knows what it was made with. Of a class of your own say it: `arguments`, plain values
    that its constructor is called with when it is loaded, `gl.load(path, model=Class)`. Whether that makes this network
    again is tried before anything is written.

    With `bits=16` the weights of dense layers and convolutions are stored as float16, half the size; loading makes them
    float32 again.
    """
    from safetensors.torch import save as serialise

    from gridless.models import task_of

    if not isinstance(model, nn.Module):
        words = f"give the network, then the path: gl.save(model, path), not {type(model).__name__} first"
        raise TypeError(f"save: {words}")
    if bits not in (16, 32):
        raise ValueError(f"save: weights are stored with 16 or 32 bits, not {bits}")
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    path, config = _stem(path), _config(model, arguments)
    task = about.pop("task", None) or task_of(config)
    known: Any = find(task) if task in TASKS else None
    classes = config.get("arguments", config).get("classes") if known is None else known.classes(config)
    if (names := about.get("class_names")) is not None:
        if isinstance(names, str):
            raise TypeError(f"save: class_names: one name, {names!r}: give a list, [{names!r}, ...]")
        names = about["class_names"] = [str(name) for name in names]
        if isinstance(classes, int) and len(names) > classes:
            words = f"{len(names)} class_names, and the network has {classes} classes: give one for each"
            raise ValueError(f"save: {words}")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    if bits == 16:
        tensors = {name: _halved(name, tensor) for name, tensor in tensors.items()}
    about = {"model": config, **({"task": task} if task else {}), **about}
    text = json.dumps(about, indent=2)
    weights, words = path.with_name(path.name + ".safetensors"), path.with_name(path.name + ".json")
    # Both are complete before either is seen.
    with whole_file(weights) as first, whole_file(words) as second:
        first.write(serialise(tensors))
        second.write(f"{text}\n".encode())
    return weights


def load(
    name: str | Path,
    device: torch.device | str = "cpu",
    classes: int | Sequence[str] | None = None,
    model: Callable[..., nn.Module] | None = None,
) -> Any:
    """The network, ready to evaluate, by the name of shipped weights or by path.

    `model.about` is what was saved with it: class_names, recipe, results.

    Args:
        name: of shipped weights, or the path of a .safetensors file.
        device: where the network goes.
        classes: how many classes of your own, or their names: the layers whose size depends on it begin anew, at
            random, all others as they were saved. For fine-tuning.
        model: for weights of a class of your own: that class. What a file says is never imported.
    """
    path, about = read_about(name)
    device = existing(device)
    tensors = _tensors(path)
    # The random state of the caller stays as it is.
    with torch.random.fork_rng(devices=[]):
        own = model is not None or "arguments" in about["model"]
        made = _make(about["model"], model, name) if own else _make_within(about["model"], tensors, str(path))
    check_fit(made, tensors, str(path))
    if classes is None:
        made.load_state_dict(tensors)
    else:
        count, names = _classes(classes)
        config, other = (_with_classes(about, n, name) for n in (count, count + 1))
        made = _make(config, model, name)
        with torch.random.fork_rng(devices=[]):
            sizes = {key: tensor.shape for key, tensor in _make(other, model, name).state_dict().items()}
        head = [key for key, tensor in made.state_dict().items() if tensor.shape != sizes[key]]
        _fill(made, tensors, name, head)
        task = {"task": about["task"]} if "task" in about else {}
        about = {"model": config, **task, "recipe": {**about.get("recipe", {}), "model": config}, "start": str(name)}
        about |= {"class_names": names} if names else {}
    made.about = about  # type: ignore[assignment]
    if not hasattr(made, "config"):
        made.config = about["model"]
    return made.to(device).eval()


def class_names(model: Any, classes: int) -> list[str]:
    """Those that were saved with a network; classes beyond them are called by their numbers."""
    names = list(getattr(model, "about", {}).get("class_names") or [])
    return names + [str(k) for k in range(len(names), classes)]


def _classes(classes: Any) -> tuple[int, list[str]]:
    """How many classes there are, and their names, if these were given."""
    if isinstance(classes, str):
        raise TypeError(f"load: classes: one name, {classes!r}: give a list, [{classes!r}, ...], or how many there are")
    names: list[Any] = list(classes) if isinstance(classes, Iterable) else []
    number = isinstance(classes, int) and not isinstance(classes, bool)
    if not (number or isinstance(classes, Iterable)) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"load: classes: give how many there are, or a list of their names, not {classes!r}")
    count = classes if isinstance(classes, int) else len(names)
    if count < 1:
        raise ValueError(f"load: classes: there must be at least 1, not {count}")
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"load: classes: {name!r} is there twice: give each a name of its own")
    return count, names


def _config(model: nn.Module, arguments: dict[str, Any] | None) -> dict[str, Any]:
    """What makes this network again, which is tried."""
    from gridless.models import NETWORKS

    kind = type(model)
    own = NETWORKS.get(kind.__name__) is not kind
    known: Any = getattr(model, "config", {})
    if not own:
        config, remedy = known, "for other classes use gl.load(NAME, classes=N)"
    else:
        name = f"{kind.__module__}:{kind.__name__}"
        if arguments is None and isinstance(known, dict) and known.get("model") == name:
            arguments = known["arguments"]
        config = {"model": name, "arguments": arguments or {}}
        remedy = "give what its constructor was called with, gl.save(model, path, arguments={...})"
    try:
        plain = json.loads(json.dumps(config))
        # The random state of the caller stays as it is.
        with torch.random.fork_rng(devices=[]):
            again = _make(plain, kind if own else None, kind.__name__)
    except Exception as error:
        raise TypeError(f"save: {kind.__name__} cannot be made again: {error}: {remedy}") from None
    words = _misfit(again, model.state_dict())
    plans = [getattr(network, "plan", None) for network in (model, again)]
    # A plan prints rounded numbers; its text has all digits.
    if words is None and len({getattr(plan, "text", str(plan)) for plan in plans}) > 1:
        words = "its plan is another"
    if words is not None:
        raise ValueError(f"save: what makes a {kind.__name__} again makes another network: {words}: {remedy}")
    return config


def _make(config: dict[str, Any], model: Callable[..., nn.Module] | None, name: str | Path) -> nn.Module:
    """The network of a config, by `gridless.models` or by a class of the user's."""
    from gridless.models import build

    own = "arguments" in config
    if model is not None:
        return model(**config["arguments"] if own else {k: v for k, v in config.items() if k != "model"})
    if own:
        raise ValueError(f"{name} is of the class {config['model']}, which gridless does not have: pass it, model=...")
    return build(config)


def _make_within(config: dict[str, Any], tensors: dict[str, torch.Tensor], path: str) -> nn.Module:
    """The network of a config, refused as soon as it is larger than the file, so that it takes neither time nor memory.

    A class of the user's is not looked at: its constructor may have parameters that it does not save.
    """
    numbers = sum(tensor.numel() for tensor in tensors.values())
    try:
        with _Bound(numbers, path) as room:
            hook = register_module_parameter_registration_hook(room.count)
            try:
                return _make(config, None, path)
            finally:
                hook.remove()
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"{path}: the config beside it makes no network: {error}") from None


class _Bound(TorchFunctionMode):
    """A block in which this thread makes no tensor, and no parameters together, of far more numbers than a file has.

    What is a little larger is made, and `check_fit` then names the first tensor that does not fit.
    """

    def __init__(self, numbers: int, path: str) -> None:
        super().__init__()
        self.numbers, self.path, self.thread = numbers, path, threading.get_ident()
        self.sizes: dict[tuple[int, str], int] = {}

    def __torch_function__(self, function: Any, types: Any, given: tuple = (), named: dict | None = None) -> Any:
        if function in (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn):
            sizes = given[0] if given and isinstance(given[0], Sequence) else given
            if all(isinstance(size, int) for size in sizes):
                self.check(math.prod(sizes))
        return function(*given, **named or {})

    def count(self, module: nn.Module, name: str, parameter: torch.Tensor | None) -> None:
        """Add a parameter that a module registers."""
        if parameter is not None and threading.get_ident() == self.thread:
            self.sizes[id(module), name] = parameter.numel()
            self.check(sum(self.sizes.values()))

    def check(self, numbers: int) -> None:
        if numbers > 2 * self.numbers + 2**20:
            words = f"the config beside it asks for far more than its {self.numbers} numbers"
            raise ValueError(f"{self.path} is of another network: {words}")


def _with_classes(about: dict[str, Any], count: int, name: str | Path) -> dict[str, Any]:
    """The config of the same network for `count` classes, which its task knows how to write."""
    config = about["model"]
    if "arguments" in config:
        return {**config, "arguments": {**config["arguments"], "classes": count}}
    task = task_name(config, task=about.get("task"))
    other = find(task if task in TASKS else task_name(config)).with_classes(config, count)
    if other is None:
        raise ValueError(f"{name}: a {config['model']} has no number of classes to change")
    return other


def available() -> list[str]:
    """Names of the weights that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.safetensors"))


def read_about(name: str | Path) -> tuple[Path, dict[str, Any]]:
    """Where the weights are, and the JSON file beside them."""
    path = _stem(name)
    if len(Path(name).parts) == 1 and not path.with_name(path.name + ".safetensors").is_file():
        if str(name) not in available():
            shipped = ", ".join(available()) or "none in this installation"
            raise ValueError(
                f"no weights named {str(name)!r}: shipped are {shipped}; or give the path of a .safetensors"
            )
        path = SHIPPED / str(name)
    weights, words = path.with_name(path.name + ".safetensors"), path.with_name(path.name + ".json")
    for file in (weights, words):
        if not file.is_file():
            if (Path(name) / "weights.safetensors").is_file():
                raise FileNotFoundError(f"{name} is the folder of a run: its weights are {Path(name) / 'weights'}")
            raise FileNotFoundError(f"{file} is missing: weights are a .safetensors and a .json file of the same name")
    try:
        about = json.loads(words.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{words} is not JSON: {error}") from None
    if not isinstance(about, dict) or not isinstance(about.get("model"), dict):
        raise ValueError(f"{words} does not say which model the weights belong to")
    about = {name: value for name, value in about.items() if value is not None}
    _check_about(about, words)
    return weights, about


# What a JSON file may say, by name: its type, and that of what it holds.
_SHAPES: dict[str, tuple[type, type]] = {
    "class_names": (list, str), "parts": (list, str), "values": (list, int), "recipe": (dict, object),
    "results": (dict, object), "split": (str, object), "task": (str, object), "start": (str, object),
}  # fmt: skip
_TYPES = {list: "a list", dict: "a mapping", str: "text", int: "whole numbers"}


def _check_about(about: dict[str, Any], file: Path) -> None:
    """Refuse a JSON file whose entries have other types than training wrote."""
    from gridless.models import task_of

    if not isinstance(about["model"].get("model"), str):
        raise ValueError(f'{file}: `model` does not name a network: weights belong to one, "model": NAME')
    if not isinstance(about["model"].get("arguments", {}), dict):
        raise ValueError(f"{file}: `model.arguments` must be a mapping, not {about['model']['arguments']!r}")
    for name, (kind, inside) in _SHAPES.items():
        value = about.get(name)
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{file}: `{name}` must be {_TYPES[kind]}, not {value!r}")
        wrong = [entry for entry in value or () if not isinstance(entry, inside)] if kind is list else []
        if wrong:
            raise ValueError(f"{file}: `{name}` must hold {_TYPES[inside]}, not {wrong[0]!r}")
    task, own = about.get("task"), task_of(about["model"])
    if task in TASKS and own is not None and task != own:
        raise ValueError(f"{file}: `task` is {task!r}, and a {about['model']['model']} is for {own!r}: mend the file")
    options = about.get("recipe", {}).get("data_options", {})
    if not isinstance(options, dict):
        raise ValueError(f"{file}: `recipe.data_options` must be a mapping, not {options!r}")


def restore(model: nn.Module, path: str | Path) -> None:
    """Fill a network from a safetensors file; weights of another network are refused by the first that does not fit."""
    tensors = _tensors(path)
    check_fit(model, tensors, str(path))
    model.load_state_dict(tensors)


def begin_with(model: nn.Module, name: str | Path) -> list[str]:
    """Fill what fits, by name and shape, from the weights of another network; returns the names of these tensors."""
    return _fill(model, _tensors(read_about(name)[0]), name)


def _fill(
    model: nn.Module, tensors: dict[str, torch.Tensor], name: str | Path, without: Sequence[str] = ()
) -> list[str]:
    wanted = {k: t for k, t in model.state_dict().items() if k not in without}
    found = {k: t for k, t in tensors.items() if k in wanted and _fits(t, wanted[k])}
    if not found:
        raise ValueError(f"nothing of the weights {str(name)!r} fits this {type(model).__name__}, by name and shape")
    model.load_state_dict(found, strict=False)
    return list(found)


def _tensors(path: str | Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read as safetensors: {error}") from None


def check_fit(model: nn.Module, tensors: dict[str, torch.Tensor], what: str) -> None:
    """Refuse the state of another network, naming the first tensor that is missing, of another shape, or unknown."""
    words = _misfit(model, tensors)
    if words is not None:
        raise ValueError(f"{what} is of another network: {words}")


def _misfit(model: nn.Module, tensors: dict[str, torch.Tensor]) -> str | None:
    """The first tensor that is missing, of another shape, or unknown to the network, in words."""
    kind = type(model).__name__
    wanted = model.state_dict()
    for name, tensor in wanted.items():
        if name not in tensors:
            return f"{kind} has {name!r}, the file has not"
        found = tensors[name]
        if not _fits(found, tensor):
            ours, theirs = (t.dtype if found.shape == tensor.shape else tuple(t.shape) for t in (tensor, found))
            return f"{name!r} of this {kind} is {ours}, in the file {theirs}"
    return next((f"{kind} has no {name!r}" for name in tensors if name not in wanted), None)


def _fits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Real numbers of another precision are converted; whole numbers are no weights."""
    same = found.dtype == wanted.dtype or (found.is_floating_point() and wanted.is_floating_point())
    return same and found.shape == wanted.shape


def _halved(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Weights as float16; biases and statistics, which are small and may be large in value, as they are."""
    if tensor.ndim < 2 or not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    if not bool((half.isfinite() | ~tensor.isfinite()).all()):
        raise ValueError(f"save: {name} has values beyond 65504, which 16 bits cannot hold: store it with 32")
    return half


def _stem(path: str | Path) -> Path:
    path = Path(path)
    return path.with_suffix("") if path.suffix in (".safetensors", ".json") else path
