"""Placements of random kernel graphs are legal, repeatable, and profit from area."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cgc.errors import PlacementError
from cgc.kernels import Edge, Kernel, KernelGraph
from cgc.placement import Placement, place
from cs_toolkit.fabric import Fabric

from .examples import examples

pytestmark = pytest.mark.usefixtures("full_placement")

SIZES = st.integers(1, 3000)


def fabric_of(width: int, height: int) -> Fabric:
    return Fabric(
        name="test",
        clock_hz=850e6,
        width=width,
        height=height,
        memory_per_pe_bytes=49152,
        macs_per_pe_per_cycle=4,
        data_bits_per_wavelet=16,
        io_links=12,
        io_link_bits_per_s=100e9,
    )


@st.composite
def layers(draw: st.DrawFn) -> dict[str, int]:
    inputs, outputs = draw(SIZES), draw(SIZES)
    return {
        "rows": draw(st.integers(1, 64)),
        "inputs": inputs,
        "outputs": outputs,
        "passes": draw(st.integers(1, 3)),
        "element_bytes": draw(st.sampled_from([2, 4])),
        "resident_bytes": inputs * outputs * draw(st.sampled_from([2, 4, 16])),
        "stash_bytes": draw(st.integers(0, 1 << 22)),
        "epilogue_millicycles": draw(st.integers(0, 1 << 24)),
        "step_millicycles": draw(st.integers(0, 1 << 30)),
        "reload": draw(st.integers(0, 1)),
        "batch": draw(st.integers(1, 512)),
    }


@st.composite
def loops(draw: st.DrawFn) -> dict[str, int]:
    return {
        "rows": draw(st.integers(1, 64)),
        "row_elements": draw(st.integers(1, 50_000)),
        "starts": draw(st.integers(0, 2)),
        "reductions": draw(st.integers(0, 4)),
        "work_millicycles": draw(st.integers(0, 1 << 32)),
        "step_millicycles": draw(st.integers(0, 1 << 30)),
        "streamed_elements": draw(st.integers(0, 50_000)),
        "element_bytes": draw(st.sampled_from([1, 2, 4])),
        "resident_bytes": draw(st.integers(0, 1 << 24)),
        "stash_bytes": draw(st.integers(0, 1 << 22)),
        "batch": draw(st.integers(1, 512)),
    }


@st.composite
def graphs(draw: st.DrawFn) -> KernelGraph:
    count = draw(st.integers(1, 14))
    kernels = []
    for index in range(count):
        if draw(st.booleans()):
            kernels.append(Kernel(f"fc{index}", "fully_connected", draw(layers())))
        else:
            kernels.append(Kernel(f"ew{index}", "elementwise", draw(loops())))
    names = [kernel.name for kernel in kernels]
    pairs = draw(
        st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=20, unique=True)
    )
    edges = [Edge(src, dst, draw(st.integers(1, 5000))) for src, dst in pairs]
    return KernelGraph(tuple(kernels), tuple(edges), batch_size=draw(st.integers(1, 512)))


def try_place(graph: KernelGraph, fabric: Fabric) -> Placement | None:
    try:
        return place(graph, fabric)
    except PlacementError:
        return None


@settings(max_examples=examples(15))
@given(graphs(), st.integers(8, 200), st.integers(8, 200))
def test_placements_are_legal(graph: KernelGraph, width: int, height: int) -> None:
    fabric = fabric_of(width, height)
    placement = try_place(graph, fabric)
    if placement is None:
        return
    assert list(placement.rects) == [kernel.name for kernel in graph.kernels]
    for name, rect in placement.rects.items():
        layout = placement.layouts[name]
        assert 0 <= rect.x <= rect.x + rect.width <= width
        assert 0 <= rect.y <= rect.y + rect.height <= height
        assert {(rect.width, rect.height)} <= {(layout.width, layout.height), (layout.height, layout.width)}
        assert layout.memory_per_pe_bytes <= fabric.memory_per_pe_bytes
        assert 1 <= layout.cycles <= placement.target_cycles
    for first, second in combinations(placement.rects.values(), 2):
        assert not first.overlaps(second)
    assert placement.active_pes == sum(rect.area for rect in placement.rects.values())


@settings(max_examples=examples(8))
@given(graphs(), st.integers(20, 200), st.integers(20, 200))
def test_a_placement_depends_only_on_its_arguments(graph: KernelGraph, width: int, height: int) -> None:
    fabric = fabric_of(width, height)
    assert try_place(graph, fabric) == try_place(graph, fabric)


@settings(max_examples=examples(15))
@given(graphs(), st.integers(20, 200), st.integers(20, 200), st.integers(0, 200), st.integers(0, 200))
def test_more_area_is_hardly_ever_slower(
    graph: KernelGraph, width: int, height: int, more_width: int, more_height: int
) -> None:
    small = try_place(graph, fabric_of(width, height))
    large = try_place(graph, fabric_of(width + more_width, height + more_height))
    if small is not None:
        assert large is not None
        # The search is no exhaustive one.
        assert large.target_cycles <= 1.05 * small.target_cycles
