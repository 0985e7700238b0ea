"""One small model for each layer and loss of torch.nn, with a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

CONTAINERS = {
    "Module",
    "Sequential",
    "ModuleList",
    "ModuleDict",
    "ParameterList",
    "ParameterDict",
    "Container",
}


@dataclass(frozen=True)
class Case:
    """A model, its arguments, and the class of torch.nn that it tests."""

    name: str
    about: str
    model: nn.Module
    batch: tuple[torch.Tensor, ...]


class First(nn.Module):
    """The first result of a layer that returns several."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(*args)[0]
        return found


class Unpooled(nn.Module):
    """The largest elements of windows that overlap, put back where they were; and where that was."""

    def __init__(self, first: nn.Module, pool: nn.Module, unpool: nn.Module) -> None:
        super().__init__()
        self.first, self.pool, self.unpool = first, pool, unpool

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        found, positions = self.pool(x)
        unpooled: torch.Tensor = self.unpool(found, positions, output_size=x.shape)
        return unpooled + 0.01 * positions.float().mean()


class Loss(nn.Module):
    """A loss after a dense layer, or after a dense layer and an activation."""

    def __init__(
        self, loss: Callable[..., torch.Tensor], activation: Callable[..., torch.Tensor] | None
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 6)
        self.loss, self.activation = loss, activation

    def forward(self, x: torch.Tensor, *targets: torch.Tensor) -> torch.Tensor:
        out = self.dense(x)
        return self.loss(out if self.activation is None else self.activation(out), *targets)


class Variance(nn.Module):
    """A Gaussian whose variance is computed, and limited from below."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 12)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        mean, variance = self.dense(x).chunk(2, -1)
        return functional.gaussian_nll_loss(mean, y, variance.square(), full=True, eps=0.05)


class PixelLoss(nn.Module):
    """A cross entropy for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.convolution(x), labels)


class AdaptiveSoftmax(nn.Module):
    """The log probabilities of all classes: the loss picks rows by their labels, whose number varies."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.AdaptiveLogSoftmaxWithLoss(6, 8, [3, 5])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer.log_prob(x)


def cases() -> list[Case]:
    """All cases; the same parameters and batches in every call."""
    torch.manual_seed(0)
    found = [*_activations(), *_spaces(), *_images(), *_norms(), *_sequences(), *_losses()]
    assert len({case.name for case in found}) == len(found)
    return found


def _case(about: str, model: nn.Module, *batch: torch.Tensor, suffix: str = "") -> Case:
    return Case(about + (f"-{suffix}" if suffix else ""), about, model, batch)


_PLAIN = [
    "ReLU",
    "ReLU6",
    "ELU",
    "SELU",
    "CELU",
    "GELU",
    "SiLU",
    "Mish",
    "Softplus",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Sigmoid",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "Hardshrink",
    "Softshrink",
    "LogSigmoid",
    "LeakyReLU",
    "PReLU",
    "Identity",
    "Flatten",
    "GLU",
]


def _activations() -> Iterator[Case]:
    x = torch.randn(4, 6)

    def after(layer: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), layer)

    for name in _PLAIN:
        yield _case(name, after(getattr(nn, name)()), x)
    yield _case("GELU", after(nn.GELU("tanh")), x, suffix="tanh")
    yield _case("ELU", after(nn.ELU(0.7)), x, suffix="alpha")
    yield _case("Softplus", after(nn.Softplus(2, 1)), x, suffix="beta")
    yield _case("Threshold", after(nn.Threshold(0.1, 0.3)), x)
    yield _case("Softmax", after(nn.Softmax(-1)), x)
    yield _case("LogSoftmax", after(nn.LogSoftmax(1)), x)
    yield _case("Softmin", after(nn.Softmin(1)), x)
    yield _case("Unflatten", after(nn.Unflatten(1, (2, 3))), x)
    yield _case("Linear", nn.Linear(6, 3), x)
    yield _case("Linear", nn.Linear(6, 3, bias=False), torch.randn(2, 4, 6), suffix="wide")
    yield _case("Bilinear", nn.Bilinear(6, 6, 3), x, torch.randn(4, 6))
    yield _case("CosineSimilarity", Loss(nn.CosineSimilarity(), None), x, torch.randn(4, 6))
    yield _case("PairwiseDistance", Loss(nn.PairwiseDistance(), None), x, torch.randn(4, 6))
    yield _case("RReLU", after(nn.RReLU(0.2, 0.2)), x)
    for name in ("Dropout", "AlphaDropout", "FeatureAlphaDropout"):
        yield _case(name, after(getattr(nn, name)(0.0)), x)


def _spaces() -> Iterator[Case]:
    for dimensions, x in (
        (1, torch.randn(2, 3, 9)),
        (2, torch.randn(2, 3, 9, 8)),
        (3, torch.randn(2, 3, 6, 7, 8)),
    ):
        yield from _space(dimensions, x)


def _space(dimensions: int, x: torch.Tensor) -> Iterator[Case]:
    end = f"{dimensions}d"

    def layer(name: str, *args: Any, **kwargs: Any) -> nn.Module:
        made: nn.Module = getattr(nn, name + end)(*args, **kwargs)
        return made

    def after(inner: nn.Module) -> nn.Module:
        return nn.Sequential(layer("Conv", 3, 3, 1), inner)

    yield _case(f"Conv{end}", layer("Conv", 3, 4, 3, stride=2, padding=1), x)
    yield _case(f"Conv{end}", layer("Conv", 3, 6, 2, dilation=2, groups=3), x, suffix="dilated")
    yield _case(
        f"ConvTranspose{end}", layer("ConvTranspose", 3, 4, 3, stride=2, padding=1, output_padding=1), x
    )
    yield _case(f"BatchNorm{end}", layer("BatchNorm", 3), x)
    yield _case(f"InstanceNorm{end}", layer("InstanceNorm", 3, affine=True), x)
    yield _case(f"Dropout{end}", after(layer("Dropout", 0.0)), x)
    yield _case("Upsample", after(nn.Upsample(scale_factor=2)), x, suffix=end)
    for name in ("MaxPool", "AvgPool"):
        yield _case(f"{name}{end}", after(layer(name, 2)), x)
        yield _case(f"{name}{end}", after(layer(name, 3, 2, 1)), x, suffix="padded")
    yield _case(f"MaxPool{end}", after(layer("MaxPool", 2, dilation=2)), x, suffix="dilated")
    pool, unpool = layer("MaxPool", 3, 2, 1, return_indices=True), layer("MaxUnpool", 3, 2, 1)
    yield _case(f"MaxUnpool{end}", Unpooled(layer("Conv", 3, 3, 1), pool, unpool), x)
    yield _case(f"LPPool{end}", after(layer("LPPool", 2, 2)), x)
    yield _case(f"AdaptiveAvgPool{end}", after(layer("AdaptiveAvgPool", 1)), x)
    yield _case(f"AdaptiveMaxPool{end}", after(layer("AdaptiveMaxPool", 1)), x)
    yield _case(f"ConstantPad{end}", after(layer("ConstantPad", 1, 0.5)), x)
    for name in ("Zero", "Reflection", "Replication", "Circular"):
        yield _case(f"{name}Pad{end}", after(layer(f"{name}Pad", 1)), x)


def _images() -> Iterator[Case]:
    x, volume = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 5, 4)

    def after(channels: int, inner: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, channels, 1), inner)

    for mode in ("bilinear", "bicubic"):
        yield _case("Upsample", after(3, nn.Upsample(scale_factor=2, mode=mode)), x, suffix=mode)
    yield _case(
        "UpsamplingBilinear2d", after(3, nn.UpsamplingBilinear2d(scale_factor=2)), torch.randn(2, 3, 4, 5)
    )
    yield _case("UpsamplingNearest2d", after(3, nn.UpsamplingNearest2d(scale_factor=2)), x)
    yield _case("Softmax2d", after(3, nn.Softmax2d()), x)
    yield _case("PixelShuffle", after(4, nn.PixelShuffle(2)), x)
    yield _case("PixelUnshuffle", after(4, nn.PixelUnshuffle(2)), x)
    yield _case("ChannelShuffle", after(4, nn.ChannelShuffle(2)), x)
    yield _case("Unfold", after(3, nn.Unfold(2)), x)
    yield _case("Fold", nn.Sequential(nn.Linear(9, 9), nn.Fold((4, 4), 2)), torch.randn(2, 12, 9))
    yield _case("LocalResponseNorm", after(6, nn.LocalResponseNorm(3)), x)
    pool = nn.AvgPool2d(3, 2, 1, ceil_mode=True, divisor_override=2)
    yield _case("AvgPool2d", after(3, pool), x, suffix="divided")
    yield _case("AvgPool2d", after(3, nn.AvgPool2d(3, 2, 1, ceil_mode=True)), x, suffix="whole windows")
    drawn = nn.FractionalMaxPool2d(2, output_size=3, _random_samples=torch.rand(2, 3, 2))
    yield _case("FractionalMaxPool2d", after(3, drawn), x)
    drawn = nn.FractionalMaxPool3d(2, output_ratio=0.7, _random_samples=torch.rand(2, 3, 3))
    yield _case("FractionalMaxPool3d", nn.Sequential(nn.Conv3d(3, 3, 1), drawn), volume)


def _norms() -> Iterator[Case]:
    x = torch.randn(4, 6)
    yield _case("LayerNorm", nn.LayerNorm(6), x)
    yield _case("LayerNorm", nn.LayerNorm((3, 6)), torch.randn(4, 3, 6), suffix="two axes")
    plain = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6, elementwise_affine=False))
    yield _case("LayerNorm", plain, x, suffix="plain")
    yield _case("RMSNorm", nn.RMSNorm(6), x)
    yield _case("GroupNorm", nn.GroupNorm(2, 4), torch.randn(3, 4, 5, 5))
    yield _case("BatchNorm1d", nn.BatchNorm1d(6), x, suffix="rows")
    yield _case("BatchNorm1d", nn.BatchNorm1d(6, momentum=None), x, suffix="mean moments")
    yield _case("BatchNorm1d", nn.BatchNorm1d(6, track_running_stats=False), x, suffix="no moments")
    yield _case("BatchNorm1d", nn.BatchNorm1d(6).eval(), x, suffix="evaluated")


def _sequences() -> Iterator[Case]:
    for name in ("RNN", "LSTM", "GRU"):
        kind = getattr(nn, name)
        yield _case(name, First(kind(6, 5, batch_first=True)), torch.randn(2, 4, 6))
        yield _case(
            name,
            First(kind(6, 5, num_layers=2, bidirectional=True)),
            torch.randn(3, 2, 6),
            suffix="both ways",
        )
        yield _case(f"{name}Cell", First(getattr(nn, f"{name}Cell")(6, 5)), torch.randn(4, 6))
    x, y = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    yield _case("MultiheadAttention", First(nn.MultiheadAttention(8, 2, batch_first=True)), x, x, x)
    settings: dict[str, Any] = {"dropout": 0.0, "batch_first": True}
    encoder = nn.TransformerEncoderLayer(8, 2, 16, **settings)
    yield _case("TransformerEncoderLayer", encoder, x)
    yield _case("TransformerEncoder", nn.TransformerEncoder(encoder, 2), x)
    decoder = nn.TransformerDecoderLayer(8, 2, 16, **settings)
    yield _case("TransformerDecoderLayer", decoder, x, y)
    yield _case("TransformerDecoder", nn.TransformerDecoder(decoder, 2), x, y)
    yield _case("Transformer", nn.Transformer(8, 2, 1, 1, 16, **settings), x, y)
    bags, offsets = torch.randint(0, 7, (3, 5)), torch.tensor([0, 3, 3, 7])
    for mode in ("sum", "mean", "max"):
        yield _case("EmbeddingBag", nn.EmbeddingBag(7, 4, mode=mode, padding_idx=2), bags, suffix=mode)
        of_any_size = nn.EmbeddingBag(7, 4, mode=mode)
        yield _case("EmbeddingBag", of_any_size, bags.reshape(-1), offsets, suffix=f"{mode} of any size")
    limited = nn.EmbeddingBag(7, 4, max_norm=1.5, mode="sum")
    yield _case("EmbeddingBag", limited, bags, suffix="limited")
    frequent = nn.Embedding(7, 4, scale_grad_by_freq=True)
    yield _case("Embedding", frequent, torch.randint(0, 7, (3, 5)), suffix="by frequency")
    limited = nn.Embedding(7, 4, max_norm=1.5)
    yield _case("Embedding", limited, torch.randint(0, 7, (3, 5)), suffix="limited")
    yield _case("Embedding", nn.Embedding(7, 4, padding_idx=0), torch.randint(0, 7, (3, 5)))


def _losses() -> Iterator[Case]:
    x, y = torch.randn(4, 6), torch.randint(0, 6, (4,))
    wide, signs, part = torch.randn(4, 6), torch.sign(torch.randn(4, 6)), torch.rand(4, 6)
    chances = torch.softmax(torch.randn(4, 6), -1)

    def loss(
        about: str, *targets: torch.Tensor, suffix: str = "", inner: Any = None, activation: Any = None
    ) -> Case:
        return _case(about, Loss(inner or getattr(nn, about)(), activation), x, *targets, suffix=suffix)

    def entropy(**settings: Any) -> nn.Module:
        return nn.CrossEntropyLoss(**settings)

    yield loss("CrossEntropyLoss", y)
    yield loss("CrossEntropyLoss", y, suffix="smooth", inner=entropy(label_smoothing=0.1))
    yield loss("CrossEntropyLoss", y, suffix="weights", inner=entropy(weight=torch.rand(6)))
    yield loss(
        "CrossEntropyLoss", torch.tensor([1, 2, 3, 2]), suffix="ignored", inner=entropy(ignore_index=2)
    )
    yield loss("CrossEntropyLoss", y, suffix="sum", inner=entropy(reduction="sum"))
    yield loss("CrossEntropyLoss", y, suffix="rows", inner=entropy(reduction="none"))
    yield loss("CrossEntropyLoss", chances, suffix="soft")
    yield _case(
        "CrossEntropyLoss",
        PixelLoss(),
        torch.randn(2, 3, 4, 4),
        torch.randint(0, 5, (2, 4, 4)),
        suffix="pixels",
    )
    log_softmax = nn.LogSoftmax(-1)
    yield loss("NLLLoss", y, activation=log_softmax)
    yield loss("NLLLoss", y, suffix="raw")
    yield _case("LinearCrossEntropyLoss", nn.LinearCrossEntropyLoss(6, 5), x, torch.randint(0, 5, (4,)))
    for name in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "SoftMarginLoss", "HingeEmbeddingLoss"):
        yield loss(name, signs)
    yield loss("BCELoss", part, activation=nn.Sigmoid())
    yield loss("BCEWithLogitsLoss", part)
    yield loss(
        "BCEWithLogitsLoss", part, suffix="weights", inner=nn.BCEWithLogitsLoss(pos_weight=torch.rand(6))
    )
    yield loss("KLDivLoss", chances, inner=nn.KLDivLoss(reduction="batchmean"), activation=log_softmax)
    yield loss("PoissonNLLLoss", part)
    yield loss("MultiLabelSoftMarginLoss", (part > 0.5).float())
    yield loss("CosineEmbeddingLoss", wide, torch.ones(4))
    yield loss("MarginRankingLoss", wide, torch.ones(4, 6))
    yield loss("TripletMarginLoss", wide, 2 * wide)
    yield loss("TripletMarginWithDistanceLoss", wide, 2 * wide)
    yield loss("MultiMarginLoss", torch.tensor([1, 0, 3, 2]))
    yield loss("MultiMarginLoss", y, suffix="squares", inner=nn.MultiMarginLoss(2, 0.7, torch.rand(6)))
    yield loss("MultiLabelMarginLoss", torch.tensor([[3, 0, -1, 1, 2, 4], [5, -1, 5, 5, 5, 5]] * 2))
    yield loss("GaussianNLLLoss", wide, part + 0.1)
    yield _case("GaussianNLLLoss", Variance(), x, wide, suffix="trained")
    lengths = torch.tensor([[7, 6, 5], [3, 2, 0]])
    ctc = Loss(nn.CTCLoss(zero_infinity=True), log_softmax)
    yield _case("CTCLoss", ctc, torch.randn(7, 3, 6), torch.randint(1, 6, (3, 3)), *lengths)
    yield _case("AdaptiveLogSoftmaxWithLoss", AdaptiveSoftmax(), x)
