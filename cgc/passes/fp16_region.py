"""Which ops of a step are computed in 16 bits.

Matrix products, convolutions and attention are. What lies between two of them follows, so that a value is
not widened and rounded again on its way: elementwise ops, normalization (with float32 statistics), softmax,
pooling, and ops that only move elements. Everything else stays float32:

* sums over elements or samples, losses, optimizers, logarithms, powers and roots;
* the end of the network: what leads to the loss (or another output) after the last product, and the
  gradients from there to the first product of the backward pass;
* updates: what lies between the gradient of a parameter and its new value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from cgc.cirh.base import CirhOp
from cgc.cirh.interface import MODE, OUTPUT_NAME, alias_of, arguments_and_results
from cgc.cirh.types import element_type, tensor_of


def _names(text: str) -> frozenset[str]:
    return frozenset(f"cirh.{mnemonic}" for mnemonic in text.split())


PRODUCTS = _names("MatMul DotGeneral Convolution Attention AttentionGrad")
MOVES = _names("Reshape Transpose BroadcastInDim Concat Slice pad Split Repeat StridedSlice StridedSliceGrad")
NORMS = _names("FusedBatchNorm LayerNorm GroupNorm")
NORM_GRADIENTS = _names("FusedBatchNormGrad LayerNormGrad GroupNormGrad")
FOLLOWERS = (
    MOVES
    | NORMS
    | NORM_GRADIENTS
    | _names("Add Sub Mul Div Max Min Neg Abs Select Clamp Gather BiasAdd Softmax SoftmaxGrad")
    | _names("Relu LeakyRelu Elu Sigmoid HardSigmoid Tanh Gelu Softplus Composite Pool")
    | _names("ReluGrad LeakyReluGrad EluGrad SigmoidGrad HardSigmoidGrad TanhGrad GeluGrad SoftplusGrad")
    | _names("MaxPoolGrad AvgPoolGrad")
)
_SUMS_OF_SAMPLES = _names("BiasAddGrad ScatterNd")
_ENDS_OF_UPDATES = PRODUCTS | NORMS | NORM_GRADIENTS | _SUMS_OF_SAMPLES | _names("Reduce L2Norm")

_ACTIVATIONS_OF_NORMS = {**dict.fromkeys(NORMS, 1), **dict.fromkeys(NORM_GRADIENTS, 2)}
"""How many operands of a norm are activations; the others, and all results but the first, stay float32."""

_F32 = element_type("float32")


def is_float32(value: SSAValue) -> bool:
    """Whether a value is a tensor of float32."""
    return tensor_of(value).element_type == _F32


def narrow_operands(op: Operation) -> list[int]:
    """Positions of the operands that an op of the region takes in 16 bits."""
    operands = list(op.operands)[: _ACTIVATIONS_OF_NORMS.get(op.name)]
    return [index for index, operand in enumerate(operands) if is_float32(operand)]


def narrow_results(op: Operation) -> list[SSAValue]:
    """The results that an op of the region gives in 16 bits."""
    results = list(op.results)[: 1 if op.name in _ACTIVATIONS_OF_NORMS else None]
    return [result for result in results if is_float32(result)]


def fp16_region(function: FuncOp) -> list[CirhOp]:
    """The float32 ops of a step that shall be computed in 16 bits, in order; none that are already."""
    ops = [op for op in function.body.block.ops if isinstance(op, CirhOp)]
    kept = _end_of_network(function, ops) | _updates(function)
    useful = _leading_to(ops, PRODUCTS | NORM_GRADIENTS | _SUMS_OF_SAMPLES)
    region = _between(ops, kept, useful)
    _add_embeddings(ops, kept, region)
    _add_moves(ops, region)
    return [op for op in ops if op in region]


def _between(ops: Sequence[CirhOp], kept: set[Operation], useful: set[Operation]) -> set[CirhOp]:
    """Products, and the followers that take a value of the region and lead to a product or a gradient."""
    region: set[CirhOp] = set()
    narrow: set[SSAValue] = set()
    for op in ops:
        operands = [op.operands[index] for index in narrow_operands(op)]
        follows = op.name in FOLLOWERS and op in useful and op not in kept
        if operands and (op.name in PRODUCTS or (follows and not narrow.isdisjoint(operands))):
            region.add(op)
            narrow.update(narrow_results(op))
    return region


def _add_embeddings(ops: Sequence[CirhOp], kept: set[Operation], region: set[CirhOp]) -> None:
    """Adds what lies between the lookup of embeddings and the first product."""
    lookups = [op for op in ops if op.name == "cirh.Gather" and op not in region]
    embedded = _closure(lookups, _users, lambda op: op.name in FOLLOWERS) - set(lookups)
    for op in reversed(ops):
        if op in embedded and op not in kept and _is_used_in(op, region):
            region.add(op)


def _add_moves(ops: Sequence[CirhOp], region: set[CirhOp]) -> None:
    """Adds moves of values that are used in 16 bits alone: rounding is the same before and after."""
    for op in reversed(ops):
        if op.name in MOVES and op not in region and narrow_results(op) and _is_used_in(op, region):
            region.add(op)


def _is_used_in(op: CirhOp, region: set[CirhOp]) -> bool:
    """Whether all uses of an op's 16-bit results are operands that ops of the region take in 16 bits."""
    uses = [use for result in narrow_results(op) for use in result.uses]
    return bool(uses) and all(
        use.operation in region and use.index in narrow_operands(use.operation) for use in uses
    )


def _end_of_network(function: FuncOp, ops: Sequence[CirhOp]) -> set[Operation]:
    """Ops between the last products and the outputs, and from there to the first products after them."""
    products = {op for op in ops if op.name in PRODUCTS}
    after_products = _closure(products, _users, lambda _: True) - products

    def is_after(op: Operation) -> bool:
        return op in after_products and op.name not in PRODUCTS

    forward = _closure(filter(is_after, _makers_of_outputs(function)), _makers, is_after)
    return _closure(forward, _users, is_after)


def _makers_of_outputs(function: FuncOp) -> list[Operation]:
    """The ops that make the loss, in a program without one those that make any output."""
    _, results = arguments_and_results(function)
    names = [result.text(OUTPUT_NAME) for result in results]
    training = function.attributes.get(MODE) == StringAttr("train")
    wanted = [name is not None and (not training or name == "output_loss") for name in names]
    returned = function.get_return_op()
    values = [] if returned is None else list(returned.operands)
    return [
        owner
        for value, is_wanted in zip(values, wanted, strict=True)
        if is_wanted and isinstance(owner := value.owner, Operation)
    ]


def _updates(function: FuncOp) -> set[Operation]:
    """Ops between the gradients of parameters and the new state."""
    arguments, _ = arguments_and_results(function)
    returned = function.get_return_op()
    aliases = [index for argument in arguments if (index := alias_of(argument)) is not None]
    values = [] if returned is None else [returned.operands[index] for index in aliases]
    makers = [value.owner for value in values if isinstance(value.owner, Operation)]
    inside = [op for op in makers if op.name not in _ENDS_OF_UPDATES]
    return _closure(inside, _makers, lambda op: op.name not in _ENDS_OF_UPDATES)


def _leading_to(ops: Sequence[CirhOp], names: frozenset[str]) -> set[Operation]:
    """Ops with one of these names among the users of their results, or the users of those."""
    found: set[Operation] = set()
    for op in reversed(ops):
        if any(user.name in names or user in found for user in _users(op)):
            found.add(op)
    return found


def _closure(
    start: Iterable[Operation],
    neighbours: Callable[[Operation], Iterable[Operation]],
    belongs: Callable[[Operation], bool],
) -> set[Operation]:
    """`start`, and what is found from there step by step as long as it belongs."""
    found = set(start)
    waiting = list(found)
    while waiting:
        for op in neighbours(waiting.pop()):
            if op not in found and belongs(op):
                found.add(op)
                waiting.append(op)
    return found


def _makers(op: Operation) -> list[Operation]:
    return [owner for operand in op.operands if isinstance(owner := operand.owner, Operation)]


def _users(op: Operation) -> list[Operation]:
    return [use.operation for result in op.results for use in result.uses]
