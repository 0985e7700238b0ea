"""The matcher of PDL patterns, and the files that patterns are in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdsl.context import Context
from xdsl.dialects import pdl
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.parser import Parser

from cgc.cirh.text import parse_module
from cgc.errors import PipelineError
from cgc.passes.fuse import OPTIONAL, STAGES, PatternText, Shape, load_patterns, pattern_texts
from cgc.passes.matching import CompiledPattern, Constraint, Matcher, OpNode, compile_pattern
from cgc.passes.pipeline import parse_passes, run_pipeline

ALL_GROUPS = [group for stage in (*STAGES, OPTIONAL) for group in stage]


def pattern(body: str, root: str, constraints: dict[str, Constraint] | None = None) -> CompiledPattern:
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(pdl.PDL)
    text = f"pdl.pattern @p : benefit(1) {{\n{body}\npdl.rewrite {root} {{\npdl.erase {root}\n}}\n}}"
    (op,) = Parser(context, text).parse_module().body.block.ops
    assert isinstance(op, pdl.PatternOp)
    return compile_pattern(op, "p", constraints or {})


def program(body: str, results: str = "") -> ModuleOp:
    arguments = ", ".join(f"%{name}: tensor<4xf32>" for name in "abcd")
    text = f"func.func @f({arguments}) {{\n{body}\nfunc.return\n}}"
    return parse_module(f"builtin.module {{ {text} }}")


def binary(result: str, op: str, lhs: str, rhs: str) -> str:
    return f"%{result} = cirh.{op} %{lhs}, %{rhs} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>\n"


def matches(pattern: CompiledPattern, module: ModuleOp) -> list[dict[str, str]]:
    """Return, for each matching root, the names in the pattern and those in the program."""
    (function,) = (op for op in module.walk() if isinstance(op, FuncOp))
    found = []
    for op in function.body.block.ops:
        matcher = Matcher(pattern)
        if matcher.match(op):
            values = matcher.values().items()
            found.append({str(k.name_hint): str(getattr(v, "name_hint", None)) for k, v in values})
    return found


PRODUCT_OF_SUM = """
%x = pdl.operand
%y = pdl.operand
%z = pdl.operand
%sum_op = pdl.operation "cirh.Add"(%x, %y : !pdl.value, !pdl.value)
%sum = pdl.result 0 of %sum_op
%root = pdl.operation "cirh.Mul"(%sum, %z : !pdl.value, !pdl.value)
"""


@pytest.mark.parametrize("order", [("s", "c"), ("c", "s")])
def test_operands_of_commutative_ops_match_in_both_orders(order: tuple[str, str]) -> None:
    module = program(binary("s", "Add", "a", "b") + binary("r", "Mul", *order))
    (found,) = matches(pattern(PRODUCT_OF_SUM, "%root"), module)
    assert (found["x"], found["y"], found["z"], found["sum"]) == ("a", "b", "c", "s")


def test_operands_of_other_ops_match_in_their_order_only() -> None:
    body = PRODUCT_OF_SUM.replace("cirh.Mul", "cirh.Sub")
    sums = binary("s", "Add", "a", "b")
    assert matches(pattern(body, "%root"), program(sums + binary("r", "Sub", "s", "c")))
    assert not matches(pattern(body, "%root"), program(sums + binary("r", "Sub", "c", "s")))


def test_a_wrong_choice_of_order_is_taken_back() -> None:
    """The operand x of both sums is the same only if the first sum is taken the other way round."""
    body = """
%x = pdl.operand
%y = pdl.operand
%z = pdl.operand
%left_op = pdl.operation "cirh.Add"(%x, %y : !pdl.value, !pdl.value)
%left = pdl.result 0 of %left_op
%right_op = pdl.operation "cirh.Sub"(%x, %z : !pdl.value, !pdl.value)
%right = pdl.result 0 of %right_op
%root = pdl.operation "cirh.Div"(%left, %right : !pdl.value, !pdl.value)
"""
    sums = binary("l", "Add", "a", "b") + binary("r", "Sub", "b", "c") + binary("q", "Div", "l", "r")
    (found,) = matches(pattern(body, "%root"), program(sums))
    assert (found["x"], found["y"], found["z"]) == ("b", "a", "c")
    assert not matches(pattern(body, "%root"), program(sums.replace("%b, %c", "%d, %c")))


SECOND_USER = """
%x = pdl.operand
%y = pdl.operand
%root = pdl.operation "cirh.Exp"(%x : !pdl.value)
%other = pdl.operation "cirh.Mul"(%y, %x : !pdl.value, !pdl.value)
"""


def test_ops_next_to_the_root_are_found_among_the_users_of_a_value() -> None:
    exp = "%e = cirh.Exp %a : (tensor<4xf32>) -> tensor<4xf32>\n"
    (found,) = matches(pattern(SECOND_USER, "%root"), program(exp + binary("m", "Mul", "a", "b")))
    assert (found["x"], found["y"]) == ("a", "b")
    assert not matches(pattern(SECOND_USER, "%root"), program(exp + binary("m", "Mul", "c", "b")))


def test_a_constraint_on_a_later_op_chooses_among_the_users() -> None:
    body = SECOND_USER + 'pdl.apply_native_constraint "is_d"(%y : !pdl.value)'
    exp = "%e = cirh.Exp %a : (tensor<4xf32>) -> tensor<4xf32>\n"
    users = exp + binary("m", "Mul", "a", "b") + binary("n", "Mul", "a", "d")
    (found,) = matches(pattern(body, "%root", {"is_d": lambda v: v.name_hint == "d"}), program(users))
    assert found["y"] == "d"


def test_a_constraint_gives_a_value_and_can_be_negated() -> None:
    body = """
%x = pdl.operand
%root = pdl.operation "cirh.Exp"(%x : !pdl.value)
%maker = pdl.apply_native_constraint "maker"(%x : !pdl.value) : !pdl.operation
pdl.apply_native_constraint "is_sum"(%maker : !pdl.operation) {isNegated = true}
"""
    constraints: dict[str, Callable[..., object]] = {
        "maker": lambda v: v.owner if hasattr(v, "op") else None,
        "is_sum": lambda op: op.name == "cirh.Add",
    }
    exp = "%e = cirh.Exp %s : (tensor<4xf32>) -> tensor<4xf32>\n"
    compiled = pattern(body, "%root", constraints)
    assert matches(compiled, program(binary("s", "Mul", "a", "b") + exp))
    assert not matches(compiled, program(binary("s", "Add", "a", "b") + exp))
    assert not matches(compiled, program(exp.replace("%s", "%a")))


def test_attributes_and_result_types_are_compared() -> None:
    body = """
%kind = pdl.attribute = "ADD"
%type = pdl.type : tensor<f32>
%x = pdl.operand
%root = pdl.operation "cirh.Reduce"(%x : !pdl.value) {"reduce_kind" = %kind} -> (%type : !pdl.type)
"""

    def reduction(kind: str, keep_dims: str, result: str) -> ModuleOp:
        attributes = f'{{reduce_kind = "{kind}", dimensions = array<i64: 0>, keep_dims = {keep_dims}}}'
        return program(f"%s = cirh.Reduce %a {attributes} : (tensor<4xf32>) -> {result}")

    compiled = pattern(body, "%root")
    assert matches(compiled, reduction("ADD", "false", "tensor<f32>"))
    assert not matches(compiled, reduction("MAX", "false", "tensor<f32>"))
    assert not matches(compiled, reduction("ADD", "true", "tensor<1xf32>"))


def test_every_form_of_every_pattern_can_be_read() -> None:
    texts = [text for group in ALL_GROUPS for text in pattern_texts(group)]
    names = [text.name for text in texts]
    assert len(set(names)) == len(names)
    assert sum(map(len, load_patterns(ALL_GROUPS).values())) == len(texts)
    assert {"attention.attention.bias.dropout.scale", "attention.attention"} <= set(names)


def _shape(node: OpNode, like: Shape) -> Shape:
    """The names around a node of a pattern, as far as they are said in `like`."""
    operands = zip(node.operands, like.operands, strict=True)
    return Shape(
        node.name,
        tuple(
            _shape(value.operation, shape) if value.operation is not None and shape is not None else None
            for value, shape in operands
        ),
    )


def test_the_ops_around_the_root_are_found_in_the_text() -> None:
    for group in ALL_GROUPS:
        for text in pattern_texts(group):
            assert _shape(text.compiled.root, text.root) == text.root
    (attention,) = (text for text in pattern_texts("attention") if text.name == "attention.attention.scale")
    assert [maker and maker.name for maker in attention.root.operands] == ["cirh.Softmax", None]


@pytest.mark.parametrize(("operands", "fits"), [("ea", True), ("ae", True), ("ab", False)])
def test_an_op_with_other_makers_is_not_compared_with_a_pattern(operands: str, fits: bool) -> None:
    """The operands of an op are looked at either way round."""
    module = program("%e = cirh.Exp %a : (tensor<4xf32>) -> tensor<4xf32>\n" + binary("r", "Add", *operands))
    (add,) = (op for op in module.walk() if op.name == "cirh.Add")
    root = Shape("cirh.Add", (Shape("cirh.Exp", (None,)), None))
    assert PatternText("p", "", frozenset(), frozenset(), root).may_fit(add) is fits


def test_an_op_is_compared_only_with_the_patterns_of_its_name() -> None:
    for root, patterns in load_patterns(ALL_GROUPS).items():
        assert {pattern.compiled.root.name for pattern in patterns} == {root}


def test_patterns_that_cannot_fit_a_program_are_not_even_parsed() -> None:
    present = {"cirh.Add", "cirh.Exp", "cirh.Relu"}
    names = {p.name.split(".")[0] for ps in load_patterns(ALL_GROUPS, present).values() for p in ps}
    assert names == {"signs", "bias", "composite", "global_norm"} & names
    # written-out Adam becomes Adam, which the pattern of decay is about
    present = {"cirh.Sqrt", "cirh.Div"}
    assert "adam.adam_w.twice" in {p.name for p in load_patterns(["adam"], present)["cirh.Adam"]}


def test_unknown_files_of_patterns_are_refused() -> None:
    assert [p.name for p in parse_passes("fuse{only=attention,softmax}")] == ["fuse"]
    with pytest.raises(PipelineError, match="unknown patterns atention, expected some of signs, "):
        parse_passes("fuse{only=atention}")


@pytest.mark.parametrize("kind", ["Mul", "Div"])
def test_negations_of_both_operands_are_removed_together(kind: str) -> None:
    """One after the other they would double with each square of a square."""
    lines, last = [], "a"
    for depth in range(40):
        lines.append(f"%n{depth} = cirh.Neg %{last} : (tensor<4xf32>) -> tensor<4xf32>\n")
        lines.append(binary(f"p{depth}", kind, f"n{depth}", f"n{depth}"))
        last = f"p{depth}"
    module = parse_module(
        f"builtin.module {{ func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {{\n{''.join(lines)}"
        f"func.return %{last} : tensor<4xf32>\n}} }}"
    )
    run_pipeline(module, "fuse{only=signs}")
    assert {op.name for op in module.walk() if op.name.startswith("cirh.")} == {f"cirh.{kind}"}
