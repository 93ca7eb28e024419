"""flash-attn's functions of ragged sequences, by PyTorch's own attention: on every device, for every dtype.

Sequence i of a batch is rows `cu_seqlens[i]` to `cu_seqlens[i + 1] - 1`. Sequences of one length are computed in one
call. Only what the public point networks use is covered: dropout, `softmax_scale` and `causal`; windows, soft caps and
slopes are refused by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func"]

# The release whose interface this is.
__version__ = "2.8.3"

# Arguments that change the result, with the values that do not.
_NEUTRAL = {
    "window_size": (-1, -1),
    "softcap": 0.0,
    "alibi_slopes": None,
    "return_attn_probs": False,
    "block_table": None,
}

# The order of the arguments after `causal`.
_POSITIONS = ("window_size", "softcap", "alibi_slopes", "deterministic", "return_attn_probs", "block_table")


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    *more: Any,
    **options: Any,
) -> Tensor:
    """Attention within each sequence: qkv (rows, 3, heads, channels) to (rows, heads, channels).

    Args:
        cu_seqlens: (sequences + 1), where each sequence begins, and the number of rows.
        max_seqlen: the longest sequence; not needed, and not checked.
        dropout_p: the probability with which an attention weight becomes 0; pass 0 in evaluation.
        softmax_scale: the factor of the scores; 1 / sqrt(channels) by default.
        causal: a row attends to itself and the rows before it.
        more, options: others of flash-attn, at their defaults, by position or by name.
    """
    query, key, value = qkv.unbind(1)
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(query, key, value, *lengths, dropout_p, softmax_scale, causal, *more, **options)


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, *args: Any,
    **options: Any,
) -> Tensor:  # fmt: skip
    """Attention of the rows of q to those of kv (rows, 2, heads, channels); others as of `flash_attn_varlen_func`."""
    key, value = kv.unbind(1)
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return flash_attn_varlen_func(q, key, value, *lengths, *args, **options)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    *more: Any,
    **options: Any,
) -> Tensor:
    """Attention of each sequence of q (rows, heads, channels) to the same sequence of k and v; (rows, heads, channels).

    k and v may have fewer heads, each for several heads of q. With `causal` the last rows of both are aligned. Other
    arguments are as of `flash_attn_varlen_qkvpacked_func`.
    """
    if len(more) > len(_POSITIONS):
        raise TypeError(f"flash_attn: {len(more) - len(_POSITIONS)} arguments too many.")
    _refuse(dict(zip(_POSITIONS, more)) | options)
    starts = [cu_seqlens_q[:-1].long(), cu_seqlens_k[:-1].long()]
    lengths = torch.stack([cu_seqlens_q.diff(), cu_seqlens_k.diff()], 1).long()
    pairs, group = lengths.unique(dim=0, return_inverse=True)
    out, rows = [q[:0]], [cu_seqlens_q[:0].long()]
    for number, (size_q, size_k) in enumerate(pairs.tolist()):
        members = (group == number).nonzero().flatten()
        row_q, row_k = (
            (start[members, None] + torch.arange(size, device=q.device)).flatten()
            for start, size in zip(starts, (size_q, size_k))
        )
        query, key, value = (_sequences(x, row, len(members)) for x, row in ((q, row_q), (k, row_k), (v, row_k)))
        mask = _aligned(size_q, size_k, q.device) if causal else None
        part = scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout_p, scale=softmax_scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        # A row that may attend to nothing is 0.
        part = part.nan_to_num(0.0) if causal and size_q > size_k else part
        out.append(part.transpose(1, 2).reshape(-1, *q.shape[1:-1], v.shape[-1]))
        rows.append(row_q)
    if len(out) == 2 and len(rows[1]) == len(q):
        return out[1]
    row = torch.cat(rows)
    return torch.cat(out)[torch.empty_like(row).scatter_(0, row, torch.arange(len(row), device=q.device))]


def _sequences(x: Tensor, row: Tensor, count: int) -> Tensor:
    """Rows of sequences of one length as (sequences, heads, length, channels)."""
    x = x if len(row) == len(x) else x[row]
    return x.reshape(count, -1, *x.shape[1:]).transpose(1, 2)


def _aligned(size_q: int, size_k: int, device: torch.device) -> Tensor:
    """Mask of the keys that each query sees, with the last query aligned to the last key."""
    return torch.ones(size_q, size_k, dtype=torch.bool, device=device).tril(size_k - size_q)


def _refuse(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name not in _POSITIONS:
            raise TypeError(f"flash_attn: there is no argument {name!r}. Others are {', '.join(_POSITIONS)}.")
        if name in _NEUTRAL and value != _NEUTRAL[name]:
            raise NotImplementedError(f"flash_attn: {name}={value!r} is not covered. Leave it at {_NEUTRAL[name]!r}.")
