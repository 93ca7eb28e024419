"""Labels of points: read from a row, merged by name, and named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.data.prepare import row
from gridless.data.readers.clouds.lidar import label_files
from gridless.structures import Cloud

# Usual names of the row that holds labels.
LABELS = ("label", "labels", "class", "classification", "semantic", "part", "scalar_label", "scalar_classification")


class LabelNames:
    """Names of labels, such as {2: ground}. Labels of one name are one: the lowest."""

    def __init__(self, names: Mapping[Any, str] | None) -> None:
        check_names(names, "CloudFolder: names")
        # Keys are strings in a recipe that went through JSON.
        self.names = {int(value): name for value, name in (names or {}).items()}
        lowest: dict[str, int] = {}
        self.first = {value: lowest.setdefault(self.names[value], value) for value in sorted(self.names)}

    def merged(self, labels: Tensor) -> Tensor:
        """The labels (S), changed in place, those of one name as one."""
        for value, first in self.first.items():
            labels[labels == value] = first
        return labels

    def of(self, values: Sequence[int]) -> list[str]:
        """The name of each label; the number of one without a name."""
        names = [self.names.get(value, str(value)) for value in values]
        for value, name in self.names.items():
            if self.first[value] not in values:
                known = ", ".join(map(str, values)) or "none, as classes are folders"
                raise ValueError(f"CloudFolder: names: no point has the label {value} ({name}). There are {known}.")
            if names.count(name) > 1:
                raise ValueError(f"CloudFolder: names: {name!r} is another label, too. Give {value} another name.")
        return names


def check_names(names: Any, where: str) -> None:
    """Refuse names of labels that are no names, or are turned round."""
    if names is None:
        return
    if not isinstance(names, Mapping):
        raise ValueError(f"{where} must be a mapping of labels to names, such as {{2: ground}}, not {names!r}")
    for label, name in names.items():
        if not str(label).isdigit():
            raise ValueError(
                f"{where}: {label!r} is not a label, a whole number from 0. Write the label first: {{2: ground}}."
            )
        if not isinstance(name, str):
            raise ValueError(f"{where}: {name!r} of the label {label} is not a name. Give a word: {{{label}: ground}}.")


def ignored(ignore: int | Sequence[int]) -> list[int]:
    """The labels that mean "none", checked."""
    labels = [ignore] if isinstance(ignore, int) else list(ignore)
    if not all(type(value) is int for value in labels):
        raise ValueError(f"CloudFolder: ignore must be labels, whole numbers such as [0, 255], not {ignore!r}")
    return labels


def labels_of(cloud: Cloud, path: Path, name: str, ignore: Sequence[int]) -> Tensor:
    """The label of every point, int64, from 0 up, or -1 where it has none."""
    name = _usual_name(cloud, path) if name == "auto" else name
    values = row(cloud, name, str(path))
    values = values[:, 0] if values.shape[1:] == (1,) else values
    if values.ndim != 1 or not bool((values == values.long()).all()):
        raise ValueError(f"{path}: {name!r} does not hold labels. Give one whole number from 0 for each point.")
    values = values.long()
    values = torch.where(torch.isin(values, torch.tensor(ignore, dtype=torch.int64)), -1, values)
    if bool((values < -1).any()):
        lowest = int(values.min())
        raise ValueError(
            f"{path}: {name!r} has the label {lowest}, but labels are whole numbers from 0, or -1 for none. "
            f"Leave out such points (ignore: [{lowest}])."
        )
    return values


def _usual_name(cloud: Cloud, path: Path) -> str:
    """The row that has one of the usual names."""
    name = next((known for known in LABELS if known in cloud.rows), None)
    if name is not None:
        return name
    if path.suffix.lower() == ".bin":
        beside, apart = label_files(path)
        raise ValueError(f"{path}: its labels are neither in {beside} nor in {apart}. Put them there.")
    columns = cloud.rows.get("features")
    last = "NAME" if columns is None or columns.ndim == 1 else f"features.{columns.shape[1] - 1}"
    raise ValueError(
        f"{path}: no row has a usual name of labels. Of {', '.join(cloud.rows) or 'none'} "
        f"say label='{last}' (in a recipe --set data_options.label={last})."
    )
