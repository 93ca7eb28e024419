"""Imports of spconv's own tests: comparisons, grids of parameters and random sparse data."""

from __future__ import annotations

import itertools
import unittest
from typing import Any

import numpy as np


class TestCase(unittest.TestCase):
    """A test case with comparisons of arrays."""

    __test__ = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__test__ = True

    def assertAllEqual(self, a: Any, b: Any) -> None:
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

    def assertAllClose(self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str = "") -> None:
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol, err_msg=msg)


def params_grid(*params: Any) -> list[list[Any]]:
    """All combinations, the last parameter fastest."""
    return [list(values) for values in itertools.product(*params)]


def generate_sparse_data(
    shape: list[int],
    num_points: list[int],
    num_channels: int,
    integer: bool = False,
    data_range: tuple[float, float] = (-1, 1),
    with_dense: bool = True,
    dtype: Any = np.float32,
    shape_scale: int = 1,
) -> dict[str, np.ndarray]:
    """Random distinct sites of each example, by NumPy's global generator.

    Returns features (N, channels), indices (N, axes + 1) int32 with the batch last, and, with `with_dense`,
    features_dense (examples, channels, *shape). `integer` draws whole numbers; sites are multiples of `shape_scale`.
    """
    cells = np.indices([side // shape_scale for side in shape]).reshape(len(shape), -1).T * shape_scale
    sites, values = [], []
    for example, count in enumerate(num_points):
        chosen = cells[np.random.permutation(len(cells))[:count]]
        sites.append(np.pad(chosen, ((0, 0), (0, 1)), constant_values=example))
        drawn = np.random.uniform(*data_range, size=(len(chosen), num_channels))
        values.append((np.rint(drawn) if integer else drawn).astype(dtype))
    indices, features = np.concatenate(sites).astype(np.int32), np.concatenate(values)
    data = {"features": features, "indices": indices}
    if with_dense:
        dense = np.zeros([len(num_points), *shape, num_channels], dtype)
        dense[(indices[:, -1], *indices[:, :-1].T)] = features
        data["features_dense"] = np.ascontiguousarray(np.moveaxis(dense, -1, 1))
    return data
