"""The bottleneck on placed graphs."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from xdsl.ir import Block, SSAValue

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.cirh.text import parse_module
from cgc.cirh.types import tensor_type
from cgc.kernels import Kernel, KernelGraph, match_kernels
from cgc.kernels.families import configurations
from cgc.kernels.generated import GeneratedKernel
from cgc.kernels.nest_cost import nest_shares
from cgc.lair.lower import lower_group
from cgc.lair.nest import loop_program
from cgc.placement import place
from cgc.placement.shapes import kernel_shapes
from cgc.report import (
    CompileReport,
    Limit,
    Reason,
    build_json,
    build_report,
    render_html,
    render_text,
)
from cgc.report.text import render_verdict
from cs_toolkit.fabric import load_fabric
from tests.programs.steps import MLP_TRAIN

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
    return build_report(graph, place(graph, smaller), smaller)


def test_input_that_is_slower_than_every_kernel() -> None:
    report = compiled(graph_of(2, input_bytes=10**9))
    assert report.pipelined.limit == Limit("transmission", Reason.HOST_INPUT)
    assert report.pipelined.bottleneck is None


def test_a_kernel_that_cannot_be_split_further() -> None:
    graph = match_kernels(parse_module(MLP_TRAIN.read_text(encoding="utf-8")))
    report = compiled(graph)
    assert report.pipelined.limit.reason is Reason.FASTEST_LAYOUT
    assert report.pipelined.limit.kind == report.pipelined.performance.limit
    wider = compiled(graph, width=2 * CS2.width, height=2 * CS2.height)
    assert (
        wider.pipelined.performance.overall.deltat_cycles
        == report.pipelined.performance.overall.deltat_cycles
    )


def test_a_fabric_that_is_full_and_the_same_kernels_with_room() -> None:
    graph = graph_of(40)
    roomy, tight = compiled(graph), compiled(graph, width=40, height=40)
    assert tight.pipelined.limit == Limit("area", Reason.WAFER_FULL)
    assert roomy.pipelined.limit.kind != "area"
    assert (
        roomy.pipelined.performance.overall.deltat_cycles < tight.pipelined.performance.overall.deltat_cycles
    )
    assert build_json(tight)["bottleneck"]["limit"] == "area"
    assert tight.pipelined.bottleneck is not None


@pytest.mark.parametrize("count", [1, 40])
def test_speed_that_costs_too_much_area(count: int) -> None:
    graph = graph_of(count)
    report = compiled(graph)
    assert report.pipelined.limit.reason is Reason.AREA_TOO_DEAR
    faster = place(graph, CS2, area_per_speed=100.0)
    assert faster.target_cycles < report.pipelined.placement.target_cycles
    assert faster.active_pes > report.pipelined.placement.active_pes
    assert "; a percent of speed would cost more than 4 percent of area." in render_verdict(report)
    # Copies use the area of an empty wafer better than larger kernels would.
    best = report.suggestions[0]
    assert best.lever == "replicas"
    assert best.times > report.pipelined.placement.target_cycles / faster.target_cycles


def first_suggestion(report: CompileReport) -> str:
    """Return the first suggestion, which all forms of the report contain."""
    first = report.explanations[0]
    assert first in render_text(report)
    assert first in html.unescape(render_html(report))
    assert build_json(report)["bottleneck"]["remedies"] == list(report.explanations)
    return first


def test_smaller_samples_lift_the_limit_of_the_input() -> None:
    report = compiled(graph_of(2, input_bytes=10**9))
    (size,) = re.findall(r"Samples of ([\d,]+) bytes", first_suggestion(report))
    smaller = compiled(graph_of(2, input_bytes=int(size.replace(",", ""))))
    assert smaller.pipelined.limit.reason is not Reason.HOST_INPUT


def test_a_full_wafer_states_what_a_higher_speed_would_take() -> None:
    report = compiled(graph_of(40), width=40, height=40)
    (needed,) = re.findall(r"would take ([\d,]+) PEs.* the fabric has 1,600", first_suggestion(report))
    assert int(needed.replace(",", "")) > report.pipelined.performance.overall.active_pes
    assert len(report.explanations) == 1, "memory gives no kernel its size"


def test_a_full_wafer_keeps_room_for_wires() -> None:
    report = compiled(graph_of(25), width=30, height=40)
    (needed,) = re.findall(
        r"would take ([\d,]+) PEs.* kernels get 1,080 of the 1,200 of the fabric, the rest is for",
        first_suggestion(report),
    )
    assert 1080 < int(needed.replace(",", "")) <= 1200


def test_a_full_wafer_states_how_much_of_it_memory_takes() -> None:
    holding = [Kernel(f"held{i}", "elementwise", {**loop(1024), "stash_bytes": 4 << 20}) for i in range(4)]
    graph = KernelGraph((*holding, *graph_of(20).kernels), batch_size=32, input_bytes_per_sample=1)
    report = compiled(graph, width=40, height=40)
    assert report.pipelined.limit.reason is Reason.WAFER_FULL
    assert "Memory, not speed, gives 4 of 24 kernels their size" in report.explanations[1]


def waiting_graph(count: int) -> KernelGraph:
    """Kernels that keep 256 KiB of every sample, each for two samples more than the next one."""
    kernels = [
        Kernel(
            f"held{index}",
            "elementwise",
            {**loop(16_384), "stash_bytes": 1 << 18},
            samples_in_flight=1 + 2.0 * (count - index),
        )
        for index in range(count)
    ]
    return KernelGraph(tuple(kernels), batch_size=32, input_bytes_per_sample=1)


def test_samples_that_wait_for_memory() -> None:
    report = compiled(waiting_graph(24), width=64, height=40)
    assert report.pipelined.limit == Limit("memory", Reason.ACTIVATIONS)
    overall, placement = report.pipelined.performance.overall, report.pipelined.placement
    assert placement.fill < 1
    assert render_verdict(report) == (
        f"Verdict: memory for activations bounds the speed: a sample is admitted every "
        f"{overall.deltat_cycles:,} cycles, the kernels would take one every "
        f"{placement.target_cycles:,}; kernel held0 holds the most."
    )
    waiting = 1 + 48 * placement.fill
    assert f"held0 holds activations of {waiting:.1f} samples, 262,144 bytes each" in first_suggestion(report)
    assert "Memory, not speed, gives" in report.explanations[1]
    assert "<strong>Memory</strong> is the limit" in render_html(report)
    assert build_json(report)["bottleneck"]["reason"] == "activations"
    fewer = compiled(waiting_graph(12), width=64, height=40)
    assert fewer.pipelined.performance.overall.samples_per_s > overall.samples_per_s


def test_the_area_that_a_higher_speed_would_cost() -> None:
    report = compiled(graph_of(1))
    (shapes,) = kernel_shapes(graph_of(1).kernels, CS2)
    fastest = int(shapes.cycles[0])
    assert f"exp0 could take {fastest:,} cycles on " in first_suggestion(report)
    assert f"At its fastest layout exp0 takes {fastest:,} cycles a sample" in report.explanations[1]


LINES = {"rows": 64, "lines": 64, "line_elements": 1024}


def test_images_state_their_lines_and_the_next_limit() -> None:
    image = Kernel("pool", "pooling", {**loop(1024), **LINES})
    rest = Kernel("exp", "elementwise", loop(1024))
    report = compiled(KernelGraph((image, rest), batch_size=32, input_bytes_per_sample=1))
    assert "as 64 lines of 1,024 elements, 417.5 cycles a line" in first_suggestion(report)  # of 32 bits
    next_cycles = int(configurations(rest).cycles.min())
    assert report.explanations[1].startswith("After that exp would be the slowest")
    assert f"({next_cycles:,} cycles)" in report.explanations[1]
    halved = Kernel("pool", "pooling", {**loop(1024), **LINES, "lines": 32})
    faster = compiled(KernelGraph((halved, rest), batch_size=32, input_bytes_per_sample=1))
    assert (
        faster.pipelined.performance.overall.deltat_cycles
        == report.pipelined.performance.overall.deltat_cycles / 2
    )


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda x: [ops.CumSumOp(x, 1)], "every step of the scan needs the previous one"),
        (lambda x: [ops.ReduceOp(x, "ADD", (1,))], "a running value passes from PE to PE"),
        (lambda x: [ops.SinOp(x)], "its iterations are all spread"),
    ],
)
def test_loops_of_a_generated_kernel_state_their_limit(
    build: Callable[[SSAValue], Sequence[CirhOp]], words: str
) -> None:
    report, smaller = made_report(build, 4096), made_report(build, 2048)
    kernel = report.pipelined.kernels[0].kernel
    assert kernel.loops is not None
    layouts = configurations(kernel)
    fastest = layouts[int(np.argmin(layouts.compute_cycles))]
    shares = nest_shares(kernel.loops, kernel.parameters, fastest)
    assert sum(share for _, share in shares) == pytest.approx(1)
    sentence = "\n".join(report.explanations)
    assert words in sentence
    assert f"`{kernel.loops.program.nests[0].describe()}`" in sentence
    half = next(
        change for change in report.changes if change.change.startswith("half as many elements (2,048")
    )
    assert half.cycles == smaller.changes[0].cycles, "what a program of half the size takes"
    assert any(one.change == half.change for one in report.suggestions) is half.helps


def test_a_generated_kernel_without_the_loops_that_take_its_time() -> None:
    report = made_report(lambda x: [sin := ops.SinOp(x), ops.CumSumOp(sin.results[0], 1)], 4096)
    alone = made_report(lambda x: [ops.CumSumOp(x, 1)], 4096)
    change = next(change for change in report.changes if change.change == "without its slowest loop nest")
    assert change.cycles == alone.changes[0].cycles < report.changes[0].cycles


def made_report(build: Callable[[SSAValue], Sequence[CirhOp]], elements: int) -> CompileReport:
    """Return the program of a kernel that is generated for the function on 32 samples."""
    block = Block(arg_types=[tensor_type((32, elements), "float32")])
    made = build(*block.args)
    program = loop_program(lower_group(made, block.args, [made[-1].results[0]]))
    loops = GeneratedKernel(program, frozenset({0, *program.results}), frozenset(), 32)
    sizes = {"batch": 32, "stash_bytes": 0}
    kernel = Kernel("made", "elementwise", sizes, generated=True, loops=loops)
    return compiled(KernelGraph((kernel,), batch_size=32, input_bytes_per_sample=1))
