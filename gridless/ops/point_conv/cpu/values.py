"""Edge values in Numba: the n_m of a run of rows, edge after edge, so that the arithmetic runs in vectors."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gridless.kernels.compile import njit
from gridless.ops.point_conv.edge_function import MONOMIALS, EdgeFunction

# Edges whose values are made together, unless one row alone has more.
CAPACITY = 512


class CompiledFunction(NamedTuple):
    """An `EdgeFunction` as compiled code reads it.

    `chain` lists (slot, parent, dimension): the monomial in a slot is that of its parent times one variable, or the
    constant where parent is -1. Slots 0 to M - 1 are the basis in its order; further ones only help to make it.
    """

    kind: int
    table: np.ndarray
    chain: np.ndarray
    slots: int
    width: float
    radius: Any
    falloff: bool
    normalise: bool


def recipe(function: EdgeFunction, coords: np.dtype, compute: np.dtype) -> CompiledFunction:
    chain, slots = _chain(function.kind, function.table, function.dim)
    table = np.array(function.table, compute).reshape(-1, function.dim)
    width, radius = compute.type(function.width), coords.type(function.radius)
    return CompiledFunction(function.kind, table, chain, slots, width, radius, function.falloff, function.normalise)


@lru_cache
def _chain(kind: int, table: tuple[float, ...], dim: int) -> tuple[np.ndarray, int]:
    if kind != MONOMIALS:
        return np.zeros((0, 3), np.int64), len(table) // dim
    wanted = [tuple(table[i : i + dim]) for i in range(0, len(table), dim)]
    if any(e < 0 or e != int(e) for row in wanted for e in row):
        raise ValueError(
            "point_conv: an exponent of the monomials is negative or not whole. Give whole numbers from 0."
        )
    slot: dict[tuple, int] = {}
    for row in wanted:
        slot.setdefault(row, len(slot))
    if len(slot) < len(wanted):
        raise ValueError("point_conv: the basis has the same monomial twice. Remove one.")
    chain = []
    # Parents are appended behind their children, and so met later; reversed by order they come first.
    todo = list(wanted)
    for row in todo:
        if not any(row):
            chain.append((0, slot[row], -1, 0))
            continue
        axis = next(d for d in range(dim) if row[d])
        parent = (*row[:axis], row[axis] - 1, *row[axis + 1 :])
        if parent not in slot:
            slot[parent] = len(slot)
            todo.append(parent)
        chain.append((sum(row), slot[row], slot[parent], axis))
    steps = [entry[1:] for entry in sorted(chain)]
    return np.array(steps, np.int64), len(slot)


@njit(nogil=True, cache=True, inner=True)
def longest(splits, first, last):
    """The most edges that have to be handled together."""
    most = CAPACITY
    for i in range(first, last):
        most = max(most, splits[i + 1] - splits[i])
    return most


@njit(nogil=True, cache=True, inner=True)
def run_of_rows(splits, first, last, capacity):
    """The end of the run of rows from `first` whose edges fit."""
    end = first + 1
    while end < last and splits[end + 1] - splits[first] <= capacity:
        end += 1
    return end


@njit(nogil=True, cache=True, inner=True)
def vectors(first, last, splits, column, row_coords, column_coords, radius, v):
    """v (D, edges) = (row - column) / radius of the edges of some rows; with -radius, where the rows are sources."""
    start = splits[first]
    for d in range(v.shape[0]):
        along = v[d]
        for i in range(first, last):
            x = row_coords[i, d]
            for e in range(splits[i], splits[i + 1]):
                along[e - start] = (x - column_coords[column[e], d]) / radius


@njit(nogil=True, cache=True, inner=True)
def falloffs(v, count, falloff, w):
    """w = max(0, 1 - |v|), or 1."""
    if not falloff:
        w[:count] = 1
        return
    w[:count] = 0
    for d in range(v.shape[0]):
        along = v[d]
        for e in range(count):
            w[e] += along[e] * along[e]
    one = w.dtype.type(1)
    for e in range(count):
        w[e] = max(one - np.sqrt(w[e]), w.dtype.type(0))


@njit(nogil=True, cache=True, inner=True)
def normalise_rows(first, last, splits, w, inverse):
    """Divide w by its sum over each row, and keep 1 / sum, 0 where the sum is 0."""
    start = splits[first]
    for i in range(first, last):
        total = w.dtype.type(0)
        for e in range(splits[i] - start, splits[i + 1] - start):
            total += w[e]
        inverse[i] = 0 if total == 0 else 1 / total
        for e in range(splits[i] - start, splits[i + 1] - start):
            w[e] *= inverse[i]


@njit(nogil=True, cache=True, inner=True)
def basis_values(v, w, count, kind, table, chain, width, p):
    """p (slots, edges) = p_m(v) w."""
    if kind == MONOMIALS:
        for step in range(len(chain)):
            out = p[chain[step, 0]]
            if chain[step, 1] < 0:
                for e in range(count):
                    out[e] = w[e]
            else:
                parent, along = p[chain[step, 1]], v[chain[step, 2]]
                for e in range(count):
                    out[e] = parent[e] * along[e]
        return
    scale = w.dtype.type(-0.5) / (width * width)
    for m in range(len(table)):
        out = p[m]
        out[:count] = 0
        for d in range(v.shape[0]):
            along, centre = v[d], table[m, d]
            for e in range(count):
                apart = along[e] - centre
                out[e] += apart * apart
        for e in range(count):
            out[e] = np.exp(out[e] * scale) * w[e]
