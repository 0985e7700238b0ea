"""Kernels of the contest: rectangle, time and memory as functions of their execution arguments.

The formulas are those of the contest's "Example Benchmark" text. A convolution is a six-deep loop nest whose
loops over H, W, C and K are split over tiles; its forward, backward and weight-update copies lie side by
side, hence the factor 3 in the width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

COPIES = 3
"""Forward, backward and weight update."""

KINDS = ("conv", "dblock", "cblock")


class Performance(NamedTuple):
    """The needs of a kernel, not rotated: tiles in y and x, cycles per sample, words of the fullest tile."""

    height: int
    width: int
    time: float
    memory: float


@dataclass(frozen=True)
class Convolution:
    """Formal arguments of one convolution, in the order of a solution file.

    Attributes:
        rows: H, of the input.
        columns: W, of the input.
        inputs: C, channels.
        outputs: K, channels.
        filter_rows: R.
        filter_columns: S.
        stride: T; U, the stride in the other direction, is equal.
    """

    rows: int
    columns: int
    inputs: int
    outputs: int
    filter_rows: int = 1
    filter_columns: int = 1
    stride: int = 1

    @property
    def passes(self) -> float:
        """Multiply-adds of one output point of one pair of channels, per input point."""
        return self.filter_rows * self.filter_columns / self.stride / self.stride

    @property
    def activations(self) -> int:
        """Input points of one channel with the borders that the filter needs."""
        return (self.columns + self.filter_columns - 1) * (self.rows + self.filter_rows - 1)

    def performance(self, rows: int, columns: int, inputs: int, outputs: int) -> Performance:
        """Rectangle, time and memory when H, W, C, K are split in that many parts."""
        points = -(-self.rows // rows) * -(-self.columns // columns)
        channels = -(-self.inputs // inputs) * -(-self.outputs // outputs)
        weights = self.inputs / inputs * self.outputs / outputs * self.filter_rows * self.filter_columns
        return Performance(
            rows * columns * (inputs + 1),
            COPIES * outputs,
            points * channels * self.passes,
            weights + self.activations / (columns * rows) * self.outputs / outputs,
        )


@dataclass(frozen=True)
class Splits:
    """Execution arguments of a kernel: h', w', and c' and k' of each of its convolutions."""

    rows: int
    columns: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def arguments(self) -> tuple[int, ...]:
        """The execution arguments in the order of a solution file."""
        return (self.rows, self.columns, *self.inputs, *self.outputs)


@dataclass(frozen=True)
class Kernel:
    """A kernel of a graph.

    Attributes:
        name: as in the graph, e.g. "k1".
        kind: one of `KINDS`.
        formal: formal arguments in the order of a solution file.
        convolutions: what it consists of, side by side; 1, 3 or 4 of them.
    """

    name: str
    kind: str
    formal: tuple[int, ...]
    convolutions: tuple[Convolution, ...]

    def performance(self, splits: Splits) -> Performance:
        """Rectangle, time and memory of the whole kernel under execution arguments."""
        parts = [
            conv.performance(splits.rows, splits.columns, inputs, outputs)
            for conv, inputs, outputs in zip(self.convolutions, splits.inputs, splits.outputs, strict=True)
        ]
        return Performance(
            max(part.height for part in parts),
            sum(part.width for part in parts),
            max(part.time for part in parts),
            max(part.memory for part in parts),
        )

    def splits(self, arguments: tuple[int, ...]) -> Splits:
        """Execution arguments from the numbers of a solution file.

        Raises:
            ValueError: too many or too few numbers, or one below 1.
        """
        count = len(self.convolutions)
        if len(arguments) != 2 + 2 * count or min(arguments) < 1:
            raise ValueError(f"expected {2 + 2 * count} execution arguments of at least 1")
        return Splits(arguments[0], arguments[1], arguments[2 : 2 + count], arguments[2 + count :])


def conv_kernel(name: str, sizes: Mapping[str, int]) -> Kernel:
    """A `conv` node; keys H W C K R S T U.

    Raises:
        ValueError: a size below 1, or different strides T and U.
    """
    formal = tuple(sizes[key] for key in "HWCKRSTU")
    if min(formal) < 1:
        raise ValueError("every size must be at least 1")
    if sizes["T"] != sizes["U"]:
        raise ValueError(f"strides T={sizes['T']} and U={sizes['U']} differ, expected equal ones")
    return Kernel(name, "conv", formal, (Convolution(*formal[:-1]),))


def block_kernel(name: str, kind: str, rows: int, columns: int, features: int) -> Kernel:
    """A `dblock` or `cblock` node, i.e. a ResNet block that keeps or halves the image.

    Raises:
        ValueError: a size below 1, or features that do not divide by 4.
    """
    if min(rows, columns, features) < 1 or features % 4:
        raise ValueError(f"h={rows} w={columns} f={features}, expected at least 1 and f a multiple of 4")
    half, quarter = features // 2, features // 4
    convolutions: tuple[Convolution, ...]
    if kind == "dblock":
        convolutions = (
            Convolution(rows, columns, features, quarter),
            Convolution(rows, columns, quarter, quarter, 3, 3),
            Convolution(rows, columns, quarter, features),
        )
    else:
        convolutions = (
            Convolution(rows, columns, half, quarter),
            Convolution(rows, columns, quarter, quarter, 3, 3, 2),
            # An odd image has one more row and column in the first half.
            Convolution(-(-rows // 2), -(-columns // 2), quarter, features),
            Convolution(rows, columns, half, features, 1, 1, 2),
        )
    return Kernel(name, kind, (rows, columns, features), convolutions)


@dataclass(frozen=True)
class Edge:
    """Data from one kernel to another, as indices into the kernels of the graph."""

    source: int
    target: int


@dataclass(frozen=True)
class ContestGraph:
    """A graph of the contest.

    Attributes:
        test: its name.
        width: tiles in x.
        height: tiles in y.
        wdeltat: weight of the slowest kernel's time.
        wlength: weight of the wires.
        wadapter: weight of the adapters.
        memlimit: words of memory of a tile.
        kernels: in the order of the file, without inputs and outputs.
        edges: between kernels; those of inputs and outputs have no length.
    """

    test: str
    width: int
    height: int
    wdeltat: float
    wlength: float
    wadapter: float
    memlimit: float
    kernels: tuple[Kernel, ...]
    edges: tuple[Edge, ...]


@dataclass(frozen=True)
class Placed:
    """A kernel at its place.

    Attributes:
        splits: execution arguments.
        x: leftmost tile.
        y: lowest tile.
        rotated: turned by 90 degrees, i.e. width and height swapped.
    """

    splits: Splits
    x: int
    y: int
    rotated: bool


Solution = Mapping[str, Placed]
"""Places by the name of the kernel."""
