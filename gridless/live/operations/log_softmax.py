"""The logarithm of `softmax`."""

from __future__ import annotations

from torch import nn

from gridless.live.operations.softmax import Softmax, softmax_body


class LogSoftmax(Softmax):
    name = "log_softmax"
    modules = (nn.LogSoftmax,)
    functions = ("log_softmax",)
    logarithm = True
    body = staticmethod(softmax_body(logarithm=True))
