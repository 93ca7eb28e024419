"""The operations of a live program, one file each; `gelu.py` is a short example.

Importing this package imports every file of the folder, and adds its `Operation` classes that have a name.
"""

from gridless.live.registry import (
    OPERATIONS,
    add_files,
    added,
    freeze,
    function_readers,
    layer_reader,
    number_of,
    of,
    register,
)

__all__ = ["OPERATIONS", "added", "freeze", "function_readers", "layer_reader", "number_of", "of", "register"]

add_files(__name__, __path__)
