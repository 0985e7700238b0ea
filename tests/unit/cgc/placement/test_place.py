from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from cgc.errors import PlacementError
from cgc.kernels import Edge, Kernel, KernelGraph
from cgc.placement import Placement, place
from cs_toolkit.fabric import Fabric, load_fabric

pytestmark = pytest.mark.usefixtures("full_placement")


def layer(name: str, inputs: int, outputs: int, **changes: int) -> Kernel:
    sizes = {
        "rows": 1,
        "inputs": inputs,
        "outputs": outputs,
        "passes": 3,
        "element_bytes": 4,
        "resident_bytes": 16 * inputs * outputs,
        "stash_bytes": 0,
        "epilogue_millicycles": 2000 * outputs,
        "step_millicycles": 45_000 * inputs * outputs,
        "reload": 0,
        "batch": 256,
    }
    return Kernel(name, "fully_connected", {**sizes, **changes}, source="model.py:7")


def elementwise(name: str, elements: int, cycles_per_element: int = 10, **changes: int) -> Kernel:
    sizes = {
        "rows": 1,
        "row_elements": elements,
        "starts": 2,
        "reductions": 0,
        "work_millicycles": 1000 * cycles_per_element * elements,
        "step_millicycles": 0,
        "streamed_elements": elements,
        "element_bytes": 4,
        "resident_bytes": 0,
        "stash_bytes": 0,
        "batch": 256,
    }
    return Kernel(name, "elementwise", {**sizes, **changes})


def chain(*kernels: Kernel) -> KernelGraph:
    edges = tuple(Edge(a.name, b.name, 1) for a, b in pairwise(kernels))
    return KernelGraph(kernels, edges, batch_size=256)


def assert_legal(placement: Placement, fabric: Fabric) -> None:
    for name, rect in placement.rects.items():
        assert rect.x >= 0
        assert rect.y >= 0
        assert rect.x + rect.width <= fabric.width
        assert rect.y + rect.height <= fabric.height
        assert placement.layouts[name].memory_per_pe_bytes <= fabric.memory_per_pe_bytes
    assert not any(a.overlaps(b) for a, b in combinations(placement.rects.values(), 2))


@pytest.fixture(scope="module")
def cs2() -> Fabric:
    return load_fabric("cs2")


def test_no_kernel_is_larger_than_the_pace_of_the_pipeline_needs(cs2: Fabric) -> None:
    """The slow kernel cannot be split; by itself, the layer next to it would take many times the area."""
    slow = elementwise("slow", 4, cycles_per_element=500)
    small = layer("fc", 256, 256)
    together = place(chain(slow, small), cs2)
    alone = place(chain(small), cs2)
    assert together.layouts["slow"].cycles <= together.target_cycles <= 1.05 * together.layouts["slow"].cycles
    assert together.layouts["fc"].cycles <= together.target_cycles
    assert together.rects["fc"].area * 4 < alone.rects["fc"].area


def test_a_pipeline_that_fills_the_fabric_balances_its_kernels(cs2: Fabric) -> None:
    layers = [layer(f"fc{index}", 2048, 2048, rows=64) for index in range(24)]
    placement = place(chain(*layers), cs2)
    assert_legal(placement, cs2)
    assert placement.total_utilization > 0.85
    cycles = [layout.cycles for layout in placement.layouts.values()]
    assert min(cycles) > 0.8 * max(cycles)


def test_the_fabric_is_not_filled_for_the_last_few_cycles(cs2: Fabric) -> None:
    graph = chain(layer("fc", 784, 500))
    modest = place(graph, cs2)
    greedy = place(graph, cs2, area_per_speed=1000.0)
    assert greedy.target_cycles < modest.target_cycles
    assert greedy.active_pes > 1.5 * modest.active_pes


def test_neighbours_in_the_pipeline_lie_close_together(cs2: Fabric) -> None:
    layers = [layer(f"fc{index}", 600, 600) for index in range(20)]
    flow = place(chain(*layers), cs2)
    distances = [
        abs(a.center[0] - b.center[0]) + abs(a.center[1] - b.center[1])
        for a, b in combinations(flow.rects.values(), 2)
    ]
    mean_of_all_pairs = sum(distances) / len(distances)
    assert flow.wire_length / 19 < 0.6 * mean_of_all_pairs


def blocks(count: int) -> KernelGraph:
    """Blocks of five kernels, like those of a deep network."""
    kernels = [
        kernel
        for block in range(count)
        for kernel in (
            layer(f"b{block}.up", 64, 256),
            elementwise(f"b{block}.gelu", 256),
            layer(f"b{block}.down", 256, 64),
            elementwise(f"b{block}.add", 64),
            elementwise(f"b{block}.norm", 64, 30),
        )
    ]
    return chain(*kernels)


def test_work_of_placing_grows_no_faster_than_the_kernels(cs2: Fabric, calls: Callable[..., int]) -> None:
    found: list[Placement] = []
    small, large = blocks(10), blocks(40)
    few = calls(lambda: found.append(place(small, cs2)))
    assert calls(lambda: found.append(place(large, cs2))) < 4 * few
    for placement, count in zip(found, (10, 40), strict=True):
        assert len(placement.rects) == 5 * count
        assert_legal(placement, cs2)
        side = (placement.active_pes / (5 * count)) ** 0.5
        assert placement.wire_length / (5 * count - 1) < 5 * side


def test_hundreds_of_different_kernels_fill_the_fabric(cs2: Fabric) -> None:
    kernels = [
        layer(f"fc{index}", 100 + 7 * (index % 90), 50 + 11 * (index % 70))
        if index % 3 == 0
        else elementwise(f"ew{index}", 1 + 97 * index)
        for index in range(150)
    ]
    placement = place(chain(*kernels), cs2, area_per_speed=1000.0)
    assert len(placement.rects) == 150
    assert_legal(placement, cs2)
    assert placement.total_utilization > 0.85
    assert len({layout.cycles for layout in placement.layouts.values()}) > 10


def test_a_placement_is_the_same_in_every_process(cs2: Fabric) -> None:
    """The placement is part of an artifact that is named by its content."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_place as t\n"
        "graph = t.chain(*[t.layer(f'fc{i}', 100 + 9 * i, 50 + 5 * i) for i in range(12)])\n"
        "placement = t.place(graph, t.load_fabric('cs2'))\n"
        "print(sorted(placement.rects.items()), placement.target_cycles)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert "fc11" in outputs.pop()


def test_a_kernel_spreads_until_its_memory_fits(cs2: Fabric) -> None:
    stash = 4_000_000
    placement = place(chain(elementwise("kept", 64, stash_bytes=stash)), cs2)
    assert placement.rects["kept"].area >= stash / cs2.memory_per_pe_bytes
    assert_legal(placement, cs2)


def test_a_kernel_that_is_too_large_is_named_with_its_memory(cs2: Fabric) -> None:
    huge = layer("block7.fc", 100_000, 100_000)
    with pytest.raises(PlacementError) as error:
        place(chain(layer("fc", 10, 10), huge), cs2)
    message = str(error.value)
    assert "kernel block7.fc (model.py:7) does not fit" in message
    assert "bytes per PE, available are 49,152 on 740 x 416 PEs of cs2" in message
    assert "all 2 kernels together take at least" in message
    assert error.value.exit_code == 1
    shortage = error.value.shortage
    assert shortage is not None
    # 16 bytes of state for every weight.
    assert shortage.needed_pes >= 16 * 100_000**2 / 49_152
    assert shortage.available_pes == 740 * 416
    assert shortage.largest_kernel == shortage.fullest_kernel == "block7.fc"
    assert shortage.needed_bytes_per_pe > shortage.available_bytes_per_pe == 49_152


def test_kernels_that_do_not_fit_together_are_refused_with_the_largest(cs2: Fabric) -> None:
    layers = [layer(f"fc{index}", 12_288, 12_288) for index in range(40)]
    with pytest.raises(
        PlacementError, match=r"the 40 kernels do not fit together: at their smallest they take"
    ) as error:
        place(chain(*layers), cs2)
    assert "available are 307,840 (740 x 416) on cs2; " in str(error.value)
    assert "the largest is fc0 (model.py:7) with" in str(error.value)
    assert str(error.value).endswith("make the model smaller: fewer or narrower layers, shorter sequences")
    shortage = error.value.shortage
    assert shortage is not None
    assert shortage.needed_pes == 40 * shortage.largest_kernel_pes > shortage.available_pes
    assert f"{shortage.needed_pes / 307_840:.1f} times as many are needed" in str(error.value)


def test_a_rectangle_wider_than_the_fabric_is_refused() -> None:
    tiny = load_fabric("cs2").model_copy(update={"width": 3, "height": 2})
    with pytest.raises(
        PlacementError, match=r"its smallest rectangle is \d+ x \d+ PEs, available are 3 x 2 PEs"
    ):
        place(chain(layer("fc", 64, 64)), tiny)


def test_a_graph_without_kernels_is_refused(cs2: Fabric) -> None:
    with pytest.raises(PlacementError, match="the graph has no kernels"):
        place(KernelGraph(()), cs2)
