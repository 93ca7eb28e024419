"""spconv's layers, compared with dense convolutions of torch: values, gradients, sites, checkpoints."""

import copy
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch
from devices import DEVICES
from torch import nn
from torch.nn import functional as F

import gridless.compat.spconv.pytorch as spconv
from gridless.compat.cumm import tensorview
from gridless.compat.spconv import constants, test_utils, tools, utils
from gridless.compat.spconv.pytorch import functional, ops
from gridless.compat.spconv.pytorch.core import IndiceData
from gridless.compat.spconv.pytorch.functional import sparse_add
from gridless.compat.spconv.pytorch.hash import HashTable
from gridless.compat.spconv.pytorch.modules import is_sparse_conv, is_spconv_module
from gridless.compat.spconv.pytorch.ops import get_indice_pairs
from gridless.compat.spconv.pytorch.spatial import RemoveDuplicate
from gridless.compat.spconv.pytorch.utils import PointToVoxel, gather_features_by_pc_voxel_id

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
SHAPE = [7, 8, 9, 5]


def sparse(ndim=3, channels=4, batch=2, device="cpu", dtype=torch.double, seed=0):
    """A random tensor with a third of all sites, in no order."""
    generator = torch.Generator().manual_seed(seed)
    shape = SHAPE[:ndim]
    cells = torch.ones(batch, *shape).nonzero()
    sites = cells[torch.randperm(len(cells), generator=generator)[: len(cells) // 3]].int()
    features = torch.randn(len(sites), channels, generator=generator, dtype=torch.double)
    leaf = features.to(device, dtype).requires_grad_()
    return spconv.SparseConvTensor(leaf, sites.to(device), shape, batch)


def dense_weight(layer):
    """(C_out, C_in, kernel...), as torch has it; (C_in, C_out, kernel...) for transposed layers."""
    weight = layer.weight.movedim(-1, 1)
    return weight.transpose(0, 1) if layer.transposed else weight


def compare(ours, theirs, leaves):
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(theirs)
    grads = (torch.autograd.grad(out, leaves, upstream, retain_graph=True) for out in (ours, theirs))
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b)


def repeated(device="cpu", channels=4):
    """A random tensor in which some sites are there twice or three times, not in succession."""
    x = sparse(3, channels, device=device)
    rows = torch.cat([torch.arange(len(x.indices)), torch.arange(40), torch.arange(20)]).to(device)
    features = torch.randn(len(rows), channels, dtype=torch.double, device=device, requires_grad=True)
    return spconv.SparseConvTensor(features, x.indices[rows], x.spatial_shape, x.batch_size), rows


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kernel", [3, 2, (1, 3, 5)])
def test_a_repeated_site_is_itself_in_the_middle_and_its_first_row_to_others(device, kernel):
    x, rows = repeated(device)
    torch.manual_seed(1)
    layer = spconv.SubMConv3d(4, 5, kernel, indice_key="a").to(device, torch.double)
    distinct = int(rows.max()) + 1
    others = spconv.SparseConvTensor(x.features[:distinct], x.indices[:distinct], x.spatial_shape, x.batch_size)
    middle = layer.weight[(slice(None), *(side // 2 for side in layer.kernel_size))].t()
    expected = layer(others).features[rows] + (x.features - x.features[:distinct][rows]) @ middle
    y = layer(x)
    assert y.indices is x.indices
    compare(y.features, expected, (x.features, layer.weight, layer.bias))
    again = layer(y.replace_feature(x.features))  # by the key
    assert again.features.equal(y.features)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer.float()(x.replace_feature(x.features.float())).features
    torch.testing.assert_close(out.double(), expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["SparseConv3d", "SparseConvTranspose3d"])
def test_other_convolutions_add_up_the_rows_of_a_site_and_inverse_layers_repeat_them(device, name):
    x, rows = repeated(device)
    torch.manual_seed(1)
    layer = getattr(spconv, name)(4, 5, 2, 2, indice_key="a").to(device, torch.double)
    back = spconv.SparseInverseConv3d(5, 4, 2, indice_key="a").to(device, torch.double)
    total = torch.zeros(int(rows.max()) + 1, 4, dtype=torch.double, device=device).index_add(0, rows, x.features)
    sums = spconv.SparseConvTensor(total, x.indices[: len(total)], x.spatial_shape, x.batch_size)
    y, expected = layer(x), layer(sums)
    assert y.indices.equal(expected.indices)
    compare(y.features, expected.features, (x.features, layer.weight))
    inverse = back(y)
    assert inverse.indices is x.indices
    compare(inverse.features, back(expected).features[rows], (x.features, layer.weight, back.weight))


def test_poolings_refuse_repeated_sites():
    x, _ = repeated()
    with pytest.raises(ValueError, match="occurs twice"):
        spconv.SparseMaxPool3d(2)(x)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"), [(3, 1, 0, 1), (3, 2, 1, 1), (2, 2, 0, 1), (3, 1, 2, 2), (1, 2, 0, 1)]
)
def test_a_convolution_is_the_dense_one(ndim, kernel, stride, padding, dilation, device):
    x = sparse(ndim, device=device)
    layer = getattr(spconv, f"SparseConv{ndim}d")(4, 5, kernel, stride, padding, dilation, bias=False)
    layer = layer.to(device).double()
    out = layer(x)
    theirs = CONV[ndim](x.dense(), dense_weight(layer), None, stride, padding, dilation)
    assert out.spatial_shape == list(theirs.shape[2:])
    compare(out.dense(), theirs, [x.features, layer.weight])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 0), (3, 2, 1), (2, 2, 0)])
def test_a_transposed_convolution_is_the_dense_one(ndim, kernel, stride, padding, device):
    x = sparse(ndim, device=device)
    layer = getattr(spconv, f"SparseConvTranspose{ndim}d")(4, 5, kernel, stride, padding, bias=False)
    layer = layer.to(device).double()
    theirs = TRANSPOSED[ndim](x.dense(), dense_weight(layer), None, stride, padding)
    compare(layer(x).dense(), theirs, [x.features, layer.weight])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (5, 1), (3, 2)])
def test_a_submanifold_convolution_keeps_its_sites_and_ignores_padding(ndim, kernel, dilation, device):
    x = sparse(ndim, device=device)
    layer = getattr(spconv, f"SubMConv{ndim}d")(4, 5, kernel, padding=7, dilation=dilation).to(device).double()
    out = layer(x)
    assert out.indices is x.indices
    middle = dilation * (kernel // 2)
    theirs = CONV[ndim](x.dense(), dense_weight(layer), layer.bias, 1, middle, dilation)
    where = x.indices.long()
    theirs = theirs.movedim(1, -1)[tuple(where.t())]
    compare(out.features, theirs, [x.features, layer.weight, layer.bias])


def test_four_dimensions_work():
    x = sparse(4, batch=1)
    layer = spconv.SubMConv4d(4, 3, 3, bias=False).double()
    out = layer(x).features
    site = {tuple(s): i for i, s in enumerate(x.indices[:, 1:].tolist())}
    row = 17
    expected = torch.zeros(3, dtype=torch.double)
    for tap in np.ndindex(3, 3, 3, 3):
        near = site.get(tuple(int(c) + t - 1 for c, t in zip(x.indices[row, 1:], tap)))
        if near is not None:
            expected = expected + layer.weight[(slice(None), *tap)] @ x.features[near]
    torch.testing.assert_close(out[row], expected)
    coarse = spconv.SparseConv4d(3, 3, 2, 2, indice_key="down").double()
    back = spconv.SparseInverseConv4d(3, 2, 2, indice_key="down").double()
    assert back(coarse(layer(x))).indices.equal(x.indices)


@pytest.mark.parametrize("device", DEVICES)
def test_an_inverse_convolution_restores_the_sites_of_its_key(device):
    x = sparse(device=device)
    down = spconv.SparseConv3d(4, 5, 3, 2, 1, bias=False, indice_key="down").to(device).double()
    up = spconv.SparseInverseConv3d(5, 6, 3, indice_key="down", bias=False).to(device).double()
    middle = down(x)
    out = up(middle)
    assert out.indices is x.indices
    assert out.spatial_shape == x.spatial_shape
    # Input j gets the weight of tap k from each output that saw it at tap k: the transpose of the convolution.
    weight = up.weight.movedim(-1, 0)
    theirs = F.conv_transpose3d(middle.dense(), weight, None, 2, 1, output_padding=(0, 1, 0))
    compare(out.features, theirs.movedim(1, -1)[tuple(x.indices.long().t())], [x.features, down.weight, up.weight])
    with pytest.raises(AssertionError, match="other"):
        spconv.SparseInverseConv3d(5, 6, 3, indice_key="other")(middle.replace_feature(middle.features.float()))


def test_kernel_size_one_multiplies_by_the_weights_as_they_lie():
    x = sparse()
    for layer in (spconv.SubMConv3d(4, 5, 1), spconv.SparseConv3d(4, 5, 1)):
        layer.double()
        out = layer(x)
        torch.testing.assert_close(out.features, x.features @ layer.weight.view(4, 5) + layer.bias)
        assert out.indice_dict == {}


def test_new_sites_are_in_lexicographic_order_and_int32():
    out = spconv.SparseConv3d(4, 4, 2, 2).double()(sparse())
    assert out.indices.dtype == torch.int32
    assert out.indices.equal(out.indices.unique(dim=0))
    assert len(out.features) == len(out.indices)


def test_layers_of_one_key_share_what_was_found():
    x = sparse()
    first = spconv.SubMConv3d(4, 4, 3, indice_key="a").double()
    out = spconv.SubMConv3d(4, 4, 3, indice_key="a").double()(first(x))
    data = out.find_indice_pair("a")
    assert isinstance(data, IndiceData)
    assert x.indice_dict == {}
    assert out.find_indice_pair("b") is None
    assert out.find_indice_pair(None) is None
    assert first(out).find_indice_pair("a") is data
    with pytest.raises(ValueError, match=r"kernel_size \[3, 3, 3\]"):
        spconv.SubMConv3d(4, 4, (3, 3, 1), indice_key="a").double()(out)
    with pytest.raises(AssertionError, match="'a'"):
        spconv.SparseConv3d(4, 4, 3, indice_key="a").double()(out)
    with pytest.raises(AssertionError, match=r"4 channels.* 6"):
        spconv.SubMConv3d(6, 4, 3)(x)


def test_the_tables_of_pairs_are_those_of_the_sites():
    x = sparse()
    out = spconv.SparseConv3d(4, 4, 3, 2, 1, indice_key="a").double()(x)
    data = out.indice_dict["a"]
    count = 0
    for tap, k in enumerate(np.ndindex(3, 3, 3)):
        for place in range(int(data.indice_pair_num[tap])):
            i, j = data.indice_pairs[:, tap, place].tolist()
            assert x.indices[i, 1:].tolist() == [2 * int(c) - 1 + t for c, t in zip(out.indices[j, 1:], k)]
            assert data.pair_fwd[tap, j] == i
            assert data.pair_bwd[tap, i] == j
            count += 1
    assert count == int((data.pair_fwd >= 0).sum()) == int((data.pair_bwd >= 0).sum())
    _, pairs, number = get_indice_pairs(
        x.indices, 2, x.spatial_shape, spconv.ConvAlgo.Native, [3] * 3, [2] * 3, [1] * 3, [1] * 3, [0] * 3
    )
    assert pairs.equal(data.indice_pairs)
    assert number.equal(data.indice_pair_num)
    names = {"ksize": [3] * 3, "stride": [2] * 3, "padding": [1] * 3, "dilation": [1] * 3, "out_padding": [0] * 3}
    tables = spconv.ops.get_indice_pairs_implicit_gemm(
        indices=x.indices, batch_size=2, spatial_shape=np.array(x.spatial_shape), algo=data.algo, **names
    )
    for table, wanted in zip(tables, (out.indices, data.indice_pair_num, data.pair_fwd, data.pair_bwd)):
        assert table.equal(wanted)
    assert len(tables) == 9


def test_names_are_where_spconv_has_them_too():
    from gridless.compat.spconv.pytorch import conv, core, modules

    assert conv.SparseModule is modules.SparseModule
    assert conv.ImplicitGemmIndiceData is core.ImplicitGemmIndiceData
    assert spconv.ops.indice_maxpool is spconv.functional.indice_maxpool
    assert sparse().grid.numel() == 0


@pytest.mark.parametrize("device", DEVICES)
def test_pooling_reduces_the_sites_that_exist(device):
    x = sparse(device=device)
    filled = x.dense().masked_fill(x.replace_feature(torch.ones_like(x.features)).dense() == 0, -torch.inf)
    out = spconv.SparseMaxPool3d(3, 2, 1)(x)
    theirs = F.max_pool3d(filled, 3, 2, 1).clamp(min=0)
    compare(out.features, theirs.movedim(1, -1)[tuple(out.indices.long().t())], [x.features])
    mean = spconv.SparseAvgPool3d(2, indice_key="pool")(x)
    count = F.avg_pool3d(x.replace_feature(torch.ones_like(x.features)).dense(), 2)
    theirs = (F.avg_pool3d(x.dense(), 2) / count).movedim(1, -1)
    compare(mean.features, theirs[tuple(mean.indices.long().t())], [x.features])
    up = spconv.SparseInverseConv3d(4, 4, 2, indice_key="pool").to(device).double()
    assert up(mean).indices.equal(x.indices)
    with pytest.raises(ValueError, match="pool"):
        spconv.SparseMaxPool3d(2, indice_key="pool")(mean)


def test_submanifold_tables_may_have_the_first_half_of_the_taps_only():
    x, layer = sparse(dtype=torch.float32), spconv.SubMConv3d(4, 5, 3, bias=False)
    settings = ([3] * 3, [1] * 3, [1] * 3, [1] * 3, [0] * 3, True)
    _, pairs, counts = spconv.ops.get_indice_pairs(x.indices, 2, x.spatial_shape, spconv.ConvAlgo.Native, *settings)
    half = counts.clone()
    half[13:] = 0
    expected = layer(x).features
    for number in (counts, half):
        out = spconv.functional.indice_subm_conv(x.features, layer.weight, pairs, number, len(x.indices))
        torch.testing.assert_close(out, expected)
    places = (x.spatial_shape, x.spatial_shape, True, spconv.ConvAlgo.Native, *settings[:2], settings[3], settings[2])
    data = spconv.core.IndiceData(x.indices, x.indices, pairs, half, *places)
    assert data.taps.table.equal(spconv.core.IndiceData(x.indices, x.indices, pairs, counts, *places).taps.table)


def test_voxels_are_counted_in_evaluation_too():
    x = sparse(dtype=torch.float32)
    for layer in (
        spconv.SparseConv3d(4, 4, 3, 2, 1, record_voxel_count=True),
        spconv.SparseMaxPool3d(3, 2, 1, record_voxel_count=True),
    ):
        assert int(layer.eval().get_max_num_voxels()) == 0
        assert len(layer(x).indices) == int(layer.get_max_num_voxels()) > 0


def test_switches_are_found_below_the_layers():
    assert spconv.constants.SPCONV_ALLOW_TF32 is False
    assert spconv.hash.HashTable


def test_voxels_of_cumm_are_arrays_of_numpy():
    from gridless.compat.spconv import utils

    points = np.random.default_rng(0).random((50, 4), np.float32)
    voxels, indices, count = utils.Point2VoxelCPU3d([0.5] * 3, [0] * 3 + [1] * 3, 4, 10, 50).point_to_voxel(points)
    assert voxels.numpy_view().shape == (8, 50, 4)
    assert int(count.numpy_view().sum()) == 50
    assert type(voxels + 1) is torch.Tensor
    assert indices.dtype == torch.int32
    with pytest.raises(ValueError, match=r"\(50, 4\), not \(points, 3\)"):
        spconv.utils.PointToVoxel([0.5] * 3, [0] * 3 + [1] * 3, 3, 10, 50)(torch.from_numpy(points))
    assert hasattr(utils.Point2VoxelGPU3d, "point_to_voxel_hash")


def test_global_pooling_gives_plain_tensors():
    x = sparse()
    for example in range(2):
        rows = x.features[x.indices[:, 0] == example]
        assert spconv.SparseGlobalMaxPool()(x)[example].equal(rows.max(0)[0])
        assert spconv.SparseGlobalAvgPool()(x)[example].equal(rows.mean(0)[0])


def test_a_sequence_gives_features_to_layers_of_torch():
    x = sparse()
    named = OrderedDict(conv=spconv.SubMConv3d(4, 6, 3), norm=nn.BatchNorm1d(6), act=nn.ReLU())
    net = spconv.SparseSequential(named).double()
    out = net(x)
    torch.testing.assert_close(out.features, F.relu(net[1](net[0](x).features)))
    assert [is_spconv_module(m) for m in net._modules.values()] == [True, False, False]
    assert [is_sparse_conv(m) for m in net._modules.values()] == [True, False, False]
    assert len(net) == 3
    assert net[-1] is named["act"]
    net.add(spconv.ToDense())
    assert net(x).shape == (2, 6, 7, 8, 9)
    sparse_net = spconv.SparseSequential(spconv.SparseBatchNorm(4), spconv.SparseReLU(), spconv.Identity()).double()
    torch.testing.assert_close(sparse_net(x).features, F.relu(F.batch_norm(x.features, None, None, training=True)))
    empty = x.select_by_index(torch.zeros(len(x.indices), dtype=torch.bool))
    assert spconv.SparseSequential(nn.BatchNorm1d(4).double())(empty).features.shape == (0, 4)


def test_tables_join_and_add():
    x = sparse()
    table = spconv.ConcatTable()
    table.add(spconv.Identity()).add(spconv.SubMConv3d(4, 4, 3)).double()
    both = table(x)
    assert spconv.AddTable()(both).features.equal(both[0].features + both[1].features)
    assert spconv.JoinTable()(both).features.shape[1] == 8
    y = sparse(seed=1)
    torch.testing.assert_close(sparse_add(x, y).dense(), x.dense() + y.dense())
    assert spconv.AddTableMisaligned()([x, y]).indices.equal(sparse_add(x, y).indices)
    with pytest.raises(AssertionError, match="AddTable"):
        spconv.AddTable()([x, y.select_by_index(torch.arange(3))])


def test_a_sparse_tensor_keeps_its_word():
    x = sparse(dtype=torch.float)
    assert x.dense().shape == (2, 4, 7, 8, 9)
    assert x.dense(channels_first=False).shape == (2, 7, 8, 9, 4)
    back = spconv.SparseConvTensor.from_dense(x.dense(channels_first=False))
    assert back.dense().equal(x.dense())
    with pytest.raises(ValueError, match="replace_feature"):
        x.features = x.features
    other = x.replace_feature(x.features * 2)
    assert other.indice_dict is x.indice_dict
    assert (x + other).features.equal(x.features * 3)
    assert x.shadow_copy().features is x.features
    for wrong in (
        {"indices": x.indices.long()},
        {"spatial_shape": [7, 8]},
        {"batch_size": 0},
        {"features": x.features[0]},
    ):
        arguments = {"features": x.features, "indices": x.indices, "spatial_shape": [7, 8, 9], "batch_size": 2}
        with pytest.raises(AssertionError, match="SparseConvTensor"):
            spconv.SparseConvTensor(**arguments | wrong)


class Block(spconv.SparseModule):
    def __init__(self, width, key):
        super().__init__()
        self.conv1 = spconv.SubMConv3d(width, width, 3, bias=False, indice_key=key)
        self.norm1 = nn.BatchNorm1d(width)
        self.conv2 = spconv.SubMConv3d(width, width, 3, bias=False, indice_key=key)
        self.norm2 = nn.BatchNorm1d(width)

    def forward(self, x):
        out = self.conv1(x)
        out = self.conv2(out.replace_feature(F.relu(self.norm1(out.features))))
        return out.replace_feature(F.relu(self.norm2(out.features) + x.features))


class SmallUNet(nn.Module):
    """The shape of a SparseUNet: stem, two levels down and up with inverse convolutions, skips, head."""

    def __init__(self, channels=4, width=8, classes=3):
        super().__init__()
        self.stem = spconv.SparseSequential(spconv.SubMConv3d(channels, width, 5, indice_key="stem"), nn.ReLU())
        self.down = nn.ModuleList(spconv.SparseConv3d(width, width, 2, 2, indice_key=f"down{i}") for i in range(2))
        self.encode = nn.ModuleList(Block(width, f"subm{i + 1}") for i in range(2))
        self.up = nn.ModuleList(spconv.SparseInverseConv3d(width, width, 2, indice_key=f"down{i}") for i in range(2))
        self.join = nn.ModuleList(spconv.SubMConv3d(2 * width, width, 3, indice_key=f"subm{i}") for i in range(2))
        self.head = spconv.SubMConv3d(width, classes, 1)

    def forward(self, x):
        x = self.stem(x)
        skips = []
        for down, encode in zip(self.down, self.encode):
            skips.append(x)
            x = encode(down(x))
        for i in (1, 0):
            x = self.up[i](x)
            x = self.join[i](x.replace_feature(torch.cat([x.features, skips[i].features], 1)))
        return self.head(x)


@pytest.mark.parametrize("device", DEVICES)
def test_a_small_unet_trains_with_the_same_bits_twice(device):
    torch.manual_seed(0)
    net = SmallUNet().to(device)
    again = copy.deepcopy(net)
    grads = []
    for model in (net, again):
        x = sparse(device=device, dtype=torch.float)
        out = model(x)
        assert out.indices is x.indices
        F.cross_entropy(out.features, out.indices[:, 1].long() % 3).backward()
        grads.append([out.features.detach(), x.features.grad, *(p.grad for p in model.parameters())])
    assert all(a.equal(b) for a, b in zip(*grads))
    assert all(g.abs().sum() > 0 for g in grads[0])


def test_checkpoints_have_spconvs_names_and_shapes_and_load():
    net = SmallUNet()
    state = net.state_dict()
    assert state["stem.0.weight"].shape == (8, 5, 5, 5, 4)
    assert state["stem.0.bias"].shape == (8,)
    assert state["up.0.weight"].shape == (8, 2, 2, 2, 8)
    other = SmallUNet()
    other.load_state_dict(pickle.loads(pickle.dumps(state)))
    x = sparse(dtype=torch.float)
    assert net.eval()(x).features.equal(other.eval()(x).features)
    counted = spconv.SparseConv3d(4, 4, 2, 2, record_voxel_count=True)
    out = counted(x)
    assert counted.state_dict()["max_num_voxels_during_training"].tolist() == [len(out.indices)]


def test_the_bias_counts_in_training_and_evaluation():
    x = sparse()
    layer = spconv.SubMConv3d(4, 2, 3).double()
    assert layer.bias is not None
    with torch.no_grad():
        layer.bias.fill_(100)
    trained, evaluated = layer(x).features, layer.eval()(x).features
    assert trained.equal(evaluated)
    assert trained.min() > 50


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_autocast_on_a_gpu_is_float16_as_in_spconv():
    x = sparse(device="cuda", dtype=torch.float)
    layer = spconv.SubMConv3d(4, 8, 3).cuda()
    exact = layer(x).features
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cuda", dtype):
            out = layer(x).features
        assert out.dtype == torch.float16
        torch.testing.assert_close(out.float(), exact, rtol=1e-2, atol=1e-2)
    out.float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_float32_is_exact_unless_tf32_is_allowed(monkeypatch):
    x = sparse(channels=64, device="cuda", dtype=torch.float)
    layer = spconv.SubMConv3d(64, 64, 3).cuda()
    exact = copy.deepcopy(layer).double()(x.replace_feature(x.features.double())).features
    monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
    upstream = torch.randn_like(exact)
    (right,) = torch.autograd.grad(exact, x.features, upstream)
    for allowed, error in ((False, 2e-5), (True, 2e-2)):
        monkeypatch.setattr(constants, "SPCONV_ALLOW_TF32", allowed)
        out = layer(x).features
        assert (out - exact).abs().max() < error
        (grad,) = torch.autograd.grad(out, x.features, upstream.float())
        assert (grad - right).abs().max() < error
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_voxels_are_numbered_by_their_first_point_and_come_in_zyx():
    make = PointToVoxel([1.0, 1, 2], [0, 0, 0, 4, 3, 6], 4, max_num_voxels=3, max_num_points_per_voxel=2)
    points = torch.tensor(
        [[3.5, 2.5, 5, 10], [0.5, 0, 0, 11], [9, 0, 0, 12],
         [3.1, 2.1, 4, 13], [3.2, 2.2, 4, 14], [1, 1, 1, 15], [2, 1, 1, 16]]
    )  # fmt: skip
    voxels, indices, count, owner = make.generate_voxel_with_id(points)
    assert make.grid_size == [3, 3, 4]
    assert indices.tolist() == [[2, 2, 3], [0, 0, 0], [0, 1, 1]]
    assert count.tolist() == [2, 1, 1]
    assert voxels[0].equal(points[[0, 3]])
    assert voxels[1, 1].tolist() == [0] * 4
    assert owner.tolist() == [0, 1, -1, 0, 0, 2, -1]
    mean, *_ = make(points, empty_mean=True)
    assert mean[1, 1].equal(points[1])
    labels = gather_features_by_pc_voxel_id(torch.tensor([5, 6, 7]), owner, invalid_value=-9)
    assert labels.tolist() == [5, 6, -9, 5, 5, 7, -9]
    none = make(points[:0])
    assert [len(x) for x in none] == [0, 0, 0]


@pytest.mark.parametrize(
    ("size", "span", "grid"),
    [
        # Measured with spconv 2.3.8. In exact arithmetic each of these has 2.5 or 3.5 cells.
        ([0.6, 0.05], [-1.6, -0.9, 0.5, 0.7], [32, 3]),
        ([0.48, 0.36, 0.57], [-0.3, -0.8, -0.7, 0.8, 0.1, 1.5], [4, 3, 2]),
        ([0.39, 0.44, 0.17], [-0.8, -0.9, -1.1, 0.4, 0.2, 1.9], [18, 3, 3]),
    ],
)
def test_a_grid_has_as_many_cells_as_spconvs(size, span, grid):
    assert PointToVoxel(size, span, len(size), 10, 5).grid_size == grid


def test_openpcdets_voxel_generator_takes_and_gives_numpy():
    make = utils.Point2VoxelCPU3d(
        vsize_xyz=[0.5] * 3, coors_range_xyz=[0, 0, 0, 4, 4, 4], num_point_features=4, max_num_points_per_voxel=5,
        max_num_voxels=1000,
    )  # fmt: skip
    points = np.random.default_rng(0).uniform(0, 4, (200, 4)).astype(np.float32)
    voxels, indices, count = (x.numpy() for x in make.point_to_voxel(tensorview.from_numpy(points)))
    assert (np.floor(voxels[np.arange(len(count)), 0, :3] / 0.5)[:, ::-1] == indices).all()
    assert (count >= 1).all()


def test_random_sparse_data_agrees_with_its_dense_form():
    np.random.seed(0)
    data = test_utils.generate_sparse_data([5, 6, 7], [30, 20], 3)
    sites = data["indices"][:, [3, 0, 1, 2]]
    x = spconv.SparseConvTensor(torch.from_numpy(data["features"]), torch.from_numpy(sites), [5, 6, 7], 2)
    assert (x.dense().numpy() == data["features_dense"]).all()
    assert test_utils.params_grid([1, 2], [3, 4]) == [[1, 3], [1, 4], [2, 3], [2, 4]]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [([3, 1, 3], [2, 1, 2], [1, 0, 1], 1), ([2, 3, 1], [3, 2, 1], [0, 1, 0], [1, 2, 1]), (2, 3, 2, 2)],
)
def test_every_axis_may_have_settings_of_its_own(kernel, stride, padding, dilation, device):
    x = sparse(device=device)
    layer = spconv.SparseConv3d(4, 6, kernel, stride, padding, dilation).to(device).double()
    theirs = F.conv3d(x.dense(), dense_weight(layer), layer.bias, stride, padding, dilation)
    out = layer(x)
    assert out.spatial_shape == list(theirs.shape[2:])
    expected = theirs.movedim(1, -1)[tuple(out.indices.long().t())]
    compare(out.features, expected, [x.features, layer.weight, layer.bias])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation"), [(2, None, 0, 1), (3, 2, 1, 1), (3, 1, 0, 2)])
def test_pools_of_any_dimension_see_what_dense_pools_see(ndim, kernel, stride, padding, dilation, device):
    x = sparse(ndim, device=device)
    filled = x.dense().masked_fill(x.replace_feature(torch.ones_like(x.features)).dense() == 0, -torch.inf)
    theirs = getattr(F, f"max_pool{ndim}d")(filled, kernel, stride, padding, dilation)
    out = getattr(spconv, f"SparseMaxPool{ndim}d")(kernel, stride, padding, dilation)(x)
    assert out.spatial_shape == list(theirs.shape[2:])
    assert int((theirs[:, 0] > -torch.inf).sum()) == len(out.indices)
    # Where all are negative, spconv's result is 0.
    compare(out.features, theirs.clamp(min=0).movedim(1, -1)[tuple(out.indices.long().t())], [x.features])


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
def test_an_inverse_convolution_of_any_dimension_is_the_transpose(ndim):
    x = sparse(ndim, channels=3)
    down = getattr(spconv, f"SparseConv{ndim}d")(3, 2, 2, 2, bias=False, indice_key="down").double()
    up = getattr(spconv, f"SparseInverseConv{ndim}d")(2, 3, 2, indice_key="down", bias=False).double()
    with torch.no_grad():
        up.weight.copy_(down.weight.transpose(0, -1))
    low = down(x)
    back = up(low)
    assert back.indices.equal(x.indices)
    # <down(x), y> = <x, up(y)>
    y = torch.randn_like(low.features)
    left, right = (low.features * y).sum(), (x.features * up(low.replace_feature(y)).features).sum()
    torch.testing.assert_close(left, right)


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_classes_say_their_dimension_and_can_be_pickled(axes):
    for name in (
        "SparseConv",
        "SparseConvTranspose",
        "SparseInverseConv",
        "SubMConv",
        "SparseMaxPool",
        "SparseAvgPool",
    ):
        kind = getattr(spconv, f"{name}{axes}d")
        assert kind.axes == axes
        assert kind.__name__ == f"{name}{axes}d"
        assert pickle.loads(pickle.dumps(kind)) is kind
    assert getattr(utils, f"Point2VoxelCPU{axes}d").axes == axes


def test_a_voxel_generator_of_another_dimension_is_refused():
    with pytest.raises(AssertionError, match=r"Point2VoxelCPU2d.*3"):
        utils.Point2VoxelCPU2d([1, 1, 1], [0] * 6, 3, 10, 5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_sum_keeps_the_order_and_the_keys_of_a_tensor_with_all_sites(device):
    x = spconv.SubMConv3d(4, 4, 3, indice_key="a").to(device, torch.double)(sparse(device=device))
    part = x.select_by_index(torch.arange(0, len(x.indices), 3, device=device))
    for total in (sparse_add(part, x), sparse_add(x, part)):
        assert total.indices is x.indices
        assert total.find_indice_pair("a") is x.find_indice_pair("a")
        torch.testing.assert_close(total.dense(), x.dense() + part.dense())
    twice, _ = repeated(device)
    shorter = twice.select_by_index(torch.arange(50, device=device))
    torch.testing.assert_close(
        sparse_add(twice, shorter).features.sum(0), (twice.features.sum(0) + shorter.features.sum(0))
    )


@pytest.mark.parametrize("device", DEVICES)
def test_tables_of_pairs_are_convolved_and_pooled(device):
    x = sparse(device=device)
    layer = spconv.SparseConv3d(4, 5, 3, 2, indice_key="a").to(device, torch.double)
    back = spconv.SparseInverseConv3d(5, 4, 3, indice_key="a", bias=False).to(device, torch.double)
    y = layer(x)
    settings = ([3] * 3, [2] * 3, [0] * 3, [1] * 3, [0] * 3)
    sites, *tables = get_indice_pairs(x.indices, 2, x.spatial_shape, spconv.ConvAlgo.Native, *settings)
    assert sites.equal(y.indices)
    timer = tools.CUDAKernelTimer(False)
    plain = functional.indice_conv(x.features, layer.weight, *tables, len(sites), layer.algo, timer, layer.bias)
    compare(plain, y.features, (x.features, layer.weight, layer.bias))
    assert ops.indice_conv(x.features, layer.weight, *tables, len(sites), bias=layer.bias).equal(plain)
    inverse = functional.indice_inverse_conv(plain, back.weight, *tables, len(x.indices))
    compare(inverse, back(y).features, (x.features, back.weight))
    assert ops.indice_conv(plain, back.weight, *tables, len(x.indices), inverse=True).equal(inverse)
    assert functional.indice_maxpool(x.features, *tables, len(sites)).equal(spconv.SparseMaxPool3d(3, 2)(x).features)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_hash_table_answers_with_the_last_value_of_a_key(dtype, device):
    def numbers(*values):
        return torch.tensor(values, dtype=dtype, device=device)

    table = HashTable(torch.device(device), dtype, torch.int32, 16)
    assert table.query(numbers(1))[1].tolist() == [True]
    table.insert(numbers(7, -3, 7), numbers(1, 2, 3))
    values, missing = table.query(numbers(-3, 5, 7))
    assert values[[0, 2]].tolist() == [2, 3]
    assert values.dtype == torch.int32
    assert missing.tolist() == [False, True, False]
    assert table.insert_exist_keys(numbers(5, 7), numbers(8, 9)).tolist() == [1, 0]
    keys, values, count = table.items()
    assert (keys[: int(count)].tolist(), values[: int(count)].tolist()) == ([-3, 7], [2, 9])
    table.insert(numbers(5))
    assert int(table.assign_arange_()) == 3
    assert sorted(table.query(numbers(5, 7, -3))[0].tolist()) == [0, 1, 2]


def test_duplicates_are_removed():
    x, rows = repeated()
    y = RemoveDuplicate()(x)
    distinct = int(rows.max()) + 1
    torch.testing.assert_close(y.dense(), spconv.SparseConvTensor(
        x.features[:distinct], x.indices[:distinct], x.spatial_shape, x.batch_size
    ).dense())  # fmt: skip


def test_a_layer_that_records_counts_loads_checkpoints_without_them():
    layer = spconv.SparseConv3d(4, 5, 3, record_voxel_count=True)
    plain = spconv.SparseSequential(spconv.SparseConv3d(4, 5, 3))
    spconv.SparseSequential(layer).load_state_dict(plain.state_dict())
    assert layer.weight.equal(plain.state_dict()["0.weight"])
    assert layer.weight_shape == [5, 3, 3, 3, 4]
    assert layer.extra_repr().endswith("output_padding=[0, 0, 0], algo=ConvAlgo.MaskImplicitGemm")
    copy.deepcopy(layer).load_state_dict(plain[0].state_dict())
