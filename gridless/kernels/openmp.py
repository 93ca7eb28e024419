"""Idle OpenMP threads sleep. Imported before torch, whose OpenMP reads this once, when it is loaded.

By default they spin for a while, on cores that the threads of our own kernels need next: a training step of a small
network on two busy cores took ten times the CPU time.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
