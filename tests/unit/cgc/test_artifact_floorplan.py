from __future__ import annotations

import json
from pathlib import Path

from cgc.artifact_floorplan import summarize_floorplan
from cgc.cirh.text import parse_module
from cgc.execution.compilation import Stages
from cgc.execution.weight_streaming import estimate_streamed
from cgc.kernels import Edge, Kernel, KernelGraph
from cgc.placement import place
from cgc.report import build_report
from cgc.report.data import build_json, render_plan
from cs_toolkit.execution_options import Streaming
from cs_toolkit.fabric import load_fabric
from cs_toolkit.floorplan import read_floorplan

CS2 = load_fabric("cs2")


def loop_kernel(name: str, work: int) -> Kernel:
    loop = {
        "rows": 1,
        "row_elements": 64,
        "starts": 2,
        "reductions": 2,
        "work_millicycles": work,
        "step_millicycles": 0,
        "streamed_elements": 64,
        "element_bytes": 4,
        "resident_bytes": 0,
        "stash_bytes": 0,
        "batch": 32,
    }
    return Kernel(name, "elementwise", loop, ("cirh.Exp",), (0,), "model.py:1")


def test_the_floorplan_of_a_pipelined_step_marks_the_kernels_that_bound_it():
    kernels = (loop_kernel("light", 64_000), loop_kernel("heavy", 640_000), loop_kernel("x" * 300, 64_000))
    graph = KernelGraph(kernels, (Edge("light", "heavy", 64),), batch_size=32, input_bytes_per_sample=64)
    report = build_report(graph, place(graph, CS2), CS2)
    found = read_floorplan(
        summarize_floorplan(json.dumps(build_json(report)).encode(), render_plan(report).encode())
    )
    assert (found.width, found.height) == (CS2.width, CS2.height)
    assert found.bound_by == ("heavy",)
    loads = {kernel.name[:5]: kernel.load for kernel in found.kernels}
    assert loads["heavy"] == 1.0
    assert 0 < (loads["light"] or 0) < 1
    assert max(len(kernel.name) for kernel in found.kernels) == 200
    assert found.samples_per_s == report.samples_per_s


def test_the_floorplan_of_streamed_weights_is_that_of_the_slowest_layer():
    step = Path(__file__).parents[2] / "golden" / "cgc" / "fc_mnist_train.mlir"
    _, report = estimate_streamed(parse_module(step.read_text()), CS2, Stages(3, None), Streaming())
    fields = build_json(report)
    found = read_floorplan(summarize_floorplan(json.dumps(fields).encode(), None))
    assert found.part == fields["kernel"]["layer"]
    assert found.bound_by == (fields["kernel"]["name"],)
    assert found.bound_by[0] in {kernel.name for kernel in found.kernels}
    inside = (k.x + k.width <= found.width and k.y + k.height <= found.height for k in found.kernels)
    assert all(inside)


def test_an_artifact_without_a_report_has_no_floorplan():
    assert summarize_floorplan(b"", None) == ""
    assert summarize_floorplan(b"{}", b"{}") == ""
