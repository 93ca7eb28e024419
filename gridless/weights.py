"""Weights: one safetensors file, and beside it one JSON file that says which network they belong to.

Nothing is ever unpickled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gridless.data.files import whole_file

# Weights that come with the package.
SHIPPED = Path(__file__).parent / "pretrained"


def save(model: nn.Module, path: str | Path, bits: int = 32, **about: Any) -> Path:
    """Write `path`.safetensors and `path`.json; `about` (classes, recipe, results...) is kept in the JSON file.

    The network must have been made by `gridless.models`, so that its `config` can make it again. With `bits=16` the
    kernels of dense layers and convolutions are stored as float16, half the size; loading makes them float32 again.
    """
    from safetensors.torch import save as serialise

    config = getattr(model, "config", None)
    if not isinstance(config, dict) or "model" not in config:
        raise TypeError(
            f"save: a {type(model).__name__} has no config: only networks of gridless.models can be rebuilt from JSON"
        )
    path = _stem(path)
    if bits not in (16, 32):
        raise ValueError(f"save: weights are stored with 16 or 32 bits, not {bits}")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    if bits == 16:
        tensors = {name: _halved(name, tensor) for name, tensor in tensors.items()}
    about = {"model": config, **about}
    text = json.dumps(about, indent=2)
    weights, words = path.with_name(path.name + ".safetensors"), path.with_name(path.name + ".json")
    # Both are complete before either is seen.
    with whole_file(weights) as first, whole_file(words) as second:
        first.write(serialise(tensors))
        second.write(f"{text}\n".encode())
    return weights


def load(name: str | Path, device: torch.device | str = "cpu") -> nn.Module:
    """The network, ready to evaluate, by the name of shipped weights or by path.

    `model.about` is what was saved with it: classes, recipe, results.
    """
    from gridless.models import build

    path, about = read_about(name)
    model = build(about["model"])
    restore(model, path)
    model.about = about  # type: ignore[assignment]
    return model.to(device).eval()


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
            raise FileNotFoundError(f"{file} is missing: weights are a .safetensors and a .json file of the same name")
    try:
        about = json.loads(words.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{words} is not JSON: {error}") from None
    if not isinstance(about, dict) or not isinstance(about.get("model"), dict):
        raise ValueError(f"{words} does not say which model the weights belong to")
    return weights, about


def restore(model: nn.Module, path: str | Path) -> None:
    """Fill a network from a safetensors file; weights of another network are refused by the first that does not fit."""
    tensors = _tensors(path)
    check_fit(model, tensors, str(path))
    model.load_state_dict(tensors)


def begin_with(model: nn.Module, name: str | Path) -> list[str]:
    """Fill what fits, by name and shape, from the weights of another network; returns the names of these tensors."""
    wanted = model.state_dict()
    found = {k: t for k, t in _tensors(read_about(name)[0]).items() if k in wanted and _fits(t, wanted[k])}
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
    kind = type(model).__name__
    wanted = model.state_dict()
    for name, tensor in wanted.items():
        if name not in tensors:
            raise ValueError(f"{what} is of another network: {kind} has {name!r}, the file has not")
        found = tensors[name]
        if not _fits(found, tensor):
            ours, theirs = (t.dtype if found.shape == tensor.shape else tuple(t.shape) for t in (tensor, found))
            raise ValueError(f"{what} is of another network: {name!r} of this {kind} is {ours}, in the file {theirs}")
    for name in tensors:
        if name not in wanted:
            raise ValueError(f"{what} is of another network: {kind} has no {name!r}")


def _fits(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Real numbers of another precision are converted; whole numbers are no weights."""
    same = found.dtype == wanted.dtype or (found.is_floating_point() and wanted.is_floating_point())
    return same and found.shape == wanted.shape


def _halved(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A kernel as float16; biases and statistics, which are small and may be large in value, as they are."""
    if tensor.ndim < 2 or not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    if not bool((half.isfinite() | ~tensor.isfinite()).all()):
        raise ValueError(f"save: {name} has values beyond 65504, which 16 bits cannot hold: store it with 32")
    return half


def _stem(path: str | Path) -> Path:
    path = Path(path)
    return path.with_suffix("") if path.suffix in (".safetensors", ".json") else path
