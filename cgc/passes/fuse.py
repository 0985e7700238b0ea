"""Fusion: groups of ops that compute an op of CIRH, such as a softmax, become that op.

The groups are patterns in the dialect PDL, as MLIR text in `patterns/*.mlir`; conditions that PDL cannot
express are in `constraints`. Every rewrite computes the same function, but may reorder sums, so results agree
within the rounding of float32.

A file may hold several forms of one pattern. A comment before it lists the choices:

    // choices: [scale] [keep|dropout] (sqrt|rsqrt)

is any combination of: scale or not; keep, dropout or neither; sqrt or rsqrt. A line that ends in `// if
scale, !keep` is in the combinations with scale and without keep, one with `// if keep|dropout` in those with
either of them; all other lines are in all combinations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from itertools import product
from typing import NamedTuple, cast

from xdsl.context import Context
from xdsl.dialects import pdl
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.ir import Attribute, Block, Operation, OpResult, SSAValue
from xdsl.parser import Parser
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.rewriter import InsertPoint

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.passes.canonicalize import simplify
from cgc.passes.constraints import CONSTRAINTS, REWRITES
from cgc.passes.matching import CompiledPattern, Matched, Matcher, compile_pattern
from cgc.passes.redundancy import merge_equal_ops
from cgc.passes.rewriting import Worklist, erase_unused, is_read, replace_op, replace_uses

# Files by stage. The patterns of a stage are applied until none fits, then those of the next stage.
STAGES = (
    ("signs", "rows_in_order", "roots", "means"),
    (
        *("bias", "linear", "activation", "layer_norm", "row_norm", "batch_norm"),
        *("softmax", "attention", "global_norm", "adam"),
    ),
    ("layer_norm_grad", "batch_norm_grad", "attention_grad", "cross_entropy"),
    ("composite", "batch_norm_half"),
)

# Files that are used after all stages, and only if they are named. GELU has a separate kernel: with the bias
# of a layer fused into it, the bias would leave the kernel of the layer.
OPTIONAL = ("composite_gelu",)

_CHOICES = re.compile(r"\[([\w|]+)\]|\(([\w|]+)\)")
_OP_NAME = re.compile(r'pdl\.operation "(cirh\.\w+)"')
_OPERATION = re.compile(r'(%\w+) = pdl\.operation "(cirh\.\w+)"(?:\s*\(([^:]*):)?')
_RESULT = re.compile(r"(%\w+) = pdl\.result \d+ of (%\w+)")
_ROOT = re.compile(r"pdl\.rewrite (%\w+)")
_VALUE = re.compile(r"%\w+")
_CONDITION = re.compile(r"\s*// if ([!\w|, ]+)$")

# Distance from the root up to which op names are compared before a pattern is parsed.
_MAX_DEPTH = 3

# Ops that any program may contain, because simplification creates them.
ALWAYS_PRESENT = frozenset(
    op.name
    for op in (
        ops.AddOp,
        ops.SubOp,
        ops.MulOp,
        ops.NegOp,
        ops.ConstOp,
        ops.ReshapeOp,
        ops.TransposeOp,
        ops.BroadcastInDimOp,
        ops.MatMulOp,
        ops.SelectOp,
    )
)


class Shape(NamedTuple):
    """Names of an op of a pattern and of the producers of its operands; None matches any value."""

    name: str
    operands: tuple[Shape | None, ...]


@dataclass(frozen=True)
class PatternText:
    """One form of a pattern.

    Attributes:
        name: "file.pattern.choice.choice".
        text: its MLIR.
        needs: names of the ops that it matches.
        creates: names of the ops that it creates.
        root: the op that the rewrite names.
    """

    name: str
    text: str
    needs: frozenset[str]
    creates: frozenset[str]
    root: Shape

    @cached_property
    def compiled(self) -> CompiledPattern:
        """The pattern, ready to be matched."""
        # Parsing takes milliseconds, so only patterns that may fit are parsed.
        context = Context()
        context.load_dialect(Builtin)
        context.load_dialect(pdl.PDL)
        module = Parser(context, self.text, self.name).parse_module()
        (op,) = module.body.block.ops
        assert isinstance(op, pdl.PatternOp), "a paragraph is one pattern"
        return compile_pattern(op, self.name, CONSTRAINTS)

    def may_fit(self, op: Operation) -> bool:
        """Return True if an op and the producers of its operands have the right names, up to `_MAX_DEPTH`."""
        return _may_match(self.root, op)


def _may_match(shape: Shape, op: Operation) -> bool:
    operands = tuple(op.operands)
    if op.name != shape.name or len(operands) != len(shape.operands):
        return False
    if _operands_may_match(shape.operands, operands):
        return True
    return len(operands) == 2 and _operands_may_match(shape.operands, operands[::-1])


def _operands_may_match(producers: tuple[Shape | None, ...], values: tuple[SSAValue, ...]) -> bool:
    for producer, value in zip(producers, values, strict=True):
        if producer is not None and not (isinstance(value, OpResult) and _may_match(producer, value.op)):
            return False
    return True


class PatternIndex:
    """Patterns by the names of the root and of the producers of its operands; most ops match none."""

    def __init__(self, patterns: Mapping[str, Sequence[PatternText]]) -> None:
        self._patterns = patterns
        self._candidates: dict[tuple[str | None, ...], tuple[PatternText, ...]] = {}

    def has_root(self, op: Operation) -> bool:
        """Return True if the root of any pattern has the name of this op."""
        return op.name in self._patterns

    def candidates(self, op: CirhOp) -> tuple[PatternText, ...]:
        """Return the patterns whose names match an op and the producers of its operands."""
        texts = self._patterns.get(op.name, ())
        if not texts:
            return ()
        producers = [value.op.name if type(value) is OpResult else None for value in op.operand_values]
        key = (op.name, *producers)
        if key not in self._candidates:
            self._candidates[key] = tuple(text for text in texts if _names_match(text.root, producers))
        return self._candidates[key]


def _names_match(root: Shape, producers: Sequence[str | None]) -> bool:
    """Return True if producers of operands have the names in a pattern; two operands match in any order."""
    orders = [producers, producers[::-1]] if len(producers) == 2 else [producers]
    return len(root.operands) == len(producers) and any(
        all(
            expected is None or expected.name == name
            for expected, name in zip(root.operands, order, strict=True)
        )
        for order in orders
    )


def load_patterns(
    groups: Sequence[str], present: AbstractSet[str] | None = None
) -> dict[str, tuple[PatternText, ...]]:
    """Map each name of a root op to the patterns of these files with such a root, in order.

    Args:
        groups: names of files.
        present: names of the ops of a program; patterns that cannot fit it, even after other rewrites, are
            omitted. By default, all patterns are loaded.
    """
    texts = [text for group in groups for text in pattern_texts(group)]
    if present is not None:
        # Keep patterns whose ops are all present, or created by other patterns that are kept.
        reachable, usable = ALWAYS_PRESENT | present, -1
        while usable != len(reachable):
            usable = len(reachable)
            reachable = reachable.union(*(text.creates for text in texts if text.needs <= reachable))
        texts = [text for text in texts if text.needs <= reachable]
    found: dict[str, list[PatternText]] = {}
    for text in texts:
        found.setdefault(text.root.name, []).append(text)
    return {name: tuple(patterns) for name, patterns in found.items()}


@cache
def pattern_texts(group: str) -> tuple[PatternText, ...]:
    """Return all forms of all patterns of a file."""
    file = resources.files("cgc.passes").joinpath("patterns", f"{group}.mlir")
    found = []
    for paragraph in file.read_text(encoding="utf-8").split("\n\n"):
        if "pdl.pattern" not in paragraph:
            continue
        for chosen in _combinations(paragraph):
            text = _lines_of(paragraph, chosen)
            pattern, _, rewrite = text.partition("pdl.rewrite")
            name = ".".join((group, re.findall(r"pdl\.pattern @(\w+)", text)[0], *sorted(chosen)))
            needs, creates = (frozenset(_OP_NAME.findall(part)) for part in (pattern, rewrite))
            found.append(PatternText(name, text, needs, creates, _root(text)))
    return tuple(found)


def _root(text: str) -> Shape:
    """Return the root op of a pattern, and the names of ops around it."""
    operations = {value: (name, operands) for value, name, operands in _OPERATION.findall(text)}
    results = dict(_RESULT.findall(text))

    def shape(operation: str, steps: int) -> Shape:
        name, operands = operations[operation]
        producer_ids = [results.get(value, "") for value in _VALUE.findall(operands)]
        producers = (shape(op, steps - 1) if op in operations and steps else None for op in producer_ids)
        return Shape(name, tuple(producers))

    return shape(_ROOT.findall(text)[0], _MAX_DEPTH)


def _combinations(text: str) -> Iterator[frozenset[str]]:
    """Yield combinations of choices, the largest first, since larger patterns must be tried first."""
    header = next((line for line in text.splitlines() if line.startswith("// choices:")), "")
    groups = [
        [*optional.split("|"), None] if optional else forced.split("|")
        for optional, forced in _CHOICES.findall(header)
    ]
    for choice in product(*groups):
        yield frozenset(name for name in choice if name is not None)


def _lines_of(text: str, chosen: frozenset[str]) -> str:
    """Return the lines of a combination."""
    lines = []
    for line in text.splitlines():
        condition = _CONDITION.search(line)
        terms = condition[1].replace(" ", "").split(",") if condition else []
        if all(_holds(names, chosen) for names in terms):
            lines.append(line)
    return "\n".join(lines)


def _holds(names: str, chosen: frozenset[str]) -> bool:
    """Return True if `name`, `!name` or `name|name` holds for a combination."""
    negated = names.startswith("!")
    return any(name in chosen for name in names.lstrip("!").split("|")) != negated


class _Rewriter:
    """Executes the rewrite of a pattern, op by op."""

    def __init__(self, context: Context, worklist: Worklist) -> None:
        self._context = context
        self._worklist = worklist

    def apply(
        self, rewrite: pdl.RewriteOp, root: CirhOp, insert_point: InsertPoint, values: dict[SSAValue, Matched]
    ) -> None:
        """Rewrite one match.

        Args:
            rewrite: the rewrite of the pattern.
            root: the op from which new ops take their origin.
            insert_point: insertion point of new ops.
            values: the match of each value of the pattern; values of the rewrite are added.

        Raises:
            ValueError: it uses an unusual op of PDL.
        """
        seen = [value for value in values.values() if isinstance(value, Operation)]
        created: list[Operation] = []
        rewriter = PatternRewriter(insert_point)
        rewriter.operation_insertion_handler += [lambda op: self._insert(root, op), created.append]
        replaced: list[Operation] = []
        for op in rewrite.body.block.ops if rewrite.body is not None else ():
            match op:
                case pdl.AttributeOp() if op.value is not None:
                    values[op.output] = op.value
                case pdl.TypeOp() if op.constantType is not None:
                    values[op.result] = op.constantType
                case pdl.OperationOp():
                    values[op.op] = rewriter.insert(self._build_op(op, values))
                case pdl.ResultOp():
                    values[op.val] = _operation(values[op.parent_]).results[op.index.value.data]
                case pdl.ApplyNativeRewriteOp():
                    # The function inserts its new ops itself.
                    function = REWRITES[op.constraint_name.data]
                    values[op.res[0]] = function(rewriter, *(values[value] for value in op.args))
                case pdl.ReplaceOp():
                    replaced.append(self._replace(op, values))
                case _:
                    raise ValueError(f"{op.name} is not supported in a rewrite")
        if self._worklist.watch is not None:
            self._worklist.watch.record_rewrite(seen, created)
        erase_unused(replaced)

    def _insert(self, source: CirhOp, op: Operation) -> None:
        assert isinstance(op, CirhOp), "patterns make ops of CIRH"
        op.take_origin(source)
        self._worklist.push_next(op)

    def _build_op(self, op: pdl.OperationOp, values: Mapping[SSAValue, Matched]) -> Operation:
        """Build a new op; result types that the pattern does not give are inferred."""
        assert op.opName is not None, "a rewrite names the ops that it creates"
        op_type = self._context.get_op(op.opName.data)
        assert issubclass(op_type, CirhOp), "patterns make ops of CIRH"
        names = [name.data for name in op.attributeValueNames.data]
        properties = {
            name: cast(Attribute, values[value])
            for name, value in zip(names, op.attribute_values, strict=True)
        }
        operands = [cast(SSAValue, values[value]) for value in op.operand_values]
        types = [cast(Attribute, values[value]) for value in op.type_values]
        return op_type.create(
            operands=operands,
            result_types=types or op_type.infer_types(operands, properties),
            properties=properties,
        )

    def _replace(self, op: pdl.ReplaceOp, values: Mapping[SSAValue, Matched]) -> Operation:
        """Replace the results of an op; the op itself is removed when the rewrite is done."""
        old = _operation(values[op.op_value])
        if op.repl_operation is not None:
            new: Sequence[SSAValue] = _operation(values[op.repl_operation]).results
        else:
            new = [cast(SSAValue, values[value]) for value in op.repl_values]
        for old_result, new_result in zip(old.results, new, strict=True):
            self._worklist.push_users(old_result)
            replace_uses(old_result, new_result)
        return old


def _operation(matched: Matched) -> Operation:
    assert isinstance(matched, Operation), "the text says that it is an op"
    return matched


class Fuser:
    """Applies patterns to the ops of one block until none fits."""

    def __init__(self, context: Context, block: Block, groups: Sequence[str]) -> None:
        self._block = block
        self._patterns = PatternIndex(load_patterns(groups, {op.name for op in block.ops}))
        self._worklist = Worklist()
        self._rewriter = _Rewriter(context, self._worklist)
        self._order: dict[Operation, int] = {}
        self.fused: dict[str, int] = {}

    def run(self) -> None:
        """Rewrite the block in place."""
        for op in self._block.ops:
            if self._patterns.has_root(op):
                self._worklist.push(op)
        while (op := self._worklist.pop()) is not None:
            if is_read(op) and not self._try_patterns(op):
                # New ops take the simple form that patterns are written in.
                simple = simplify(op)
                if simple is not None:
                    replace_op(op, simple, self._worklist)

    def _try_patterns(self, op: CirhOp) -> bool:
        """Try all candidate patterns; return True if one was applied."""
        for text in self._patterns.candidates(op):
            if not text.may_fit(op):
                continue
            pattern = text.compiled
            matcher = Matcher(pattern)
            if not matcher.match(op):
                continue
            insert_point = self._insertion_point(pattern, matcher, op)
            if insert_point is not None:
                self._rewriter.apply(pattern.rewrite, op, insert_point, matcher.values())
                self.fused[pattern.name] = self.fused.get(pattern.name, 0) + 1
                return True
        return False

    def _insertion_point(
        self, pattern: CompiledPattern, matcher: Matcher, root: CirhOp
    ) -> InsertPoint | None:
        """Find the insertion point of new ops."""
        if pattern.replaced == (pattern.root,):
            return InsertPoint.before(root)
        try:
            return _insertion_point(pattern, matcher, self._order)
        except KeyError:  # an op that is newer than the order, or was moved
            self._order = {op: index for index, op in enumerate(self._block.ops)}
            return _insertion_point(pattern, matcher, self._order)


def _insertion_point(
    pattern: CompiledPattern, matcher: Matcher, order: dict[Operation, int]
) -> InsertPoint | None:
    """Find an insertion point of new ops: after the values that they read, before the ops that are replaced.

    Ops that the new ones read are moved before that point and removed from `order`. Return None if one of
    these is an op that is replaced.

    Raises:
        KeyError: before anything is moved: an op is not in `order`.
    """
    replaced = {op for node in pattern.replaced if isinstance(op := matcher.bindings[node], Operation)}
    first = min(replaced, key=order.__getitem__)
    inputs = [matcher.bindings[node] for node in pattern.inputs if node in matcher.bindings]
    later = _producers_after(order[first], order, inputs)
    if later & replaced:
        return None
    block = first.parent_block()
    assert block is not None, "ops on the worklist are part of a block"
    for op in sorted(later, key=order.__getitem__):
        block.detach_op(op)
        block.insert_op_before(op, first)
        del order[op]
    return InsertPoint.before(first)


def _producers_after(
    position: int, order: Mapping[Operation, int], values: Iterable[Matched]
) -> set[Operation]:
    """Return the ops from a position of a block on that values depend on."""
    found: set[Operation] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, OpResult) and order[value.op] >= position and value.op not in found:
            found.add(value.op)
            pending += value.op.operands
    return found


@dataclass(frozen=True)
class FusePass(ModulePass):
    """Replaces groups of ops with single ops: normalization, attention, losses, optimizers ...

    Attributes:
        only: names of pattern files, such as "attention"; by default all but the optional ones.
    """

    name = "fuse"
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = [group for stage in (*STAGES, OPTIONAL) for group in stage]
        unknown = sorted(set(self.only).difference(known))
        if unknown:
            raise ValueError(f"unknown patterns {', '.join(unknown)}, expected some of {', '.join(known)}")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the module in place and remove ops that become unused."""
        for block in op.walk_blocks():
            for stage in (*STAGES, OPTIONAL):
                groups = [
                    group for group in stage if group in self.only or not (self.only or stage is OPTIONAL)
                ]
                Fuser(ctx, block, groups).run()
                merge_equal_ops(block)  # the patterns of the next stage compare values by identity
