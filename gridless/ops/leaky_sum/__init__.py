"""Sums over a recording so far, in which older events count less, wherever on the sensor they are.

    leaky_sum(F, rate, events)[i, v, c] = sum over the events j <= i of the recording of exp(-rate_v age_ij) F[j, c]

age_ij = time_i - time_j in units of `decay_time`. Rows of padding see rows of padding.
"""

from __future__ import annotations

from torch import Tensor

from gridless.backends import backend_for
from gridless.ops.leaky_sum import cpu, gpu, reference
from gridless.ops.operator import by_reference
from gridless.structures import Events

_BACKENDS = {"reference": reference, "cpu": cpu, "gpu": gpu}


def leaky_sum(features: Tensor, rate: Tensor, events: Events, decay_time: float = 1000.0) -> Tensor:
    """features (S, C) of `events` to (S, V, C). Gradients go to features and rate.

    Args:
        features: a row for each event.
        rate: (V), in units of 1 / decay_time.
        events: the recordings, in order of arrival.
        decay_time: microseconds.
    """
    if features.ndim != 2 or rate.ndim != 1 or len(features) != len(events):
        shapes = f"{tuple(features.shape)} and {tuple(rate.shape)}"
        raise ValueError(f"leaky_sum: features must be ({len(events)}, C) and rate (V), not {shapes}.")
    if features.dtype != rate.dtype or not features.is_floating_point():
        raise TypeError(f"leaky_sum: features are {features.dtype} and rate {rate.dtype}. Give both one floating type.")
    if not decay_time > 0:
        raise ValueError(f"leaky_sum: decay_time must be above 0, not {decay_time}.")
    if by_reference(features):
        return reference.leaky_sum(features, rate, events, float(decay_time))
    return _BACKENDS[backend_for(features.device)].leaky_sum(features, rate, events, float(decay_time))
