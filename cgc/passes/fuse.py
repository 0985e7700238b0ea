"""Fusion: groups of ops that are one operation of the vocabulary become that op.

The groups are patterns in the dialect PDL, MLIR text in `patterns/*.mlir`; what PDL alone cannot express is
in `constraints`. Every rewrite computes the same function; sums are taken in another order, so results agree
within the rounding of float32.

A file may hold several forms of one pattern. A comment before it lists the choices:

    // choices: [scale] [keep|dropout] (sqrt|rsqrt)

stands for any combination of scale or not; keep, dropout or neither; sqrt or rsqrt. A line that ends in
`// if scale, !keep` belongs to the combinations with scale and without keep only, one in `// if keep|dropout`
to those with either; all other lines to all.
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

# Files that are used only where they are named, after all stages. GELU has its own kernel, which would take
# the bias away from its layer.
OPTIONAL = ("composite_gelu",)

_CHOICES = re.compile(r"\[([\w|]+)\]|\(([\w|]+)\)")
_OP_NAME = re.compile(r'pdl\.operation "(cirh\.\w+)"')
_OPERATION = re.compile(r'(%\w+) = pdl\.operation "(cirh\.\w+)"(?:\s*\(([^:]*):)?')
_RESULT = re.compile(r"(%\w+) = pdl\.result \d+ of (%\w+)")
_ROOT = re.compile(r"pdl\.rewrite (%\w+)")
_VALUE = re.compile(r"%\w+")
_CONDITION = re.compile(r"\s*// if ([!\w|, ]+)$")

# Distance from the root up to which names of ops are compared before a pattern is parsed.
_STEPS = 3

# Ops that may come up in any program, because simplification makes them.
ALWAYS = frozenset(
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
    """Names of an op of a pattern and of the ops that make its operands; None matches any value."""

    name: str
    operands: tuple[Shape | None, ...]


@dataclass(frozen=True)
class PatternText:
    """One form of a pattern.

    Attributes:
        name: "file.pattern.choice.choice".
        text: its MLIR.
        needs: names of the ops that it matches.
        makes: names of the ops that it makes.
        root: the op that the rewrite names.
    """

    name: str
    text: str
    needs: frozenset[str]
    makes: frozenset[str]
    root: Shape

    @cached_property
    def compiled(self) -> CompiledPattern:
        """Parse the pattern for matching; this takes milliseconds, and few patterns come that far."""
        context = Context()
        context.load_dialect(Builtin)
        context.load_dialect(pdl.PDL)
        module = Parser(context, self.text, self.name).parse_module()
        (op,) = module.body.block.ops
        assert isinstance(op, pdl.PatternOp), "a paragraph is one pattern"
        return compile_pattern(op, self.name, CONSTRAINTS)

    def may_fit(self, op: Operation) -> bool:
        """Return whether ops of the right names make the operands of an op, and the operands of these ops."""
        return _may_be(self.root, op)


def _may_be(shape: Shape, op: Operation) -> bool:
    operands = tuple(op.operands)
    if op.name != shape.name or len(operands) != len(shape.operands):
        return False
    if _may_come_from(shape.operands, operands):
        return True
    return len(operands) == 2 and _may_come_from(shape.operands, operands[::-1])


def _may_come_from(makers: tuple[Shape | None, ...], values: tuple[SSAValue, ...]) -> bool:
    for maker, value in zip(makers, values, strict=True):
        if maker is not None and not (isinstance(value, OpResult) and _may_be(maker, value.op)):
            return False
    return True


class PatternIndex:
    """Patterns by the names of the ops that make the operands of their root; most ops have none to try."""

    def __init__(self, patterns: Mapping[str, Sequence[PatternText]]) -> None:
        self._patterns = patterns
        self._near: dict[tuple[str | None, ...], tuple[PatternText, ...]] = {}

    def knows(self, op: Operation) -> bool:
        """Return whether there are patterns with such a root."""
        return op.name in self._patterns

    def near(self, op: CirhOp) -> tuple[PatternText, ...]:
        """Return the patterns that fit an op and its operands, judged by names of ops."""
        texts = self._patterns.get(op.name, ())
        if not texts:
            return ()
        makers = [value.op.name if type(value) is OpResult else None for value in op.operand_values]
        key = (op.name, *makers)
        if key not in self._near:
            self._near[key] = tuple(text for text in texts if _are_near(text.root, makers))
        return self._near[key]


def _are_near(root: Shape, makers: Sequence[str | None]) -> bool:
    """Return whether ops of these names may make the operands of the root; two operands in either order."""
    orders = [makers, makers[::-1]] if len(makers) == 2 else [makers]
    return len(root.operands) == len(makers) and any(
        all(wanted is None or wanted.name == name for wanted, name in zip(root.operands, order, strict=True))
        for order in orders
    )


def load_patterns(
    groups: Sequence[str], present: AbstractSet[str] | None = None
) -> dict[str, tuple[PatternText, ...]]:
    """Map each name of a root op to the patterns of these files with such a root, in order.

    Args:
        groups: names of files.
        present: names of the ops of a program; patterns that cannot fit it, even after others have, are left
            out. By default all patterns are loaded.
    """
    texts = [text for group in groups for text in pattern_texts(group)]
    if present is not None:
        # Keep the patterns whose ops are present, or are made by other patterns among them.
        known, usable = ALWAYS | present, -1
        while usable != len(known):
            usable = len(known)
            known = known.union(*(text.makes for text in texts if text.needs <= known))
        texts = [text for text in texts if text.needs <= known]
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
            needs, makes = (frozenset(_OP_NAME.findall(part)) for part in (pattern, rewrite))
            found.append(PatternText(name, text, needs, makes, _root(text)))
    return tuple(found)


def _root(text: str) -> Shape:
    """Return the root op of a pattern, and the names of ops around it."""
    operations = {value: (name, operands) for value, name, operands in _OPERATION.findall(text)}
    results = dict(_RESULT.findall(text))

    def shape(operation: str, steps: int) -> Shape:
        name, operands = operations[operation]
        made_by = [results.get(value, "") for value in _VALUE.findall(operands)]
        makers = (shape(op, steps - 1) if op in operations and steps else None for op in made_by)
        return Shape(name, tuple(makers))

    return shape(_ROOT.findall(text)[0], _STEPS)


def _combinations(text: str) -> Iterator[frozenset[str]]:
    """Yield combinations of choices, the largest first: larger patterns are tried before smaller ones."""
    header = next((line for line in text.splitlines() if line.startswith("// choices:")), "")
    groups = [
        [*optional.split("|"), None] if optional else forced.split("|")
        for optional, forced in _CHOICES.findall(header)
    ]
    for choice in product(*groups):
        yield frozenset(name for name in choice if name is not None)


def _lines_of(text: str, chosen: frozenset[str]) -> str:
    """Return the lines that belong to a combination."""
    lines = []
    for line in text.splitlines():
        condition = _CONDITION.search(line)
        wanted = condition[1].replace(" ", "").split(",") if condition else []
        if all(_holds(names, chosen) for names in wanted):
            lines.append(line)
    return "\n".join(lines)


def _holds(names: str, chosen: frozenset[str]) -> bool:
    """Return whether `name`, `!name` or `name|name` is true of a combination."""
    negated = names.startswith("!")
    return any(name in chosen for name in names.lstrip("!").split("|")) != negated


class _Rewriter:
    """Carries out the rewrite of a pattern, line by line."""

    def __init__(self, context: Context, worklist: Worklist) -> None:
        self._context = context
        self._worklist = worklist

    def apply(
        self, rewrite: pdl.RewriteOp, root: CirhOp, where: InsertPoint, values: dict[SSAValue, Matched]
    ) -> None:
        """Rewrite one match.

        Args:
            rewrite: the rewrite of the pattern.
            root: gives new ops their origin.
            where: insertion point of new ops.
            values: the match of each value of the pattern; values of the rewrite are added.

        Raises:
            ValueError: it uses an unusual op of PDL.
        """
        seen = [value for value in values.values() if isinstance(value, Operation)]
        made: list[Operation] = []
        rewriter = PatternRewriter(where)
        rewriter.operation_insertion_handler += [lambda op: self._insert(root, op), made.append]
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
                    # The function inserts the ops that it makes.
                    function = REWRITES[op.constraint_name.data]
                    values[op.res[0]] = function(rewriter, *(values[value] for value in op.args))
                case pdl.ReplaceOp():
                    replaced.append(self._replace(op, values))
                case _:
                    raise ValueError(f"{op.name} is not supported in a rewrite")
        if self._worklist.watch is not None:
            self._worklist.watch.rewritten(seen, made)
        erase_unused(replaced)

    def _insert(self, source: CirhOp, op: Operation) -> None:
        assert isinstance(op, CirhOp), "patterns make ops of CIRH"
        op.take_origin(source)
        self._worklist.push_next(op)

    def _build_op(self, op: pdl.OperationOp, values: Mapping[SSAValue, Matched]) -> Operation:
        """Build a new op. Result types that the text does not name are inferred."""
        assert op.opName is not None, "an op is made by its name"
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
        for before, after in zip(old.results, new, strict=True):
            self._worklist.push_users(before)
            replace_uses(before, after)
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
            if self._patterns.knows(op):
                self._worklist.push(op)
        while (op := self._worklist.pop()) is not None:
            if is_read(op) and not self._try_patterns(op):
                # New ops take the simple form that patterns are written in.
                simple = simplify(op)
                if simple is not None:
                    replace_op(op, simple, self._worklist)

    def _try_patterns(self, op: CirhOp) -> bool:
        """Try all patterns with such a root; return whether one was applied."""
        for text in self._patterns.near(op):
            if not text.may_fit(op):
                continue
            pattern = text.compiled
            matcher = Matcher(pattern)
            if not matcher.match(op):
                continue
            where = self._insertion_point(pattern, matcher, op)
            if where is not None:
                self._rewriter.apply(pattern.rewrite, op, where, matcher.values())
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
    """Find the insertion point of new ops: after all that they read, before all that is replaced; or None.

    Ops that the new ones read are moved there, and taken out of `order`. There is no such point if an op that
    is replaced is among them.

    Raises:
        KeyError: before anything is moved: an op is not in `order`.
    """
    replaced = {op for node in pattern.replaced if isinstance(op := matcher.bindings[node], Operation)}
    first = min(replaced, key=order.__getitem__)
    inputs = [matcher.bindings[node] for node in pattern.inputs if node in matcher.bindings]
    later = _makers_after(order[first], order, inputs)
    if later & replaced:
        return None
    block = first.parent_block()
    assert block is not None, "ops on the worklist are part of a block"
    for op in sorted(later, key=order.__getitem__):
        block.detach_op(op)
        block.insert_op_before(op, first)
        del order[op]
    return InsertPoint.before(first)


def _makers_after(place: int, order: Mapping[Operation, int], values: Iterable[Matched]) -> set[Operation]:
    """Return the ops behind a place of a block that values depend on."""
    found: set[Operation] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, OpResult) and order[value.op] >= place and value.op not in found:
            found.add(value.op)
            pending += value.op.operands
    return found


@dataclass(frozen=True)
class FusePass(ModulePass):
    """Replaces groups of ops by ops of the vocabulary: normalization, attention, losses, optimizers ...

    Attributes:
        only: names of files of patterns, such as "attention"; by default all but the optional ones.
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
