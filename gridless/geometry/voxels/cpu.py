from gridless.geometry.voxels.reference import distinct as distinct
from gridless.geometry.voxels.reference import search as search
