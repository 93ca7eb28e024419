"""Damaged clouds and meshes: the documented error, or points; never anything else."""

from __future__ import annotations

import random
import re
import resource
from pathlib import Path

import pytest
from cloud_files import SEEDS

import gridless as gl
from gridless.data import FormatError

MEMORY = 1 << 30
WORDS = (
    b"-1 0 1 3 4294967295 1000000000000 99999999999999999999999 nan 1e400 1,5 0x10 1_0 x vertex list # [] {}".split()
)
SIZES = (0, 1, 2, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 10**12)


def damaged(chance: random.Random, data: bytes) -> bytes:
    """With bytes, words, numbers and lines changed, lost and repeated, in headers more often than behind them."""
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 6])):
        at = int(chance.random() ** chance.choice([1, 2, 3]) * len(out))
        match chance.randrange(8) if out else None:
            case 0:
                out[at] = chance.randrange(256)
            case 1:
                out[at] ^= 1 << chance.randrange(8)
            case 2:
                del out[at : at + chance.choice([1, 8, len(out)])]
            case 3:
                out[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 4:
                size = chance.choice([1, 2, 4, 8])
                number = chance.choice(SIZES) % (1 << 8 * size)
                out[at : at + size] = number.to_bytes(size, chance.choice(["little", "big"]))
            case 5:
                words = list(re.finditer(rb"[^\s,;:{}\[\]\"]+", bytes(out[:4000])))
                word = words[int(chance.random() ** 2 * len(words))] if words else re.search(b"", b"")
                assert word is not None
                out[word.start() : word.end()] = chance.choice(WORDS)
            case 6:
                lines = out.split(b"\n")
                line = lines.pop(int(chance.random() ** 2 * len(lines)))
                for _ in range(chance.randrange(3)):
                    lines.insert(chance.randrange(len(lines) + 1), line)
                out = bytearray(b"\n".join(lines))
            case _:
                out += chance.randbytes(chance.randrange(1, 30))
    return bytes(out)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_a_damaged_file_raises_only_the_documented_error(seed, tmp_path: Path):
    if seed.suffix in (".las", ".laz"):
        pytest.importorskip("laspy")
    whole, chance, path = seed.make(), random.Random(seed.name), tmp_path / f"damaged{seed.suffix}"
    path.write_bytes(whole)
    assert isinstance(seed.read(path), gl.Cloud)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(40):
        path.write_bytes(damaged(chance, whole))
        try:
            assert isinstance(seed.read(path), gl.Cloud)
        except FormatError as error:
            if error.path != path or str(path) not in str(error):
                raise AssertionError(f"the error does not name {path}") from error
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY
