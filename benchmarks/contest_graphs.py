"""Graphs with the networks of the ISPD 2020 placement contest, written from their published structure.

Residual networks as blocks or as single convolutions, a U-Net and a chain of fully connected layers, in the
contest's own text form. The sizes are those that the contest's description and bounds give; the U-Net's
channels are those of the network as published, which comes to the area bound of the contest's within 1 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

FABRIC = 633
MEMORY_WORDS = 24576


@dataclass(frozen=True)
class Weights:
    """Weights of a graph's objective: of the slowest kernel's time, the wires and the adapters."""

    time: float = 1
    wires: float = 1
    adapters: float = 0


@dataclass
class _Nodes:
    """Nodes and edges while a graph grows; a node's number is its place in the list."""

    lines: list[tuple[str, str]]
    edges: list[tuple[int, int]]

    def add(self, kind: str, sizes: str, *sources: int) -> int:
        self.lines.append((kind, sizes))
        number = len(self.lines) - 1
        self.edges += [(source, number) for source in sources]
        return number

    def convolution(
        self, image: int, inputs: int, outputs: int, side: int, stride: int, *sources: int
    ) -> int:
        sizes = f"W={image} H={image} R={side} S={side} C={inputs} K={outputs} T={stride} U={stride}"
        return self.add("conv", sizes, *sources)


def residual_network(
    name: str,
    repeats: Sequence[int],
    weights: Weights,
    *,
    features: int = 256,
    first_image: int = 112,
    convolutions: bool = False,
) -> str:
    """A ResNet: in each stage a block that halves the image, then blocks that keep it.

    Args:
        name: of the test.
        repeats: blocks that keep the image, by stage.
        weights: of the objective.
        features: output channels of the first stage; every stage doubles them.
        first_image: rows and columns of the first block's input; the second stage starts at 56 in any case.
        convolutions: every convolution a separate node, instead of blocks.
    """
    nodes = _Nodes([("input", f"n=[112 112 {features // 2}]")], [])
    last = 0
    for stage, repeat in enumerate(repeats):
        outputs = features << stage
        image = (112 >> stage) if stage else first_image
        for number in range(repeat + 1):
            halves = number == 0
            rows = image if halves else 56 >> stage
            if convolutions:
                last = _block_convolutions(nodes, rows, outputs, halves, last)
            else:
                last = nodes.add("cblock" if halves else "dblock", f"f={outputs} h={rows} w={rows}", last)
    nodes.add("output", f"n=[7 7 {features << len(repeats) - 1}]", last)
    return _text(name, nodes, weights)


def _block_convolutions(nodes: _Nodes, image: int, features: int, halves: bool, source: int) -> int:
    """The convolutions of a block; the last one adds the shortcut."""
    quarter = features // 4
    inputs, stride, small = (features // 2, 2, image // 2) if halves else (features, 1, image)
    narrow = nodes.convolution(image, inputs, quarter, 1, 1, source)
    middle = nodes.convolution(image, quarter, quarter, 3, stride, narrow)
    shortcut = nodes.convolution(image, inputs, features, 1, stride, narrow) if halves else narrow
    return nodes.convolution(small, quarter, features, 1, 1, middle, shortcut)


def unet(name: str, weights: Weights, *, image: int = 512, base: int = 64, levels: int = 4) -> str:
    """A U-Net: two convolutions a level on the way down, up-convolution and two more on the way up."""
    nodes = _Nodes([("input", f"n=[{image} {image} 1]")], [])
    last, channels = 0, 1
    skips: list[int] = []
    for level in range(levels + 1):
        for _ in range(2):
            last = nodes.convolution(image >> level, channels, base << level, 3, 1, last)
            channels = base << level
        skips.append(last)
    for level in reversed(range(levels)):
        rows, outputs = image >> level, base << level
        last = nodes.convolution(rows, channels, outputs, 3, 1, last)
        last = nodes.convolution(rows, 2 * outputs, outputs, 3, 1, last, skips[level])
        last = nodes.convolution(rows, outputs, outputs, 3, 1, last)
        channels = outputs
    last = nodes.convolution(image, channels, 2, 1, 1, last)
    nodes.add("output", f"n=[{image} {image} 2]", last)
    return _text(name, nodes, weights)


def fully_connected_chain(name: str, weights: Weights, *, largest: int = 8192, classes: int = 16) -> str:
    """Layers of 2, 2, 4, 4, 8, ... up to `largest` neurons, and one of `classes`."""
    sizes = [2]
    while sizes[-1] < largest:
        sizes += [sizes[-1], 2 * sizes[-1]]
    sizes += [largest, classes]
    nodes = _Nodes([("input", "n=[1 1 2]")], [])
    last = 0
    for inputs, outputs in pairwise(sizes):
        last = nodes.convolution(1, inputs, outputs, 1, 1, last)
    nodes.add("output", f"n=[1 1 {classes}]", last)
    return _text(name, nodes, weights)


def contest_graphs() -> dict[str, str]:
    """Text of graphs with the structure of the contest's twenty, by their letter."""
    found: dict[str, str] = {}
    routers, speeds = Weights(), Weights(wires=4)
    for letters, router in (("ABCD", routers), ("EFGH", Weights(wires=10, adapters=100))):
        for letter, repeats, single in zip(
            letters,
            ((2, 3, 5, 2), (5, 7, 11, 5), (5, 7, 11, 5), (2, 3, 5, 2)),
            (False, False, True, True),
            strict=True,
        ):
            found[letter] = residual_network(letter, repeats, router, convolutions=single)
    for letters, speed in (("IJKLMN", speeds), ("OPQRST", Weights(wires=40, adapters=400))):
        for letter, single in zip(letters[:2], (False, True), strict=True):
            found[letter] = residual_network(letter, (4, 5, 8, 4), speed, first_image=56, convolutions=single)
        for letter, single in zip(letters[2:4], (False, True), strict=True):
            found[letter] = residual_network(letter, (2, 3, 5, 2), speed, features=16, convolutions=single)
        heavy = Weights(wires=400, adapters=400) if letters[4] == "S" else speed
        found[letters[4]] = unet(letters[4], heavy)
        found[letters[5]] = fully_connected_chain(letters[5], speed)
    return found


def _text(name: str, nodes: _Nodes, weights: Weights) -> str:
    header = (
        f"(*\ntest={name}\nwidth={FABRIC}\nheight={FABRIC}\nwdeltat={weights.time:g}\n"
        f"wlength={weights.wires:g}\nwadapter={weights.adapters:g}\nmemlimit={MEMORY_WORDS}\n*)"
    )
    lines = [f"{kind}[{number}] {sizes} name='k{number}'" for number, (kind, sizes) in enumerate(nodes.lines)]
    ends = {"input": "_", "output": "_"}
    arrows = []
    for source, target in nodes.edges:
        kind, other = nodes.lines[source][0], nodes.lines[target][0]
        arrows.append(
            f"{kind}[{source}]:{ends.get(kind, 'y')} -> {other}[{target}]:{ends.get(other, 'x')}, shape:[1]"
        )
    return "\n".join([header, "(* Node Definitions *)", *lines, "(* Connectivity *)", *arrows, ""])
