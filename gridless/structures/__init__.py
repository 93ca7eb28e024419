"""The values that flow through gridless: ragged, frozen, and made of plain tensors.

A batch of B examples is the concatenation of their rows, with `splits` (B + 1) marking where each begins.
Every field says what it is (rows, splits, an index into something, a size), so that moving, collating and
padding are written once for all structures.
"""

from gridless.structures import pytree
from gridless.structures.base import Ragged, Structure
from gridless.structures.batch import bucket_size, collate, fixed, pad
from gridless.structures.cloud import Cloud
from gridless.structures.edges import MAX_EDGES, Edges
from gridless.structures.events import Events
from gridless.structures.geometry import Geometry, expect_geometry, points_of
from gridless.structures.rows import Rows

__all__ = [
    "MAX_EDGES",
    "Cloud",
    "Edges",
    "Events",
    "Geometry",
    "Ragged",
    "Rows",
    "Structure",
    "bucket_size",
    "collate",
    "expect_geometry",
    "fixed",
    "pad",
    "points_of",
    "pytree",
]
