"""The compile report of FC-MNIST, letter by letter.

`UPDATE_GOLDEN=1 pytest tests/golden/cgc/test_report_golden.py` writes them again; look at the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cgc.cirh.text import parse_module
from cgc.kernels import match_kernels
from cgc.performance.replicas import select_replicas
from cgc.placement import place
from cgc.report import (
    CompileReport,
    build_json,
    build_replicas_report,
    build_report,
    render_kernel_list,
    render_plan,
    render_text,
)
from cs_toolkit.execution_options import ReplicaChoice
from cs_toolkit.fabric import load_fabric

pytestmark = pytest.mark.usefixtures("full_placement")

HERE = Path(__file__).parent


def assert_golden(name: str, text: str) -> None:
    path = HERE / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def report() -> CompileReport:
    graph = match_kernels(parse_module((HERE / "fc_mnist_train.mlir").read_text(encoding="utf-8")))
    fabric = load_fabric("cs2")
    return build_report(graph, place(graph, fabric), fabric)


def test_compile_report_text(report: CompileReport) -> None:
    assert_golden("fc_mnist_compile_report.txt", render_text(report))


def test_compile_report_json(report: CompileReport) -> None:
    assert_golden("fc_mnist_compile_report.json", json.dumps(build_json(report), indent=1) + "\n")


@pytest.mark.parametrize("choice", [2, "auto"])
def test_report_of_replicas(choice: ReplicaChoice) -> None:
    graph = match_kernels(parse_module((HERE / "fc_mnist_train.mlir").read_text(encoding="utf-8")))
    fabric = load_fabric("cs2")
    report = build_replicas_report(*select_replicas(graph, fabric, choice), fabric)
    assert_golden(f"fc_mnist_replicas_{choice}_report.txt", render_text(report))


def test_plan(report: CompileReport) -> None:
    assert_golden("fc_mnist_plan.json", render_plan(report) + "\n")


def test_kernel_list() -> None:
    graph = match_kernels(parse_module((HERE / "fc_mnist_train.mlir").read_text(encoding="utf-8")))
    assert_golden("fc_mnist_kernels.txt", render_kernel_list(graph))
