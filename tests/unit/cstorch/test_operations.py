"""Operations of PyTorch and their gradients against eager, compiled in groups of cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import cstorch
from cgc.cirh.module import verify_module
from cgc.importers.aten import import_step
from cgc.lowering.interpret import step_function
from cstorch.errors import StepError
from cstorch.tracing.device import DeviceTensor
from cstorch.tracing.step import trace
from cstorch.tracing.values import to_array

GROUP = 20
"""Number of cases that are compiled together."""


@dataclass(frozen=True)
class Case:
    """A function of tensors; with `gradient` also its gradient by those that are floats or complex."""

    name: str
    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]
    gradient: bool = True
    tolerance: float = 1e-5

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results, then the gradients of their weighted sum."""
        wanted = [
            x.clone().requires_grad_() if self.gradient and (x.is_floating_point() or x.is_complex()) else x
            for x in tensors
        ]
        outs = _real(self.function(*wanted))
        terms = [_weighted_sum(out) for out in outs if out.requires_grad]
        found = [out.detach() for out in outs]
        if terms:
            by = [x for x in wanted if x.requires_grad]
            gradients = torch.autograd.grad(sum(terms), by, allow_unused=True)
            found += _real([gradient for gradient in gradients if gradient is not None])
        return found


def _real(found: Any) -> list[torch.Tensor]:
    """Results as a list, complex ones as pairs."""
    listed = found if isinstance(found, tuple | list) else (found,)
    return [torch.view_as_real(x.resolve_conj()) if x.is_complex() else x for x in listed]


def _weighted_sum(x: torch.Tensor) -> torch.Tensor:
    weights = torch.cos(torch.arange(x.numel(), dtype=torch.float32)).reshape(x.shape).to(x.device)
    return (x.float() * weights).sum()


def _randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=dtype)


def _complexes(*shape: int, seed: int = 0) -> torch.Tensor:
    return _randn(*shape, seed=seed, dtype=torch.complex64)


X = _randn(4, 6)
TIES = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [5.0, 5.0, 4.0, 6.0, 6.0]])
INDEX = torch.tensor([[0, 1, 1, 3], [2, 2, 0, 0], [1, 1, 1, 1]])
ROWS = torch.tensor([0, 2, 0])


def cases() -> list[Case]:
    """All cases, the same ones in every call."""
    found = [
        *(*_scans(), *_combined(), *_distances(), *_pools(), *_samples(), *_counts()),
        *(*_numbers(), *_choices(), *_resized(), *_complex_products()),
        *(*_complex(), *_complex_parts(), *_fourier(), *_integers(), *_matrices(), *_alignments()),
        *_jacobians(),
    ]
    assert len({case.name for case in found}) == len(found)
    return found


def _jacobians() -> Iterator[Case]:
    """Gradients of activations in `vmap`, which has axes that the inputs lack."""
    for activation in (functional.relu, functional.gelu, functional.leaky_relu, torch.sigmoid, torch.tanh):
        jacobian = torch.func.jacrev(lambda x, f=activation: f(x).cumsum(-1))
        yield Case(f"jacobian of {activation.__name__}", jacobian, (X[0],))


def _integers() -> Iterator[Case]:
    """Quotients of integers, and numbers of 16 bits, which wrap around."""
    large = torch.tensor([[70000, -70000, 32768], [-32769, 5, -5]], dtype=torch.int32)
    signed = torch.tensor([-7, -6, -1, 0, 5, 7])
    for divisor in (3, -3):
        for mode in ("trunc", "floor"):
            yield Case(
                f"{mode} by {divisor}",
                lambda a, d=divisor, m=mode: torch.div(a, d, rounding_mode=m),
                (signed,),
            )
    yield Case("int16 pairs", lambda a: (a / 2).to(torch.int16).float(), (10 * X,), gradient=False)
    yield Case("int16 of int32", lambda a: a.to(torch.int16).to(torch.int32), (large,))
    yield Case("int16 square", lambda a: (a.to(torch.int16) * a.to(torch.int16) + 1).int(), (large,))


def _scans() -> Iterator[Case]:
    for name in ("cummax", "cummin"):
        function = getattr(torch, name)
        yield Case(f"{name} ties", lambda a, f=function: f(a, 1), (TIES,))
        yield Case(f"{name} first axis", lambda a, f=function: f(a, -2), (X,))
        yield Case(f"{name} integers", lambda a, f=function: f(a, 0), (torch.tensor([3, 1, 4, 1, 5]),))
        yield Case(f"{name} number", lambda a, f=function: f(a, 0), (torch.tensor(3.0),))
        nans = torch.tensor([3.0, math.nan, 4.0])
        yield Case(f"{name} nan", lambda a, f=function: f(a, 0), (nans,), gradient=False)
        yield Case(f"{name} empty", lambda a, f=function: f(a, 1), (torch.zeros(2, 0),))
    yield Case("logcumsumexp", lambda a: torch.logcumsumexp(a, 1), (5 * X,))
    infinite = torch.tensor([-math.inf, 1.0, 2.0])
    yield Case("logcumsumexp inf", lambda a: torch.logcumsumexp(a, 0), (infinite,), gradient=False)


def _numbers() -> Iterator[Case]:
    """Tensors without dimensions, along an axis of which they are the only element."""
    of_number: dict[str, Callable[[torch.Tensor], Any]] = {
        "softmax": lambda a: (a.softmax(0), a.log_softmax(-1)),
        "kthvalue": lambda a: a.kthvalue(1, 0),
        "sort": lambda a: (*a.sort(0), *a.topk(1)),
        "amax": lambda a: (a.amax(0), a.aminmax(dim=0).max),
        "index_select": lambda a: a.index_select(0, torch.tensor([0])),
        "margins": lambda a: (
            functional.multi_margin_loss(a, torch.tensor(0)),
            functional.multilabel_margin_loss(a, torch.tensor(0)),
        ),
    }
    for name, function in of_number.items():
        yield Case(f"{name} of a number", function, (torch.tensor(3.0),))


def _choices() -> Iterator[Case]:
    """Choices by signs, NaN and places; rows drawn of which only one can be."""
    nans = torch.tensor([[1.0, math.nan, 3.0], [math.nan, math.nan, -0.0]])
    other = torch.tensor([[2.0, 1.0, math.nan], [math.nan, -1.0, 0.0]])
    for name in ("fmax", "fmin"):
        yield Case(name, getattr(torch, name), (nans, other))
    infinite = torch.tensor([-math.inf, -math.inf, math.inf, 1.0])
    other = torch.tensor([-math.inf, 2.0, math.inf, -math.inf])
    yield Case("logaddexp of infinities", torch.logaddexp, (infinite, other), gradient=False)
    yield Case("windows of windows", lambda a: a.unfold(0, 2, 1).unfold(1, 3, 2), (X,))
    yield Case(
        "windows of other views",
        lambda a: (a.T.unfold(0, 3, 2), a.T.unfold(1, 2, 2), a[0, 0].unfold(0, 1, 1)),
        (X,),
    )
    yield Case(
        "diagonals of views",
        lambda a: (a.T.diagonal(1), a[:, ::2].diagonal(), a.T.unfold(0, 3, 1).diagonal(0, 1, 2)),
        (X,),
    )
    yield Case("nanmedian", torch.nanmedian, (nans,))
    yield Case("nanmedian of nothing", lambda a: torch.nanmedian(a * math.nan), (X,), gradient=False)
    yield Case("nanmedian of rows", lambda a: a.nanmedian(1, keepdim=True).values, (nans.T,))
    yield Case("nanmedian of columns", lambda a: tuple(a.nanmedian(0)), (X,))
    yield Case("nonzero_static", lambda a: (a > 0).nonzero_static(size=9, fill_value=-2), (X,))
    yield Case("nonzero_static of more", lambda a: (a > 1).nonzero_static(size=30), (X,))
    yield Case(
        "repeat_interleave",
        lambda a, n: a.repeat_interleave(n, 0, output_size=7),
        (X, torch.tensor([2, 0, 4, 1])),
    )
    yield Case("repeat_interleave of a number", lambda a: a.repeat_interleave(2, 1), (X,))
    yield Case(
        "repeat_interleave by numbers of the program",
        lambda a: (
            torch.repeat_interleave(a, torch.tensor([2, 0, 4, 1]), dim=0),
            a.repeat_interleave(torch.tensor([3]), 1),
            torch.arange(7) + torch.repeat_interleave(torch.tensor([2, 4, 1], device=a.device)),
        ),
        (X,),
    )
    yield Case(
        "types by their names",
        lambda a: (a.type(torch.IntTensor).type(a.type()), a.type("torch.LongTensor"), a.type(torch.int)),
        (X,),
    )
    yield Case("signbit", torch.signbit, (torch.tensor([-2.0, -0.0, 0.0, 3.0]),))
    yield Case("copysign", torch.copysign, (X, _randn(4, 6, seed=1)))
    yield Case("sgn", lambda a: torch.sgn(a) * a, (X,))
    yield Case(
        "addbmm",
        lambda a, b, c: torch.addbmm(a, b, c, beta=0.5, alpha=2),
        (X, _randn(3, 4, 5), _randn(3, 5, 6)),
    )
    yield Case("vdot", torch.vdot, (X[0], X[1]))
    yield Case("take", lambda a, i: a.take(i), (X, torch.tensor([[1, 1], [23, 4]])))
    yield Case("tensor_split", lambda a: a.tensor_split(torch.tensor([1, 4]), 1), (X,))
    yield Case("multinomial", lambda p: torch.multinomial(p, 3, True), (torch.eye(4),), gradient=False)
    yield Case("multinomial once", lambda p: torch.multinomial(p, 1), (torch.eye(4),), gradient=False)


def _resized_by_scales(x: torch.Tensor, **how: Any) -> tuple[torch.Tensor, ...]:
    scales = (7.1 / 7, 12.1 / 6), (14.1 / 7, 4.1 / 6), (9.3 / 7, 6.1 / 6)
    return tuple(functional.interpolate(x, scale_factor=scale, **how) for scale in scales)


def _resized() -> Iterator[Case]:
    x = _randn(2, 2, 7, 6)
    for mode in ("bilinear", "bicubic"):
        for size in ((3, 4), (9, 4)):
            how = {"mode": mode, "size": size, "antialias": True, "align_corners": False}
            yield Case(
                f"antialiased {mode} {size}", lambda a, how=how: functional.interpolate(a, **how), (x,)
            )
    yield Case(
        "antialiased corners",
        lambda a: functional.interpolate(a, (4, 3), mode="bilinear", antialias=True, align_corners=True),
        (x,),
    )
    # Axes keep their size, double it, or change it otherwise.
    for how in (
        {"mode": "nearest"},
        {"mode": "nearest-exact"},
        {"mode": "bilinear"},
        {"mode": "bicubic"},
        {"mode": "bilinear", "antialias": True},
    ):
        yield Case(f"by scales {how}", lambda a, how=how: _resized_by_scales(a, **how), (x,))


def _complex_products() -> Iterator[Case]:
    x = _complexes(3, 5)
    yield Case("complex prod", torch.prod, (x,))
    yield Case("complex prod along", lambda a: a.prod(1, keepdim=True), (x,))
    yield Case("complex cumprod", lambda a: a.cumprod(1), (x,))
    yield Case("complex var", lambda a: (a.var(), a.std(1), *torch.var_mean(a, 0, correction=0)), (x,))


def _combined() -> Iterator[Case]:
    index, rows = INDEX, ROWS
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for include in (True, False):
            how = {"reduce": reduce, "include_self": include}
            yield Case(
                f"scatter_reduce {reduce} {include}",
                lambda a, i, s, how=how: a.scatter_reduce(1, i, s, **how),
                (_randn(3, 5), index, _randn(3, 4)),
            )
            if reduce != "sum":
                yield Case(
                    f"index_reduce {reduce} {include}",
                    lambda a, s, how=how: a.index_reduce(1, rows, s, **how),
                    (_randn(2, 4), _randn(2, 3)),
                )
    numbers = torch.tensor([5, 6, 7]), torch.tensor([0, 0, 2]), torch.tensor([1, 4, -4])
    for reduce in ("mean", "amax"):
        yield Case(
            f"scatter_reduce integers {reduce}",
            lambda a, i, s, r=reduce: a.scatter_reduce(0, i, s, r, include_self=False),
            numbers,
        )


def _distances() -> Iterator[Case]:
    for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, math.inf):
        yield Case(f"cdist {p}", lambda a, b, p=p: torch.cdist(a, b, p), (_randn(2, 5, 4), _randn(2, 3, 4)))
    yield Case("cdist by product", torch.cdist, (_randn(30, 4), _randn(28, 4)))
    yield Case("cdist broadcast", torch.cdist, (_randn(2, 1, 5, 4), _randn(1, 3, 2, 4)))
    yield Case("cdist of itself", lambda a: torch.cdist(a, a), (_randn(5, 4),))
    yield Case("cdist empty", torch.cdist, (torch.zeros(0, 4), _randn(3, 4)))
    yield Case("pdist", functional.pdist, (_randn(5, 4),))
    yield Case("pdist 1", lambda a: functional.pdist(a, 1.0), (_randn(5, 4),))
    yield Case("renorm", lambda a: torch.renorm(a, 2, 0, 1.5), (X,))
    yield Case("renorm 1", lambda a: torch.renorm(a, 1, -2, 1.5), (_randn(3, 4, 2),))
    yield Case(
        "embedding with max_norm",
        lambda w: functional.embedding(torch.tensor([0, 2, 2]), w * 1.0, max_norm=1.0),
        (_randn(4, 6),),
        gradient=False,
    )


def _pools() -> Iterator[Case]:
    for kind in ("avg", "max"):
        for dimensions, shape in ((1, (2, 3, 5)), (2, (2, 3, 5, 4)), (3, (2, 2, 5, 4, 3))):
            function = getattr(functional, f"adaptive_{kind}_pool{dimensions}d")
            for size in (2, 7):
                name = f"{function.__name__} to {size}"
                yield Case(name, lambda a, f=function, n=size: f(a, n), (_randn(*shape),))
    for name, x in (("positions", _randn(2, 3, 5, 4)), ("ties", torch.ones(3, 5, 4))):
        yield Case(
            f"adaptive_max_pool2d {name}",
            lambda a: functional.adaptive_max_pool2d(a, (3, 7), return_indices=True),
            (x,),
        )
    yield Case(
        "adaptive_avg_pool2d of one axis",
        lambda a: functional.adaptive_avg_pool2d(a, (None, 7)),
        (_randn(3, 5, 4),),
    )


def _samples() -> Iterator[Case]:
    places = 1.3 * torch.cos(torch.arange(72.0)).reshape(2, 3, 6, 2)
    for mode, padding, align in (
        ("bilinear", "zeros", False),
        ("bilinear", "border", True),
        ("bilinear", "reflection", False),
        ("bicubic", "reflection", True),
        ("bicubic", "zeros", False),
    ):
        yield Case(
            f"grid_sample {mode} {padding} {align}",
            lambda a, g, how=(mode, padding, align): functional.grid_sample(a, g, *how),
            (_randn(2, 3, 5, 4), places),
        )
    yield Case(
        "grid_sample nearest",
        lambda a, g: functional.grid_sample(a, g, "nearest", "reflection", True),
        (_randn(2, 3, 5, 4), places),
    )
    volume = 1.3 * torch.cos(torch.arange(72.0)).reshape(2, 2, 3, 2, 3)
    yield Case(
        "grid_sample of a volume",
        lambda a, g: functional.grid_sample(a, g, align_corners=False),
        (_randn(2, 3, 5, 4, 3), volume),
    )


def _counts() -> Iterator[Case]:
    numbers = torch.tensor([1, 1, 3, 6])
    yield Case("bincount", lambda i: torch.bincount(i, minlength=7), (numbers,))
    yield Case("bincount with weights", lambda i, w: i.bincount(w, 7), (numbers, _randn(4)), gradient=False)


def _complex() -> Iterator[Case]:
    """Arithmetic and functions of complex numbers."""
    z, w = _complexes(4, 6), _complexes(4, 6, seed=1)
    binary: dict[str, Callable[..., Any]] = {
        "mul": torch.mul,
        "div": torch.div,
        "add": lambda a, b: a + 2 * b + 1 - 3j,
        "sub": lambda a, b: 2 - a - b * 1j,
        "pow": torch.pow,
        "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5),
    }
    for name, function in binary.items():
        yield Case(f"complex {name}", function, (z, w))
        yield Case(f"complex {name} real", function, (z, X.abs() + 0.5))
    unary = "abs angle exp log sqrt rsqrt reciprocal square sin cos tan sinh cosh tanh sigmoid sgn neg"
    for name in unary.split():
        yield Case(f"complex {name}", getattr(torch, name), (0.5 * z,))
    powers = (lambda a: a**3, lambda a: a**0.7, lambda a: 2 / a)
    yield Case("complex powers", lambda a: [power(a) for power in powers], (z,))
    yield Case("complex sums", lambda a: (a.sum(), a.mean(1), a.cumsum(0), a.norm()), (z,))
    products: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
        "mm": (torch.mm, (_complexes(4, 3), _complexes(3, 5))),
        "bmm": (torch.bmm, (_complexes(2, 4, 3), _complexes(2, 3, 5))),
        "adjoint": (lambda a: a @ a.mH, (_complexes(4, 3),)),
        "linear": (functional.linear, (_complexes(2, 3), _complexes(4, 3), _complexes(4))),
        "vectors": (lambda a, b: (a @ b, torch.vdot(a[0], b)), (_complexes(4, 3), _complexes(3))),
        "spectral": (
            lambda a, b: torch.einsum("bix,iox->box", a, b),
            (_complexes(2, 3, 4), _complexes(3, 2, 4)),
        ),
    }
    for name, (function, tensors) in products.items():
        yield Case(f"complex {name}", function, tensors)


def _complex_parts() -> Iterator[Case]:
    """Views of complex numbers, and what moves them."""

    def rotated(a: torch.Tensor) -> torch.Tensor:
        angles = torch.polar(torch.ones(3), torch.arange(3.0))
        return torch.view_as_real(torch.view_as_complex(a.reshape(4, 3, 2)) * angles).flatten(1)

    def written(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(4, 8, dtype=torch.complex64, device=a.device)
        out[:, :6] = a
        out[1:3, 2:] += b[:2]
        out.real.mul_(2.0)
        return out

    z, w, mask = _complexes(4, 6), _complexes(4, 6, seed=1), X > 0
    yield Case("rotary embedding", rotated, (X,))
    yield Case("polar", lambda a, b: torch.polar(a.abs() + 1, b), (X, _randn(4, 6, seed=2)))
    yield Case("complex of parts", torch.complex, (X, _randn(4, 6, seed=2)))
    yield Case("parts of complex", lambda a: (a.real * a.imag, a.conj().imag + 1, a.conj() * a), (z,))
    yield Case("complex writes", written, (z, w))
    yield Case("complex cat", lambda a, b: (torch.cat([a, b], 1), torch.stack([a, b])), (z, w))
    yield Case("complex views", lambda a: (a[1:, ::2], a.mT, a.flip(0), a.roll(1, 1), a.tril()), (z,))
    yield Case(
        "complex choices", lambda a, b, m: (torch.where(m, a, b), a.masked_fill(m, 1 - 2j)), (z, w, mask)
    )
    yield Case("complex pad", lambda a: functional.pad(a, (1, 2)), (z,))
    yield Case("complex rows", lambda a, i: (a[i], a.index_select(0, i), a.gather(0, i[:, None])), (z, ROWS))
    yield Case("complex ones", lambda a: a * torch.ones_like(a) + torch.full_like(a, 2j), (z,))
    yield Case("complex casts", lambda a: a.to(torch.complex64) * 1j, (X,))
    yield Case("complex comparisons", lambda a: (a == a, a != 1, a.isnan(), a.isfinite()), (z,))


def _fourier() -> Iterator[Case]:
    kinds = (
        ("rfft", _randn(3, 6)),
        ("fft", _complexes(3, 6)),
        ("ifft", _complexes(3, 6)),
        ("irfft", _complexes(3, 6)),
    )
    for norm, length in (("backward", None), ("ortho", 5), ("forward", 8)):
        for name, x in kinds:
            function = getattr(torch.fft, name)
            how = {"norm": norm, "n": length}
            yield Case(f"{name} {norm}", lambda a, f=function, how=how: f(a, **how), (x,))
    several = {
        "fft2": (_complexes(2, 3, 6), {}),
        "rfft2": (_randn(2, 5, 6, 3), {"dim": (1, 2), "norm": "ortho"}),
        "irfft2": (_complexes(2, 5, 4, 3), {"dim": (1, 2), "s": (5, 6)}),
        "fftn": (_randn(2, 5, 4), {"dim": (0, 2)}),
        "irfftn": (_complexes(2, 5, 4), {}),
        "hfft": (_complexes(3, 6), {}),
        "ihfft": (_randn(3, 1), {}),
    }
    for name, (x, how) in several.items():
        function = getattr(torch.fft, name)
        yield Case(name, lambda a, f=function, how=how: f(a, **how), (x,))
    yield Case(
        "mixed tokens", lambda a: torch.fft.fft(torch.fft.fft(a, dim=-1), dim=-2).real, (_randn(2, 5, 4),)
    )
    yield Case(
        "convolution by rfft",
        lambda a, k: torch.fft.irfft(torch.fft.rfft(a, n=16) * torch.fft.rfft(k, n=16), n=16)[..., :8],
        (_randn(2, 8), _randn(2, 8, seed=1)),
    )
    yield Case(
        "stft",
        lambda a, w: torch.stft(a, 8, 4, window=w, return_complex=True).abs(),
        (_randn(2, 32), torch.hann_window(8) + 0.1),
    )
    yield Case(
        "stft with a window of the CPU",
        lambda a: torch.stft(a, 8, 4, window=torch.hann_window(8), return_complex=True).abs(),
        (_randn(2, 32),),
    )


def _matrices() -> Iterator[Case]:
    """Factorizations, of which other functions of torch.linalg are made."""
    linalg = torch.linalg

    def definite(a: torch.Tensor) -> torch.Tensor:
        return a @ a.mT + torch.eye(a.size(-1), device=a.device)

    def vectors(a: torch.Tensor) -> list[torch.Tensor]:
        u, s, vt = linalg.svd(a, full_matrices=False)
        return [s, (u * s.square().unsqueeze(-2)) @ vt, u.abs()]

    a, b = _randn(2, 4, 4) + 3 * torch.eye(4), _randn(2, 4, 3)
    tall, half = _randn(2, 5, 3), _randn(2, 4, 4)
    two: dict[str, Callable[..., Any]] = {
        "solve": linalg.solve,
        "solve from the right": lambda a, b: linalg.solve(a, b.mT, left=False),
        "solve for vectors": lambda a, b: linalg.solve(a, b[..., 0]),
        "solve broadcast": lambda a, b: linalg.solve(a[0], b),
        "householder_product": lambda a, b: linalg.householder_product(a[:, :, :3], b[:, 0]),
        "orgqr": lambda a, b: torch.orgqr(a, b[:, 1, :2]),
        "lu_solve": lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b),
        "cholesky_solve": lambda a, b: torch.cholesky_solve(b, linalg.cholesky(definite(a))),
    }
    for upper, left, unit in ((False, True, False), (True, False, False), (True, True, True)):
        how = {"upper": upper, "left": left, "unitriangular": unit}
        two[f"solve_triangular {upper} {left} {unit}"] = lambda a, b, how=how: linalg.solve_triangular(
            a, b if how["left"] else b.mT, **how
        )
    for name, function in two.items():
        yield Case(name, function, (a, b), tolerance=1e-4)
    one: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
        "cholesky": (lambda x: linalg.cholesky(definite(x)), half),
        "cholesky upper": (lambda x: linalg.cholesky(definite(x), upper=True), half),
        "inv": (linalg.inv, a),
        "slogdet": (lambda x: tuple(linalg.slogdet(x)), half),
        "det": (linalg.det, half),
        "lu_factor": (lambda x: linalg.lu_factor(x)[0], half[0]),
        "qr": (lambda x: tuple(linalg.qr(x)), tall),
        "svd": (vectors, tall),
        "svdvals": (linalg.svdvals, tall.mT.contiguous()),
        "eigh": (lambda x: (linalg.eigh(definite(x))[0], linalg.eigh(definite(x))[1].abs()), half),
        "eigh upper": (lambda x: linalg.eigvalsh(x + x.mT, UPLO="U"), half),
        "pinv": (linalg.pinv, tall),
        "matrix_exp": (linalg.matrix_exp, torch.cat([0.1 * half, 3 * half])),
        "norms": (lambda x: (linalg.matrix_norm(x, "nuc"), linalg.matrix_norm(x, 2)), tall),
    }
    for name, (function, x) in one.items():
        yield Case(name, function, (x,), tolerance=2e-4)
    for name, matrix, right in (
        ("tall", tall, b[:, :1].expand(2, 5, 3).clone()),
        ("wide", tall.mT.contiguous(), _randn(2, 3, 2)),
        ("vector", tall[0], _randn(5)),
    ):
        yield Case(f"lstsq {name}", lambda a, b: linalg.lstsq(a, b).solution, (matrix, right), tolerance=2e-4)
    thin = tall[..., :1] @ tall[..., :1].mT
    ranks: dict[str, Callable[..., Any]] = {
        "matrix_rank": linalg.matrix_rank,
        "matrix_rank above": lambda x: linalg.matrix_rank(x, atol=torch.tensor([1e-5, 100.0])),
        "matrix_rank tol": lambda x: linalg.matrix_rank(x, 1e-5, hermitian=True),
        "lstsq rank": lambda x: linalg.lstsq(x, x, driver="gelsd")[1:3],
    }
    for name, function in ranks.items():
        yield Case(name, function, (thin,), gradient=False)
    yield Case("pinv limits", lambda x: linalg.pinv(x, rtol=0.5), (tall,), tolerance=2e-4)
    of_triangle = lambda x: linalg.pinv(x, hermitian=True)  # noqa: E731
    yield Case("pinv of a triangle", of_triangle, (a,), gradient=False, tolerance=2e-4)
    yield Case("pinverse", torch.pinverse, (tall[0],), tolerance=2e-4)


def _alignments() -> Iterator[Case]:
    def loss(**settings: Any) -> Callable[..., torch.Tensor]:
        return lambda x, *rest: functional.ctc_loss(x.log_softmax(-1), *rest, **settings)

    x, targets = _randn(12, 3, 5), torch.tensor([[1, 1, 2, 2], [3, 4, 1, 0], [2, 3, 0, 0]])
    lengths, counts = torch.tensor([12, 10, 7]), torch.tensor([4, 3, 0])
    yield Case("ctc_loss", loss(reduction="none"), (x, targets, lengths, counts))
    yield Case("ctc_loss blank", loss(blank=3), (x, targets // 2, lengths, counts))
    flat = torch.tensor([1, 1, 2, 2, 3, 4, 1])
    yield Case("ctc_loss in a row", loss(reduction="sum"), (x, flat, lengths, counts))
    known = lambda x, t: functional.ctc_loss(x.log_softmax(-1), t, (12, 10, 7), (4, 3, 2))  # noqa: E731
    yield Case("ctc_loss of known lengths", known, (x, targets))
    too_short = torch.tensor([12, 3, 2]), torch.tensor([4, 4, 3])
    yield Case(
        "ctc_loss without alignment", loss(zero_infinity=True, reduction="none"), (x, targets, *too_short)
    )


CASES = cases()


@pytest.fixture(scope="module")
def compiled() -> Callable[[int], list[list[np.ndarray]]]:
    """The results of a group of cases, by its number."""

    @cache
    def compiled_group(number: int) -> list[list[np.ndarray]]:
        chosen = CASES[number * GROUP :][:GROUP]
        tensors = [tensor for case in chosen for tensor in case.tensors]
        inputs = [DeviceTensor(tensor) for tensor in tensors]
        counts: list[int] = []

        def step() -> list[torch.Tensor]:
            rest, found = list(inputs), list[torch.Tensor]()
            for case in chosen:
                own, rest = rest[: len(case.tensors)], rest[len(case.tensors) :]
                results = case.run(own)
                counts.append(len(results))
                found += results
            return found

        module = import_step(trace(step, inputs, {}, []).graph, mode="infer", seed=3)
        verify_module(module)
        _, outputs = jax.jit(step_function(module))((np.int64(0),), tuple(map(to_array, tensors)))
        rest = [np.asarray(output) for output in outputs]
        assert len(rest) == sum(counts)
        return [[rest.pop(0) for _ in range(count)] for count in counts]

    return compiled_group


@pytest.mark.parametrize("index", range(len(CASES)), ids=[case.name for case in CASES])
def test_an_operation_and_its_gradient_give_eagers_numbers(
    compiled: Callable[[int], list[list[np.ndarray]]], index: int
) -> None:
    case = CASES[index]
    found = compiled(index // GROUP)[index % GROUP]
    expected = [to_array(x) for x in case.run(case.tensors)]
    assert len(found) == len(expected) > 0
    for got, wanted in zip(found, expected, strict=True):
        assert (got.shape, got.dtype.kind) == (wanted.shape, wanted.dtype.kind)
        np.testing.assert_allclose(got, wanted, rtol=case.tolerance, atol=case.tolerance)


class Spectral(nn.Module):
    """A Fourier layer: complex weights, a complex constant, and a complex average that it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(_complexes(2, 2, 3))
        self.register_buffer("rotation", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.register_buffer("average", torch.zeros(3, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x)
        low = torch.einsum("bix,iox->box", spectrum[..., :3] * self.rotation, self.weight)
        with torch.no_grad():
            self.average.mul_(0.9).add_(low.mean((0, 1)), alpha=0.1)
        return torch.fft.irfft(functional.pad(low, (0, spectrum.size(-1) - 3)), n=x.size(-1))


def test_a_layer_with_complex_parameters_and_buffers_trains_to_eagers_numbers(
    both_ways: Callable[..., Any],
) -> None:
    def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        loss = (model(x) ** 2).mean()
        (gradient,) = torch.autograd.grad(loss, [model.weight])
        with torch.no_grad():
            model.weight.add_(gradient, alpha=-0.5)
        return loss.detach()

    ran = both_ways(Spectral(), step, *[(_randn(4, 2, 8, seed=seed),) for seed in range(3)])
    np.testing.assert_allclose(ran.compiled.values, ran.eager, rtol=1e-5)
    for name in ("weight", "average"):
        pairs = ran.compiled.state[f"state.model.{name}"]
        np.testing.assert_allclose(pairs[..., 0] + 1j * pairs[..., 1], ran.eager_state[name], rtol=1e-5)


def test_optimizers_update_complex_parameters_as_pytorch_does() -> None:
    ours, theirs = (nn.Parameter(_complexes(3, 2)) for _ in range(2))
    gradient = _complexes(3, 2, seed=1)
    for parameter, optimizer in (
        (ours, cstorch.optim.AdamW([ours], lr=0.01, correct_bias=True)),
        (theirs, torch.optim.AdamW([theirs], lr=0.01, eps=1e-6, weight_decay=0.0)),
    ):
        for factor in (1, -2, 3j):
            parameter.grad = factor * gradient
            optimizer.step()
    torch.testing.assert_close(ours.data, theirs.data, rtol=1e-5, atol=1e-6)


def test_results_whose_size_depends_on_the_data_are_refused_with_a_cure() -> None:
    numbers = DeviceTensor(torch.tensor([1, 2]))
    with pytest.raises(StepError, match="give minlength"):
        trace(lambda: torch.bincount(numbers), [numbers], {}, [])
    with pytest.raises(StepError, match="give output_size"):
        trace(lambda: torch.repeat_interleave(numbers), [numbers], {}, [])


def test_the_norm_of_a_whole_tensor_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    numbers = DeviceTensor(torch.tensor([3.0, 4.0]))
    torch.set_warn_always(True)
    try:
        trace(lambda: torch.norm(numbers) + numbers.norm(), [numbers], {}, [])
    finally:
        torch.set_warn_always(False)
    assert not [str(warning.message) for warning in recwarn]
