"""What coordinates alone decide: searches find edges, samplers thin clouds. No gradients.

Each folder holds one of them: the contract and its checks, a reference in torch, and a kernel for CPU and GPU.
"""

from gridless.geometry.ball import ball
from gridless.geometry.farthest import farthest_sample, random_sample
from gridless.geometry.nearest import nearest
from gridless.geometry.rejection import rejection_sample

__all__ = ["ball", "farthest_sample", "nearest", "random_sample", "rejection_sample"]
