"""The way to helpers of other tests: the small run of training, and recordings of ROS."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("training", "data")]
