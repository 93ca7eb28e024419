"""Scenes of any size, in constant memory: cut into tiles that change nothing.

    for tile in gl.tiles("city.laz", size=50.0, halo=plan.reach()):
        tile, geometry = tile.run(plan)

`scene.py` reads files and arrays piece by piece; `tiling.py` cuts them; `label.py` is `gridless predict` for a scene.
"""

from gridless.scenes.label import Labeller, label_scene
from gridless.scenes.scene import Scene
from gridless.scenes.tiling import Tile, Tiles, layers_of, tiles

__all__ = ["Labeller", "Scene", "Tile", "Tiles", "label_scene", "layers_of", "tiles"]
