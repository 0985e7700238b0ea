"""What limits the speed, on graphs that are really placed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cgc.cirh.text import parse_module
from cgc.fabric import load_fabric
from cgc.kernels import Kernel, KernelGraph, match_kernels
from cgc.placement import place
from cgc.report import CompileReport, Limit, Reason, compile_report, report_json

STEP = Path(__file__).parents[1] / "steps" / "mlp_train.mlir"
CS2 = load_fabric("cs2")


def loop(elements: int) -> dict[str, int]:
    """An elementwise loop over `elements` of a sample, one cycle each, that streams next to nothing."""
    return {
        "rows": 1,
        "row_elements": elements,
        "starts": 2,
        "reductions": 2,
        "work_millicycles": 1000 * elements,
        "step_millicycles": 0,
        "streamed_elements": 1,
        "element_bytes": 4,
        "resident_bytes": 0,
        "stash_bytes": 0,
        "batch": 32,
    }


def graph_of(count: int, elements: int = 65_536, input_bytes: int = 1) -> KernelGraph:
    kernels = tuple(Kernel(f"exp{index}", "elementwise", loop(elements)) for index in range(count))
    return KernelGraph(kernels, batch_size=32, input_bytes_per_sample=input_bytes)


def compiled(graph: KernelGraph, **fabric: int) -> CompileReport:
    smaller = CS2.model_copy(update=fabric)
    return compile_report(graph, place(graph, smaller), smaller)


def test_input_that_is_slower_than_every_kernel() -> None:
    report = compiled(graph_of(2, input_bytes=10**9))
    assert report.limit == Limit("transmission", Reason.HOST_INPUT)
    assert report.bottleneck is None


def test_a_kernel_that_cannot_be_split_further() -> None:
    graph = match_kernels(parse_module(STEP.read_text(encoding="utf-8")))
    report = compiled(graph)
    assert report.limit.reason is Reason.FASTEST_LAYOUT
    assert report.limit.kind == report.performance.limit
    wider = compiled(graph, width=2 * CS2.width, height=2 * CS2.height)
    assert wider.performance.overall.deltat_cycles == report.performance.overall.deltat_cycles


def test_a_fabric_that_is_full_and_the_same_kernels_with_room() -> None:
    graph = graph_of(40)
    roomy, tight = compiled(graph), compiled(graph, width=40, height=40)
    assert tight.limit == Limit("area", Reason.WAFER_FULL)
    assert roomy.limit.kind != "area"
    assert roomy.performance.overall.deltat_cycles < tight.performance.overall.deltat_cycles
    assert report_json(tight)["bottleneck"]["limit"] == "area"
    assert tight.bottleneck is not None


@pytest.mark.parametrize("count", [1, 40])
def test_speed_that_costs_too_much_area(count: int) -> None:
    graph = graph_of(count)
    report = compiled(graph)
    assert report.limit.reason is Reason.AREA_TOO_DEAR
    faster = place(graph, CS2, area_per_speed=100.0)
    assert faster.target_cycles < report.placement.target_cycles
    assert faster.active_pes > report.placement.active_pes
