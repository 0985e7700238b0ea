"""Tensors that cross from the wafer to MemoryX."""

from __future__ import annotations

from dataclasses import dataclass, field

from cgc.layers.graph import StepGraph
from cgc.layers.roles import update_side

LARGE = 1 << 20


@dataclass
class Builder:
    """A step by names: arguments first, then ops with one result each."""

    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    ops: list[tuple[int, ...]] = field(default_factory=list)
    op_names: list[str] = field(default_factory=list)

    def value(self, name: str, size_bytes: int = LARGE) -> None:
        self.names.append(name)
        self.sizes.append(size_bytes)

    def op(self, name: str, *read: str, size_bytes: int = LARGE) -> None:
        self.ops.append(tuple(map(self.names.index, read)))
        self.op_names.append(name)
        self.value(name, size_bytes)

    def graph(
        self,
        inputs: str,
        state: str,
        forward: str,
        contractions: str,
        new: dict[str, str],
        optimizer: str = "",
    ) -> StepGraph:
        def numbers(text: str) -> frozenset[int]:
            return frozenset(map(self.names.index, text.split()))

        arguments = len(self.names) - len(self.ops)
        return StepGraph(
            operands=self.ops,
            results=[(arguments + index,) for index in range(len(self.ops))],
            size_bytes=self.sizes,
            inputs=numbers(inputs),
            state=numbers(state),
            optimizer_state=numbers(optimizer),
            replacements={self.names.index(old): self.names.index(value) for old, value in new.items()},
            outputs=(),
            forward=frozenset(map(self.op_names.index, forward.split())),
            contractions=frozenset(map(self.op_names.index, contractions.split())),
        )

    def after(self, graph: StepGraph, fixed: str = "") -> set[str]:
        found = update_side(graph, frozenset(map(self.op_names.index, fixed.split())))
        return {self.op_names[op] for op in found}


def builder(*arguments: str) -> Builder:
    made = Builder()
    for name in arguments:
        made.value(name)
    return made


def test_scaling_and_clipping_stay_after_the_gradient() -> None:
    b = builder("x", "w")
    b.op("y", "x", "w")
    b.op("gradient", "x", "y")
    b.op("unscaled", "gradient")
    b.op("norm", "unscaled", size_bytes=4)
    b.op("clipped", "unscaled", "norm")
    b.op("new", "w", "clipped")
    graph = b.graph("x", "w", "y", "gradient", {"w": "new"})
    assert b.after(graph) == {"unscaled", "norm", "clipped", "new"}


def test_gradients_of_one_weight_are_added_before_they_cross() -> None:
    b = builder("x", "w")
    b.op("y", "x", "w")
    b.op("first", "x", "y")
    b.op("second", "y", "w")
    b.op("sum", "first", "second")
    b.op("new", "w", "sum")
    graph = b.graph("x", "w", "y", "first second", {"w": "new"})
    assert b.after(graph) == {"new"}


def test_a_cast_to_a_wider_type_is_done_at_memoryx() -> None:
    b = builder("x", "w")
    b.op("y", "x", "w")
    b.op("half", "x", "y", size_bytes=LARGE // 2)
    b.op("gradient", "half")
    b.op("new", "w", "gradient")
    graph = b.graph("x", "w", "y", "half", {"w": "new"})
    assert b.after(graph) == {"gradient", "new"}


def test_what_is_summed_before_it_is_used_crosses_as_the_sum() -> None:
    # A gradient of each sample, which no op of the wafer's kinds reduces.
    b = builder("x", "w")
    b.op("y", "x", "w")
    b.op("dx", "y", "w", size_bytes=64 * LARGE)
    b.op("added", "dx", "y", size_bytes=64 * LARGE)
    b.op("gradient", "added")
    b.op("new", "w", "gradient")
    graph = b.graph("x", "w", "y", "dx", {"w": "new"})
    assert b.after(graph) == {"new"}


def test_a_product_of_the_optimizer_is_part_of_the_update() -> None:
    # As of Muon, which orthogonalizes a momentum: it depends on state that only MemoryX has.
    b = builder("x", "w", "momentum")
    b.op("y", "x", "w")
    b.op("gradient", "x", "y")
    b.op("new_momentum", "momentum", "gradient")
    b.op("product", "new_momentum")
    b.op("new", "w", "product")
    graph = b.graph(
        "x",
        "w momentum",
        "y",
        "gradient product",
        {"w": "new", "momentum": "new_momentum"},
        optimizer="momentum",
    )
    assert b.after(graph, fixed="new_momentum") == {"new_momentum", "product", "new"}


def test_statistics_of_the_forward_pass_cross_instead_of_what_follows_from_them() -> None:
    b = builder("x", "w", "average")
    b.op("y", "x", "w")
    b.op("statistics", "x", size_bytes=1024)
    b.op("new_average", "average", "statistics", size_bytes=1024)
    graph = b.graph("x", "w average", "y statistics", "", {"average": "new_average"})
    assert b.after(graph) == {"new_average"}
