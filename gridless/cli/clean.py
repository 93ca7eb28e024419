"""`gridless clean`: list and remove packs, and caches of clouds and of geometry."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gridless.data.files import BESIDE, locked
from gridless.kernels.progress import is_terminal, shown

# File names of each kind of cache. Only files that match are removed.
_PACK = re.compile(r"pack\.json|\d+-\d+\.safetensors|\.lock|.*\.unfinished-.*")
_GEOMETRY = re.compile(r"about\.json|\d+-\d+\.(safetensors|shard)|.*\.unfinished-.*")
_BESIDE = re.compile(r"files\.json|.*\.unfinished-.*")


@dataclass(frozen=True)
class Cached:
    """A pack or cache, which can be removed because training can write it again."""

    what: str
    path: Path
    files: list[Path]

    @property
    def size(self) -> int:
        return sum(file.stat().st_size for file in self.files)


def clean(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of data, or those given as --cache; by default . and cache.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; without --yes nothing is removed.")] = False,
) -> None:
    """List packs and caches with their sizes, and remove them if you agree. Training makes them anew.

    A pack that is being written stays. Files that gridless did not write stay, too.
    """
    all_caches = list(caches([Path(), Path("cache")] if folders is None else folders))
    total = sum(cache.size for cache in all_caches)
    if as_json:
        facts = [{"what": cache.what, "path": str(cache.path), "bytes": cache.size} for cache in all_caches]
        print(json.dumps({"caches": facts, "bytes": total, "removed": yes}))
    else:
        for cache in all_caches:
            print(f"{cache.size / 1e6:12,.1f} MB  {cache.what:<9} {shown(cache.path)}")
        print(f"{total / 1e6:12,.1f} MB  in {len(all_caches)} caches")
    if all_caches and (yes or (not as_json and _agrees())):
        for cache in all_caches:
            remove(cache)


def _agrees() -> bool:
    if not is_terminal(sys.stdin):
        print("nothing was removed: --yes removes them", file=sys.stderr)
        return False
    return typer.confirm("remove them?")


def caches(folders: list[Path]) -> Iterator[Cached]:
    """All caches among the folders, the folders `.gridless` in them, and the subfolders of both."""
    seen = set[Path]()
    for folder in folders:
        for place in (folder, folder / BESIDE):
            for path in [place, *sorted(place.iterdir())] if place.is_dir() else []:
                if path.is_dir() and path.resolve() not in seen and (cache := _cache(path)) is not None:
                    seen.add(path.resolve())
                    yield cache


def _cache(path: Path) -> Cached | None:
    names = {file.name for file in path.iterdir() if file.is_file()}
    if "pack.json" in names or (path.name.startswith("pack-") and any(map(_PACK.fullmatch, names))):
        return _of(path, "pack", _PACK.fullmatch) if _is_free(path) else None
    if "about.json" in names and any(name.endswith((".safetensors", ".shard")) for name in names):
        return _of(path, "geometry", _GEOMETRY.fullmatch)
    if path.name == BESIDE:
        # The cached clouds of a data set are NAME.npy with NAME.json.
        clouds = {f"{name[:-4]}{end}" for name in names if f"{name[:-4]}.json" in names for end in (".npy", ".json")}
        clouds = {name for name in clouds if f"{Path(name).stem}.npy" in names}
        if clouds or any(map(_BESIDE.fullmatch, names)):
            what = "clouds" if clouds else "hashes"
            return _of(path, what, lambda name: name in clouds or _BESIDE.fullmatch(name))
    return None


def _of(path: Path, what: str, belongs: Callable[[str], object]) -> Cached:
    return Cached(what, path, sorted(file for file in path.iterdir() if file.is_file() and belongs(file.name)))


def _is_free(path: Path) -> bool:
    """True if no process is writing this pack."""
    try:
        with locked(path / ".lock", path):
            return True
    except ValueError:
        return False
    except OSError:
        # The folder is not writable, so no process is writing there.
        return True


def remove(cache: Cached) -> None:
    """Remove the files of a cache, the index first, and its folder if it is then empty."""
    for file in sorted(cache.files, key=lambda file: file.suffix != ".json"):
        file.unlink(missing_ok=True)
    if not any(cache.path.iterdir()):
        cache.path.rmdir()
