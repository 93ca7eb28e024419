"""Grid sampling on the CPU: a hash table of cells for each example."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gridless.kernels.compile import njit

# A large odd number, whose products scatter cells over the table.
_MIX = -7046029254386353131


@njit(nogil=True, cache=True)
def _group(numbers, splits, table, first, inverse, ends):
    """`table` has a power of two of places, at least twice as many as an example has points, all -1."""
    dim, mask, count = numbers.shape[1], len(table) - 1, 0
    for e in range(len(splits) - 1):
        begin = count
        for i in range(splits[e], splits[e + 1]):
            code = np.int64(0)
            for d in range(dim):
                code = (code ^ numbers[i, d]) * _MIX
                code ^= code >> 29
            at = code & mask
            while True:
                known = table[at]
                if known < 0:
                    table[at] = count
                    first[count] = i
                    inverse[i] = count
                    count += 1
                    break
                same = True
                for d in range(dim):
                    same = same and numbers[first[known], d] == numbers[i, d]
                if same:
                    inverse[i] = known
                    break
                at = (at + 1) & mask
        ends[e + 1] = count
        if e + 2 < len(splits) and count > begin:
            table[:] = -1
    return count


def group(numbers: Tensor, splits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    cells, bounds = numbers.contiguous().numpy(), splits.numpy()
    largest = int(np.diff(bounds).max(initial=1))
    table = np.full(1 << (2 * largest - 1).bit_length(), -1, np.int32)
    first, inverse = np.empty(len(cells), np.int64), np.empty(len(cells), np.int64)
    ends = np.zeros(len(bounds), np.int64)
    count = _group(cells, bounds, table, first, inverse, ends)
    return torch.from_numpy(first[:count].copy()), torch.from_numpy(inverse), torch.from_numpy(ends)
