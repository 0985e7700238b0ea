from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass

from cgc.cirh.ops import ALL_OPS, AddOp, ConstOp, ExpOp, MatMulOp, MulOp, NegOp, ReluOp, TransposeOp
from cgc.cirh.text import parse_module, print_module
from cgc.cirh.types import tensor_type
from cgc.errors import CompileError, PipelineError
from cgc.passes import DEFAULT_PIPELINE, pipeline
from cgc.passes.constant_fold import ConstantFoldPass
from cgc.passes.pipeline import parse_passes, run_pipeline
from cgc.tools.opt import main as cgc_opt

TEXT = """builtin.module {
  func.func @graph(%x: tensor<4xf32>) -> tensor<4xf32> {
    %one = cirh.Const dense<1.000000e+00> : tensor<4xf32>
    %y = cirh.Mul %x, %one : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}
"""


def test_passes_are_found_by_name_with_their_options() -> None:
    passes = parse_passes("canonicalize, constant-fold{max-elements=64},dce")
    assert [p.name for p in passes] == ["canonicalize", "constant-fold", "dce"]
    assert passes[1] == ConstantFoldPass(max_elements=64)
    assert str(passes[1]) == "constant-fold{max_elements=64}"
    assert parse_passes("") == ()
    assert [p.name for p in parse_passes(DEFAULT_PIPELINE)].count("fuse") == 1
    assert parse_passes("default,cse") == (*parse_passes(DEFAULT_PIPELINE), *parse_passes("cse"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("canonicalise", "unknown pass 'canonicalise', expected one of .*; did you mean 'canonicalize'"),
        ("x", "unknown pass 'x', expected one of canonicalize, constant-fold, cse, dce, .*precision"),
        ("cse{size=3}", "bad options of the pass 'cse'.*size"),
        ("constant-fold{max-elements=many}", "bad options of the pass 'constant-fold'"),
        ("constant-fold{max-elements=-1}", "max-elements is -1, expected 0 or more"),
        ("default{max-elements=1}", "unknown pass 'default'"),
        ("cse dce", "cannot read the pipeline 'cse dce'"),
        ("cse{", "cannot read the pipeline"),
        ("cse,,dce", "cannot read the pipeline"),
    ],
)
def test_bad_pipelines(text: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message) as caught:
        parse_passes(text)
    assert caught.value.exit_code == 2


@dataclass(frozen=True)
class _BreakPass(ModulePass):
    """Gives the product a wrong result type."""

    name = "break"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        product = next(inner for inner in op.walk() if isinstance(inner, MulOp))
        product.result._type = tensor_type((5,), "float32")


def test_verification_after_every_pass_names_the_guilty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pipeline.PASSES, "break", _BreakPass)
    with pytest.raises(
        CompileError, match=r"the pass break left an invalid module: .*expected tensor<4xf32>"
    ):
        run_pipeline(parse_module(TEXT), "break,dce", verify=True)


@pytest.mark.parametrize(("value", "is_verified"), [("1", True), ("0", False), ("", False)])
def test_an_environment_variable_turns_verification_on(
    monkeypatch: pytest.MonkeyPatch, value: str, is_verified: bool
) -> None:
    monkeypatch.setitem(pipeline.PASSES, "break", _BreakPass)
    monkeypatch.setenv("CGC_VERIFY", value)
    if is_verified:
        with pytest.raises(CompileError, match="the pass break left an invalid module"):
            run_pipeline(parse_module(TEXT), "break,dce")
    else:
        run_pipeline(parse_module(TEXT), "break,dce")


def big_module(op_count: int) -> ModuleOp:
    square = tensor_type((16, 16), "float32")
    block = Block(arg_types=[square])
    ones = ConstOp.splat(1.0, square)
    ops: list[Operation] = [ones]
    value = block.args[0]
    for index in range(op_count // 10):
        weight = ConstOp.from_array(np.full((16, 16), index, np.float32))
        scaled, turned = MulOp(value, ones), TransposeOp(weight, (1, 0))
        product = MatMulOp(scaled, turned)
        twins = ReluOp(product), ReluOp(product)
        total = AddOp(*twins)
        inner = NegOp(total)
        outer, unused = NegOp(inner), ExpOp(total)
        ops += [weight, scaled, turned, product, *twins, total, inner, outer, unused]
        value = outer.result
    block.add_ops([*ops, ReturnOp(value)])
    return ModuleOp([FuncOp("graph", ([square], [square]), Region(block))])


def test_work_of_the_default_pipeline_grows_as_the_number_of_ops(calls: Callable[..., int]) -> None:
    small, large = big_module(1_000), big_module(4_000)
    few = calls(lambda: run_pipeline(small, verify=False))
    many = calls(lambda: run_pipeline(large, verify=False))
    # weight, product, relu, sum of each block
    assert sum(1 for _ in large.walk()) == 4 * 400 + 3
    assert many < 5 * few


def test_opt_writes_to_a_file(tmp_path: Path) -> None:
    source, out = tmp_path / "in.mlir", tmp_path / "out.mlir"
    source.write_text(TEXT)
    arguments = [str(source), "--passes", "canonicalize,dce", "--verify-each", "-o", str(out)]
    result = CliRunner().invoke(cgc_opt, arguments)
    assert (result.exit_code, result.output) == (0, "")
    assert "func.return %x" in out.read_text()
    assert "cirh" not in out.read_text()


def test_opt_lists_passes_and_ops() -> None:
    result = CliRunner().invoke(cgc_opt, ["--list"])
    assert result.exit_code == 0
    passes, ops = result.stdout.split("\nOps:\n")
    assert "  constant-fold{max-elements=65536}" in passes
    assert "  fuse{only}" in passes
    assert len(ops.splitlines()) == len(ALL_OPS)
    assert all(len(line.split()) > 1 for line in ops.splitlines()), "every op has a line of documentation"


def test_opt_reads_standard_input_and_changes_nothing_without_passes() -> None:
    result = CliRunner().invoke(cgc_opt, ["-"], input=TEXT)
    assert (result.exit_code, result.stdout) == (0, TEXT)
    assert print_module(parse_module(TEXT)) == TEXT


@pytest.mark.parametrize(
    ("arguments", "text", "exit_code", "message"),
    [
        (["-", "--passes", "csee"], TEXT, 2, "did you mean 'cse'"),
        (["-"], TEXT.replace("%x, %one", "%x, %two"), 2, "-:4:23: values used but not defined: [%two]"),
        (["-"], TEXT.replace("func.return %y : tensor<4xf32>", ""), 1, "not a terminator"),
        (["missing.mlir"], "", 1, "cannot use missing.mlir: No such file or directory"),
        (["-", "-o", "missing/out.mlir"], TEXT, 1, "cannot use missing/out.mlir"),
        ([], "", 2, "Missing argument 'FILE|-'"),
        (["-", "--passess=x"], TEXT, 2, "--passes"),
    ],
)
def test_opt_reports_faults(
    arguments: list[str],
    text: str,
    exit_code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cgc_opt, arguments, input=text)
    assert result.exit_code == exit_code
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []


def test_opt_refuses_a_file_that_is_no_text(tmp_path: Path) -> None:
    source = tmp_path / "in.mlir"
    source.write_bytes(b"\xff\xfe\x00builtin")
    result = CliRunner().invoke(cgc_opt, [str(source)])
    assert result.exit_code == 2
    assert "is not UTF-8 text" in result.stderr
