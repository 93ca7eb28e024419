"""Fixed splits, shipped as text, and their rules. See `lists.py`."""

from gridless.data.splits.lists import SPLITS, check, chosen, folds, load, make, members, range_of, ranges

__all__ = ["SPLITS", "check", "chosen", "folds", "load", "make", "members", "range_of", "ranges"]
