"""Other libraries' interfaces over our own operations. Nothing else in the package imports them.

`gl.compat.enable()` makes `import spconv.pytorch`, `import torch_scatter`, `import torch_cluster`, `import pointops`
and `import flash_attn` find these modules where the libraries are not installed; `gl.compat.disable()` undoes it.
"""

from gridless.compat.enabling import LIBRARIES, disable, enable

__all__ = ["LIBRARIES", "disable", "enable"]
