"""Multi-head attention in the ways that PyTorch programs write it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from models.gpt2.pytorch import model as gpt2

BATCH, LENGTH, WIDTH, HEADS = 2, 6, 8, 2
Core = Callable[["Attention", torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Mixes values; its arguments are the layer, queries, keys and values by heads, and the padding mask."""


class Attention(nn.Module):
    """One projection to queries, keys and values, a core, and the output projection."""

    def __init__(self, core: Core, key_heads: int = HEADS) -> None:
        super().__init__()
        self.core, self.key_heads = core, key_heads
        self.project = nn.Linear(WIDTH, WIDTH + 2 * key_heads * WIDTH // HEADS)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.0)
        self.register_buffer("lower", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))
        self.register_buffer("later", torch.triu(torch.ones(LENGTH, LENGTH), diagonal=1).bool())
        self.lower: torch.Tensor
        self.later: torch.Tensor

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        size = WIDTH // HEADS
        parts = self.project(x).split([WIDTH, self.key_heads * size, self.key_heads * size], dim=2)
        q, k, v = (part.view(*x.shape[:2], -1, size).transpose(1, 2) for part in parts)
        mixed = self.core(self, q, k, v, mask).transpose(1, 2).contiguous().view(x.shape)
        out: torch.Tensor = self.out(mixed)
        return out


def _fill_by_lower_triangle(m, q, k, v, mask):  # type: ignore[no-untyped-def]
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(m.lower[:, :, :LENGTH, :LENGTH] == 0, float("-inf"))
    return m.drop(functional.softmax(att, dim=-1)) @ v


def _fill_in_place(m, q, k, v, mask):  # type: ignore[no-untyped-def]
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    scores.masked_fill_(m.later, -torch.inf)
    return torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, dim=-1), v)


def _add_padding_mask(m, q, k, v, mask):  # type: ignore[no-untyped-def]
    extended = (1.0 - mask[:, None, None, :].to(q.dtype)) * torch.finfo(q.dtype).min
    weights = nn.functional.softmax(torch.matmul(q, k.transpose(2, 3)) / math.sqrt(4) + extended, dim=-1)
    return torch.matmul(weights, v)


def _select_by_causal_mask(m, q, k, v, mask):  # type: ignore[no-untyped-def]
    causal = torch.ones((LENGTH, LENGTH), dtype=torch.uint8, device=q.device).tril().bool()
    least = torch.full([], torch.finfo(q.dtype).min, dtype=q.dtype, device=q.device)
    return torch.where(causal, q @ k.mT * 0.5, least).softmax(-1) @ v


def _fill_by_padding_mask(m, q, k, v, mask):  # type: ignore[no-untyped-def]
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    repeated = (mask > 0).unsqueeze(1).repeat(1, LENGTH, 1).unsqueeze(1)
    return torch.matmul(m.drop(functional.softmax(scores.masked_fill(repeated == 0, -1e9), dim=-1)), v)


def _merge_batch_and_heads(m, q, k, v, mask):  # type: ignore[no-untyped-def]
    q, k, v = (x.reshape(BATCH * HEADS, LENGTH, -1) for x in (q * 0.5, k, v))
    causal = torch.full((LENGTH, LENGTH), -1e9, device=q.device).triu(1)
    return torch.bmm((torch.bmm(q, k.transpose(1, 2)) + causal).softmax(2), v).view(BATCH, HEADS, LENGTH, -1)


def _call_function(**settings):  # type: ignore[no-untyped-def]
    return lambda m, q, k, v, mask: functional.scaled_dot_product_attention(q, k, v, **settings)


def _call_function_with_flags(m, q, k, v, mask):  # type: ignore[no-untyped-def]
    return functional.scaled_dot_product_attention(q, k, v, mask[:, None, None, :] > 0)


def _call_function_with_numbers(m, q, k, v, mask):  # type: ignore[no-untyped-def]
    bias = torch.zeros(mask.shape, device=mask.device).masked_fill(mask == 0, -1e9)[:, None, None]
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=0.4)


class Multihead(nn.Module):
    """PyTorch's layer with a causal mask."""

    def __init__(self, **settings: bool) -> None:
        super().__init__()
        self.layer, self.settings = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), settings

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(x.size(1), device=x.device)
        mixed: torch.Tensor = self.layer(x, x, x, attn_mask=causal, **self.settings)[0]
        return mixed


class Encoder(nn.Module):
    """PyTorch's encoder, which inspects the values of its mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 16, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(x.size(1), device=x.device)
        encoded: torch.Tensor = self.layers(x, mask=causal)
        return encoded


class ExampleAttention(nn.Module):
    """The layer of the GPT-2 example: queries, keys and values are parts of one tensor of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = gpt2.Attention(WIDTH, HEADS, 0.0)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.layer(x)
        return mixed


ATTENTIONS: dict[str, Callable[[], nn.Module]] = {
    "lower triangle": lambda: Attention(_fill_by_lower_triangle),
    "filled in place": lambda: Attention(_fill_in_place),
    "added padding mask": lambda: Attention(_add_padding_mask),
    "selected by causal mask": lambda: Attention(_select_by_causal_mask),
    "filled by padding mask": lambda: Attention(_fill_by_padding_mask),
    "batch and heads merged": lambda: Attention(_merge_batch_and_heads),
    "causal function": lambda: Attention(_call_function(is_causal=True)),
    "function with flags": lambda: Attention(_call_function_with_flags),
    "function with numbers": lambda: Attention(_call_function_with_numbers),
    "grouped queries": lambda: Attention(_call_function(is_causal=True, enable_gqa=True), key_heads=1),
    "layer": lambda: Multihead(),
    "layer without weights": lambda: Multihead(need_weights=False, is_causal=True),
    "encoder": lambda: Encoder(),
    "example": lambda: ExampleAttention(),
}
"""Layers of `[batch, length, width]` and a padding mask `[batch, length]` of ones for tokens."""

FULLY_MASKED = ("function with flags", "filled by padding mask")
"""Those that define the result of a sample without any token."""


class CausalSelfAttention(nn.Module):
    """Causal attention in products, with a projection each for queries, keys, values and outputs."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self.o(mixed.transpose(1, 2).reshape(x.shape))


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class RotaryAttention(nn.Module):
    """Causal attention with rotary embeddings and grouped queries."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head_dim = heads, key_heads, width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wkv = nn.Linear(width, 2 * key_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(width, width, bias=False)
        inv_freq = 1.0 / (10000 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.inv_freq: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        kv = self.wkv(x).view(b, t, 2, self.key_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        k, v = kv.unbind(0)
        steps = torch.arange(t, device=x.device, dtype=self.inv_freq.dtype)
        freqs = torch.einsum("i,j->ij", steps, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        q, k = (z * emb.cos() + rotate_half(z) * emb.sin() for z in (q, k))
        repeats = self.heads // self.key_heads
        k = k[:, :, None].expand(b, self.key_heads, repeats, t, self.head_dim).reshape(b, self.heads, t, -1)
        v = torch.repeat_interleave(v, repeats, dim=1)
        mask = torch.triu(torch.full((t, t), float("-inf"), device=x.device), diagonal=1)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(self.head_dim) + mask
        probs = functional.softmax(scores.float(), dim=-1).type_as(q)
        out: torch.Tensor = self.wo(torch.matmul(probs, v).transpose(1, 2).contiguous().view(b, t, -1))
        return out
