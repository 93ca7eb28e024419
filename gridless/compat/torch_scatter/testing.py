"""The values that torch_scatter's own tests are parametrised with."""

from typing import Any

import torch

reductions = ["sum", "add", "mean", "min", "max"]
dtypes = [torch.half, torch.bfloat16, torch.float, torch.double, torch.int, torch.long]
grad_dtypes = [torch.float, torch.double]
devices = [torch.device("cpu"), *([torch.device("cuda:0")] if torch.cuda.is_available() else [])]


def tensor(x: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
    """The values as a tensor, or None of None."""
    return None if x is None else torch.tensor(x, device=device).to(dtype)
