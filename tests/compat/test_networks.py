"""A block of the kind of PTv3: spconv, flash_attn and torch_scatter together, imported by their own names."""

import pytest
import torch
from devices import DEVICES
from torch import nn

import gridless as gl


@pytest.fixture
def libraries():
    """The modules spconv.pytorch, torch_scatter and flash_attn, as `gl.compat.enable` gives them."""
    gl.compat.enable(force=("flash_attn", "spconv", "torch_scatter"))
    import flash_attn  # pyright: ignore[reportMissingImports]
    import spconv.pytorch as spconv  # pyright: ignore[reportMissingImports]
    import torch_scatter  # pyright: ignore[reportMissingImports]

    yield spconv, torch_scatter, flash_attn
    gl.compat.disable()


class Block(nn.Module):
    """Position by a submanifold convolution, attention in patches of one size, pooling to cells of twice the side."""

    def __init__(self, libraries, width=16, heads=2, patch=8):
        super().__init__()
        self.spconv, self.torch_scatter, self.flash_attn = libraries
        self.position = self.spconv.SparseSequential(
            self.spconv.SubMConv3d(width, width, 3, indice_key="stage0"), nn.Linear(width, width), nn.LayerNorm(width)
        )
        self.qkv, self.heads, self.patch = nn.Linear(width, 3 * width), heads, patch

    def forward(self, x):
        rows, width = x.features.shape
        x = x.replace_feature(x.features + self.position(x).features)
        qkv = self.qkv(x.features).reshape(rows, 3, self.heads, width // self.heads)
        splits = torch.tensor([*range(0, rows, self.patch), rows], dtype=torch.int32, device=qkv.device)
        mixed = self.flash_attn.flash_attn_varlen_qkvpacked_func(qkv, splits, self.patch)
        features = x.features + mixed.reshape(rows, width)
        parent = torch.cat([x.indices[:, :1], x.indices[:, 1:] // 2], 1)
        _, cluster, counts = parent.unique(dim=0, return_inverse=True, return_counts=True)
        order, ends = cluster.argsort(stable=True), nn.functional.pad(counts.cumsum(0), (1, 0))
        return self.torch_scatter.segment_csr(features.index_select(0, order), ends, reduce="max")


@pytest.mark.parametrize("device", DEVICES)
def test_a_block_trains_with_the_same_bits_twice(libraries, device):
    torch.manual_seed(0)
    spconv = libraries[0]
    sites = torch.randint(0, 9, (300, 4)).clamp(max=torch.tensor([1, 9, 9, 9])).unique(dim=0).int().to(device)
    features = torch.randn(len(sites), 16, device=device)
    block = Block(libraries).to(device)
    results = []
    for _ in range(2):
        leaf = features.clone().requires_grad_()
        block.zero_grad()
        out = block(spconv.SparseConvTensor(leaf, sites, [10, 10, 10], 2))
        out.square().sum().backward()
        results.append([out.detach(), leaf.grad, *(p.grad for p in block.parameters())])
    assert all(a.equal(b) for a, b in zip(*results))
    assert all(x.isfinite().all() and x.abs().sum() > 0 for x in results[0])
