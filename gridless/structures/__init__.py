"""The values that flow through gridless: ragged, frozen, and made of plain tensors.

A batch of B examples is the concatenation of their rows, with `splits` (B + 1) marking where each begins.
Every field says what it is (rows, splits, an index into something, a size), so that moving, collating and
padding are written once for all structures.
"""

from gridless.structures import pytree as pytree
from gridless.structures.base import Ragged, Structure
from gridless.structures.batch import bucket_size as bucket_size
from gridless.structures.batch import collate, fixed, pad
from gridless.structures.cloud import Cloud
from gridless.structures.edges import MAX_EDGES as MAX_EDGES
from gridless.structures.edges import Edges
from gridless.structures.events import Events
from gridless.structures.geometry import Geometry
from gridless.structures.geometry import expect_geometry as expect_geometry
from gridless.structures.geometry import points_of as points_of
from gridless.structures.rows import Rows
from gridless.structures.tap_edges import TapEdges
from gridless.structures.voxels import Voxels

__all__ = [
    "Cloud",
    "Edges",
    "Events",
    "Geometry",
    "Ragged",
    "Rows",
    "Structure",
    "TapEdges",
    "Voxels",
    "collate",
    "fixed",
    "pad",
]
