"""The compiled program of every example equals that of the passes on the whole step."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from xdsl.dialects.builtin import ModuleOp

from benchmarks.example_step import example_step
from cgc.cirh.interface import graph_function
from cgc.cirh.module import copy_module
from cgc.cirh.op_table import OpTable, tabulate_ops
from cgc.cirh.text import print_module
from cgc.passes import DEFAULT_PIPELINE, precision_pipeline
from cgc.passes.pipeline import run_pipeline
from cgc.repeats.expand import expand_step
from cgc.repeats.rewrite import rewrite
from cgc.repeats.shorten import ShortStep
from cs_toolkit.step import Precision
from cstorch.program import Program

pytestmark = pytest.mark.soak

MODELS = Path(__file__).parents[3] / "models"
TENSORFLOW = [
    ("fc_mnist", "fc_mnist"),
    ("bert", "bert_tiny"),
    ("bert", "bert_tiny_squad"),
    ("bert", "bert_base"),
    ("gpt2", "gpt2_tiny"),
    ("gpt2", "gpt2_small"),
    ("resnet", "resnet_tiny"),
    ("resnet", "resnet18"),
    ("transformer", "transformer_tiny"),
    ("transformer", "transformer_d256_12_12"),
    ("unet", "unet_tiny"),
]
TORCH = [
    ("fc_mnist", "fc_mnist", 0),
    ("bert", "bert_mini", 0),
    ("gpt2", "gpt2_tiny", 16),
    ("gpt2", "gpt2_small", 0),
    ("resnet", "resnet_tiny", 0),
]
"""Each with its depth, where that is not the one of the parameter file."""
DEEP = {"bert_base", "gpt2_small"}
"""12 equal blocks, of which most are left out."""
PRECISIONS: tuple[Precision, ...] = ("float32", "mixed_float16", "cbfloat16")


def assert_as_whole(module: ModuleOp, scanned: OpTable | None) -> None:
    for precision in PRECISIONS:
        pipeline = ",".join(filter(None, (DEFAULT_PIPELINE, precision_pipeline(precision))))
        whole = copy_module(module)
        run_pipeline(whole, pipeline)
        assert print_module(rewrite(module, scanned, pipeline)) == print_module(whole)


@pytest.fixture
def omitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the omitted copies of a block in each unfolded step."""
    found: list[int] = []

    def counted(short: ModuleOp, source: ShortStep) -> ModuleOp:
        found.append(source.num_omitted)
        return expand_step(short, source)

    monkeypatch.setattr("cgc.repeats.rewrite.expand_step", counted)
    return found


@pytest.mark.parametrize(("model", "params"), TENSORFLOW)
def test_tensorflow(model: str, params: str, omitted: list[int]) -> None:
    module = example_step(model, f"params_{params}.yaml")
    assert_as_whole(module, tabulate_ops(graph_function(module)))
    assert (max(omitted, default=0) > 4) == (params in DEEP)


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    Program.reset()
    yield
    Program.reset()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(("model", "params", "depth"), TORCH)
def test_torch(
    model: str, params: str, depth: int, omitted: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checked: list[ModuleOp] = []

    def both(module: ModuleOp, scanned: OpTable | None, pipeline: str) -> ModuleOp:
        checked.append(module)
        assert_as_whole(module, scanned)
        return rewrite(module, scanned, pipeline)

    program = MODELS / model / "pytorch" / "run.py"
    values = yaml.safe_load((program.parent / "configs" / f"params_{params}.yaml").read_text())
    if depth:
        values["model"]["num_hidden_layers"] = depth
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
    flags = ["--mode=train", f"--model_dir={tmp_path}", f"--params={tmp_path / 'params.yaml'}"]
    monkeypatch.setattr(sys, "argv", [str(program), *flags, "--validate_only"])
    monkeypatch.setattr("cgc.repeats.rewrite.rewrite", both)
    runpy.run_path(str(program), run_name="__main__")
    assert checked
    assert not depth or max(omitted) > 4
