"""Suggestions of a compile report: their order, and what they say about the next limit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cgc.cirh.text import parse_module
from cgc.kernels import Kernel, KernelGraph, match_kernels
from cgc.manifest import Provenance
from cgc.performance.replicas import choose_replicas, replicate
from cgc.report import CompileReport, build_json, build_replicas_report, render_html, render_text
from cgc.report.suggestions import FRONT_ENDS, Suggestion
from cs_toolkit.execution_options import OPTIONS, parse_option
from cs_toolkit.fabric import Fabric, load_fabric

CS2 = load_fabric("cs2")
MNIST = Path(__file__).parents[3] / "golden" / "cgc" / "fc_mnist_train.mlir"


@pytest.fixture(scope="module")
def mnist() -> KernelGraph:
    return match_kernels(parse_module(MNIST.read_text()))


def report_of(graph: KernelGraph, fabric: Fabric = CS2) -> CompileReport:
    return build_replicas_report(replicate(graph, fabric, 1), (), fabric)


def test_replicas_are_what_auto_chooses_and_come_first_where_there_is_room(mnist: KernelGraph) -> None:
    report = report_of(mnist)
    first = report.suggestions[0]
    best, _ = choose_replicas(mnist, CS2)
    assert first.option == ("num_replicas", best.count)
    assert first.samples_per_s == pytest.approx(best.samples_per_s, rel=0.01)
    data = json.loads(json.dumps(build_json(report)))["suggestions"][0]
    assert data["lever"] == "replicas"
    assert data["how"] == {
        "estimator": f"CSRunConfig(num_replicas={best.count})",
        "cstorch": f"cstorch.configure(num_replicas={best.count})",
    }
    for front_end in FRONT_ENDS:
        made = Provenance(front_end=front_end)
        assert f"| {data['how'][front_end]} |" in render_text(report, made)
        assert front_end == "estimator" or data["how"][front_end].split("=")[0] in (
            render_html(report, made).replace("<wbr>", "")
        )


def test_every_option_that_is_suggested_exists() -> None:
    for name, value in (
        ("num_replicas", 8),
        ("precision", "cbfloat16"),
        ("micro_batch_size", "auto"),
    ):
        assert name in OPTIONS
        assert parse_option(name, value) == value
    half = Suggestion("precision", "16 bits", 1.0, 1.0, ("precision", "cbfloat16"))
    assert half.describe_how("cstorch") == 'cstorch.amp.set_half_dtype("cbfloat16")'
    assert half.describe_how("estimator") == 'CSRunConfig(precision="cbfloat16")'
    assert half.describe_how() == 'precision="cbfloat16"'


SIZES = {
    "rows": 128,
    "inputs": 1024,
    "outputs": 4096,
    "passes": 3,
    "element_bytes": 4,
    "batch": 32,
    "resident_bytes": 4 * 4 * 1024 * 4096,
    "stash_bytes": 0,
    "epilogue_millicycles": 0,
    "step_millicycles": 0,
    "reload": 0,
}


def test_the_next_kernel_bounds_the_rate_after_a_change_of_sizes() -> None:
    wide = Kernel("wide", "fully_connected", SIZES)
    next_one = Kernel("next", "fully_connected", {**SIZES, "rows": 100})
    report = report_of(KernelGraph((wide, next_one), batch_size=32))
    fewer_rows = next(one for one in report.suggestions if one.change.startswith("half as many rows"))
    after = report_of(KernelGraph((replace(wide, parameters={**SIZES, "rows": 64}), next_one), batch_size=32))
    assert fewer_rows.samples_per_s == pytest.approx(after.samples_per_s, rel=0.01)
    assert fewer_rows.times < 1.5, "the kernel by itself would be twice as fast"
    twins = report_of(KernelGraph((wide, replace(wide, name="twin")), batch_size=32))
    assert any(one.program == "wide and 1 like it" for one in twins.suggestions)


def test_a_model_that_nothing_makes_faster_is_told_the_law() -> None:
    sizes = {**SIZES, "element_bytes": 2, "rows": 1, "inputs": 1, "outputs": 1, "batch": 1, "passes": 1}
    kernel = Kernel("fc1", "fully_connected", {**sizes, "resident_bytes": 4})
    report = report_of(KernelGraph((kernel,), batch_size=1))
    assert report.suggestions == ()
    sentence = "no change of replicas, precision, batch or sizes is predicted to be faster; "
    assert f"To go faster: {sentence}" in render_text(report)
    assert sentence[1:] in render_html(report)
    assert build_json(report)["suggestions"] == []


def test_smaller_samples_are_suggested_where_the_host_is_the_limit(mnist: KernelGraph) -> None:
    slow = CS2.model_copy(update={"io_links": 1, "io_link_bits_per_s": 10e9})
    first = report_of(mnist, slow).suggestions[0]
    assert first.lever == "input"
    size = int(first.change.split()[2].replace(",", ""))
    after = report_of(replace(mnist, input_bytes_per_sample=size), slow)
    assert after.samples_per_s == pytest.approx(first.samples_per_s, rel=0.01)
