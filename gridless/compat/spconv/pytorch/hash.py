"""A table of integers, on CPU and GPU."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["HashTable"]


class HashTable:
    """Values of int32 or int64 keys. The keys are kept sorted, and a key that is inserted again takes the new value.

    Args:
        max_size: spconv's limit on a GPU, also the length of `items`; there is no limit here.
    """

    def __init__(
        self, device: torch.device, key_dtype: torch.dtype, value_dtype: torch.dtype, max_size: int = -1
    ) -> None:
        self.is_cpu = torch.device(device).type == "cpu"
        self.key_dtype, self.value_dtype, self.max_size = key_dtype, value_dtype, max_size
        self._keys = torch.empty(0, dtype=key_dtype, device=device)
        self._values = torch.empty(0, dtype=value_dtype, device=device)

    def insert(self, keys: Tensor, values: Tensor | None = None) -> None:
        """Puts in keys (N) with their values (N), by default 0."""
        values = torch.zeros_like(keys) if values is None else values
        keys = torch.cat([self._keys, keys.to(self.key_dtype)])
        values = torch.cat([self._values, values.to(self.value_dtype)])
        keys, order = keys.sort(stable=True)
        is_last = torch.ones_like(keys, dtype=torch.bool)
        is_last[:-1] = keys[1:] != keys[:-1]
        self._keys, self._values = keys[is_last], values[order[is_last]]

    def query(self, keys: Tensor, values: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The values (N) of keys (N), and which keys are missing (N); `values` is overwritten where keys are there."""
        values = torch.zeros(len(keys), dtype=self.value_dtype, device=keys.device) if values is None else values
        place, exists = self._find(keys)
        values[exists] = self._values[place[exists]].to(values.dtype)
        return values, ~exists

    def insert_exist_keys(self, keys: Tensor, values: Tensor) -> Tensor:
        """Replaces the values of keys that are there; uint8 (N), 1 for those that are not."""
        exists = self._find(keys)[1]
        self.insert(keys[exists], values[exists])
        return (~exists).to(torch.uint8)

    def assign_arange_(self) -> Tensor:
        """Numbers the keys from 0, in ascending order; returns how many there are (1)."""
        self._values = torch.arange(len(self._keys), dtype=self.value_dtype, device=self._keys.device)
        return self._count()

    def items(self, max_size: int = -1) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and how many there are (1). On a GPU keys and values are padded to `max_size`."""
        size = len(self._keys) if self.is_cpu else max(max_size, self.max_size, len(self._keys))
        padding = (0, size - len(self._keys))
        keys, values = (torch.nn.functional.pad(x, padding) for x in (self._keys, self._values))
        return keys, values, self._count()

    def _count(self) -> Tensor:
        return torch.tensor([len(self._keys)], dtype=torch.int64, device=self._keys.device)

    def _find(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The place of each key, and whether it is there."""
        keys = keys.to(self.key_dtype)
        if not len(self._keys):
            return torch.zeros_like(keys, dtype=torch.long), torch.zeros_like(keys, dtype=torch.bool)
        place = torch.searchsorted(self._keys, keys).clamp(max=len(self._keys) - 1)
        return place, self._keys[place] == keys
