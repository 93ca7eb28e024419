"""The little of cumm that networks on spconv import: `cumm.tensorview.from_numpy`."""

from gridless.compat.cumm import tensorview

__all__ = ["tensorview"]
