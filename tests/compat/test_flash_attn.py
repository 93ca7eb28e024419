"""Attention of ragged sequences is attention of each sequence by itself."""

import pytest
import torch
from devices import DEVICES
from torch.nn.functional import scaled_dot_product_attention

from gridless.compat import flash_attn
from gridless.compat.flash_attn import (
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)

LENGTHS = [4, 7, 4, 1, 0, 7]


def bounds(lengths, device="cpu"):
    return torch.tensor([0, *lengths], device=device).cumsum(0).int()


def by_loop(qkv, splits, **options):
    parts = []
    for a, b in zip(splits[:-1].tolist(), splits[1:].tolist()):
        q, k, v = qkv[a:b].permute(1, 2, 0, 3)
        parts.append(scaled_dot_product_attention(q, k, v, **options).transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lengths", [LENGTHS, [5, 5, 5]])
@pytest.mark.parametrize("causal", [False, True])
def test_each_sequence_attends_to_itself(lengths, causal, device):
    qkv = torch.randn(sum(lengths), 3, 2, 8, device=device, dtype=torch.double, requires_grad=True)
    splits = bounds(lengths, device)
    ours = flash_attn_varlen_qkvpacked_func(qkv, splits, max(lengths), softmax_scale=0.3, causal=causal)
    theirs = by_loop(qkv, splits, scale=0.3, is_causal=causal)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn_like(ours)
    (a,) = torch.autograd.grad(ours, qkv, upstream)
    (b,) = torch.autograd.grad(theirs, qkv, upstream)
    torch.testing.assert_close(a, b)
    again = flash_attn_varlen_qkvpacked_func(qkv, splits, max(lengths), softmax_scale=0.3, causal=causal)
    assert again.equal(ours)


def test_half_precision_stays_half():
    qkv = torch.randn(10, 3, 2, 8).half()
    ours = flash_attn_varlen_qkvpacked_func(qkv, bounds([5, 5]), 5)
    assert ours.dtype == torch.half
    torch.testing.assert_close(ours.float(), by_loop(qkv.float(), bounds([5, 5])), rtol=2e-3, atol=2e-3)


def test_queries_and_keys_may_differ_in_length_and_heads():
    q, k, v = torch.randn(5, 4, 8), torch.randn(9, 2, 8), torch.randn(9, 2, 8)
    lengths = (bounds([2, 3]), bounds([6, 3]), 3, 6)
    ours = flash_attn_varlen_func(q, k, v, *lengths, causal=True)
    keys, values = (x[6:].repeat_interleave(2, 1).transpose(0, 1) for x in (k, v))
    torch.testing.assert_close(
        ours[2:], scaled_dot_product_attention(q[2:].transpose(0, 1), keys, values, is_causal=True).transpose(0, 1)
    )
    # The last query sees all keys, the one before it all but the last.
    mask = torch.ones(2, 6, dtype=torch.bool).tril(4)
    keys, values = (x[:6].repeat_interleave(2, 1).transpose(0, 1) for x in (k, v))
    torch.testing.assert_close(
        ours[:2], scaled_dot_product_attention(q[:2].transpose(0, 1), keys, values, attn_mask=mask).transpose(0, 1)
    )
    packed = flash_attn_varlen_kvpacked_func(q, torch.stack([k, v], 1), *lengths, causal=True)
    assert packed.equal(ours)


def test_dropout_drops_weights_of_attention():
    qkv = torch.randn(64, 3, 2, 8)
    torch.manual_seed(0)
    ours = flash_attn_varlen_qkvpacked_func(qkv, bounds([32, 32]), 32, dropout_p=0.5)
    torch.manual_seed(0)
    again = flash_attn_varlen_qkvpacked_func(qkv, bounds([32, 32]), 32, dropout_p=0.5)
    assert ours.equal(again)
    assert not torch.allclose(ours, by_loop(qkv, bounds([32, 32])))


def test_what_is_not_covered_is_refused_by_name():
    qkv = torch.randn(4, 3, 1, 8)
    flash_attn_varlen_qkvpacked_func(qkv, bounds([4]), 4, deterministic=True, window_size=(-1, -1))
    with pytest.raises(NotImplementedError, match="softcap"):
        flash_attn_varlen_qkvpacked_func(qkv, bounds([4]), 4, softcap=3.0)


def test_arguments_after_causal_may_be_given_by_position():
    qkv, ends = torch.randn(9, 3, 2, 4), torch.tensor([0, 4, 9], dtype=torch.int32)
    expected = flash_attn_varlen_qkvpacked_func(qkv, ends, 5)
    given = flash_attn_varlen_qkvpacked_func(qkv, ends, 5, 0.0, None, False, (-1, -1), 0.0, None, True)
    assert given.equal(expected)
    with pytest.raises(NotImplementedError, match="window_size"):
        flash_attn_varlen_qkvpacked_func(qkv, ends, 5, 0.0, None, False, (4, 4))


def test_arguments_that_do_not_exist_are_refused():
    qkv, ends = torch.randn(4, 3, 2, 8), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(TypeError, match="'casual'"):
        flash_attn.flash_attn_varlen_qkvpacked_func(qkv, ends, 4, casual=True)
    more = (0.0, None, False, (-1, -1), 0.0, None, False, False, None)
    flash_attn.flash_attn_varlen_qkvpacked_func(qkv, ends, 4, *more)
    with pytest.raises(TypeError, match="too many"):
        flash_attn.flash_attn_varlen_qkvpacked_func(qkv, ends, 4, *more, 1)
