"""Fixed splits, shipped as text: random ones, stratified and seeded, for data sets that have no official one, and
ranges of numbers, for recordings whose neighbours are of the same scene.

A list has one line per class: its name, the number of its first recording, and one letter for each recording in the
order of their numbers: `t` test, `v` validation, `.` neither. They were made by this rule, which `make` repeats: the
recordings of a class are ordered by the SHA-256 of "SET/CLASS/NUMBER"; the first share of them is the test part, the
next tenth of what remains the validation part.

`split="train"` is everything that is not test, as in the paper; `"fit"` and `"validation"` divide it for choosing.

A list of ranges (`n_cars`) has one line per class, too: its name, the first number of each range, and one past the last
number. The ranges are equal to within one number. Each is a fold for cross-validation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

SPLITS = ("train", "fit", "validation", "test")
VALIDATION = 0.1
_LETTERS = {"train": ".v", "fit": ".", "validation": "v", "test": "t"}


def make(name: str, counts: Mapping[str, int], first: int, share: float) -> str:
    """The text of a list, from the recordings of each class and the share of them that is for testing."""
    lines = []
    for label, count in counts.items():
        order = sorted(range(count), key=lambda i: hashlib.sha256(f"{name}/{label}/{i + first}".encode()).digest())
        letters, test = ["."] * count, round(count * share)
        for rank, i in enumerate(order[: test + round((count - test) * VALIDATION)]):
            letters[i] = "t" if rank < test else "v"
        lines.append(f"{label} {first} {''.join(letters)}\n")
    return "".join(lines)


@cache
def load(name: str) -> dict[str, tuple[int, str]]:
    """The number of the first recording of each class, and its letters."""
    text = (Path(__file__).parent / f"{name}.txt").read_text("ascii")
    rows = (line.split() for line in text.splitlines())
    return {label: (int(first), letters) for label, first, letters in rows}


def members(name: str, split: str) -> list[tuple[str, int]]:
    """(class, number) of every recording in a part of a data set."""
    wanted = _LETTERS[check(split)]
    return [
        (label, first + i)
        for label, (first, letters) in load(name).items()
        for i, letter in enumerate(letters)
        if letter in wanted
    ]


@cache
def ranges(name: str) -> dict[str, tuple[int, ...]]:
    """The first number of each range of each class, then one past the last number."""
    text = (Path(__file__).parent / f"{name}.txt").read_text("ascii")
    rows = (line.split() for line in text.splitlines())
    return {label: tuple(map(int, numbers)) for label, *numbers in rows}


def range_of(name: str, label: str, numbers: np.ndarray) -> np.ndarray:
    """The range (N), 0 to one less than there are, in which each number of a class lies."""
    first = ranges(name)[label]
    outside = (numbers < first[0]) | (numbers >= first[-1])
    if outside.any():
        raise ValueError(f"{name}: {label} has the numbers {first[0]} to {first[-1] - 1}, not {numbers[outside][0]}")
    return np.searchsorted(first, numbers, side="right") - 1


def check(split: str) -> str:
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}. Choose from {', '.join(SPLITS)}.")
    return split


def chosen(name: str, key: str, share: float = VALIDATION) -> bool:
    """True if a recording belongs to a random share of a set, decided by its name alone."""
    return int.from_bytes(hashlib.sha256(f"{name}/{key}".encode()).digest()[:8], "big") < share * 2**64


def folds(labels: Sequence[int] | np.ndarray, number: int = 10, seed: int = 0) -> np.ndarray:
    """The fold (N) of each example, 0 to number - 1, for cross-validation: stratified, equal to within one a class."""
    labels = np.asarray(labels)
    if not 2 <= number <= len(labels):
        raise ValueError(f"folds: {number} folds cannot be made of {len(labels)} examples")
    random, out, start = np.random.default_rng(seed), np.empty(len(labels), np.int64), 0
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        # Each class goes on dealing where the last one stopped, so that the folds are equal as wholes, too.
        out[rows] = (start + np.arange(len(rows))) % number
        start += len(rows)
    return out
