"""Fusion: groups of ops that are one operation of the vocabulary become that op.

The groups are PDL patterns (`patterns/*.mlir`); what PDL alone cannot say is in `constraints`. Every rewrite
computes the same function; sums are taken in another order, so results agree within the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import pdl
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.rewriter import InsertPoint

from cgc.cirh.base import CirhOp
from cgc.passes.canonicalize import simplified
from cgc.passes.constraints import REWRITES
from cgc.passes.cse import merge_equal_ops
from cgc.passes.matching import CompiledPattern, Matched, Matcher
from cgc.passes.pattern_files import OPTIONAL, STAGES, PatternIndex, load_patterns
from cgc.passes.rewriting import Worklist, erase_unused, is_read, replace_op, replace_uses


class _Rewriter:
    """Carries out what the rewrite of a pattern says, line by line."""

    def __init__(self, context: Context, worklist: Worklist) -> None:
        self._context = context
        self._worklist = worklist

    def apply(
        self, rewrite: pdl.RewriteOp, root: CirhOp, where: InsertPoint, values: dict[SSAValue, Matched]
    ) -> None:
        """Rewrites one match.

        Args:
            rewrite: of the pattern.
            root: new ops come from where it does.
            where: they go there.
            values: what the values of the pattern stand for; those of the rewrite are added.

        Raises:
            ValueError: it uses an op of PDL other than the usual ones.
        """
        seen = [value for value in values.values() if isinstance(value, Operation)]
        made: list[Operation] = []
        rewriter = PatternRewriter(where)
        rewriter.operation_insertion_handler += [lambda op: self._inserted(root, op), made.append]
        replaced: list[Operation] = []
        for op in rewrite.body.block.ops if rewrite.body is not None else ():
            match op:
                case pdl.AttributeOp() if op.value is not None:
                    values[op.output] = op.value
                case pdl.TypeOp() if op.constantType is not None:
                    values[op.result] = op.constantType
                case pdl.OperationOp():
                    values[op.op] = rewriter.insert(self._made(op, values))
                case pdl.ResultOp():
                    values[op.val] = _operation(values[op.parent_]).results[op.index.value.data]
                case pdl.ApplyNativeRewriteOp():
                    # The function inserts the ops that it makes.
                    function = REWRITES[op.constraint_name.data]
                    values[op.res[0]] = function(rewriter, *(values[value] for value in op.args))
                case pdl.ReplaceOp():
                    replaced.append(self._replaced(op, values))
                case _:
                    raise ValueError(f"{op.name} is not supported in a rewrite")
        if self._worklist.watch is not None:
            self._worklist.watch.rewritten(seen, made)
        erase_unused(replaced)

    def _inserted(self, source: CirhOp, op: Operation) -> None:
        assert isinstance(op, CirhOp), "patterns make ops of CIRH"
        op.take_origin(source)
        self._worklist.push_next(op)

    def _made(self, op: pdl.OperationOp, values: Mapping[SSAValue, Matched]) -> Operation:
        """A new op. Result types that the text does not name are those that the op infers."""
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
            result_types=types or op_type.inferred(operands, properties),
            properties=properties,
        )

    def _replaced(self, op: pdl.ReplaceOp, values: Mapping[SSAValue, Matched]) -> Operation:
        """Replaces the results of an op; the op itself goes when the rewrite is done."""
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
        """Rewrites the block in place."""
        for op in self._block.ops:
            if self._patterns.knows(op):
                self._worklist.push(op)
        while (op := self._worklist.pop()) is not None:
            if is_read(op) and not self._fused(op):
                self._simplify(op)

    def _simplify(self, op: CirhOp) -> None:
        """Brings what a rewrite has left into the simple form that patterns are written in."""
        simple = simplified(op)
        if simple is not None:
            replace_op(op, simple, self._worklist)

    def _fused(self, op: CirhOp) -> bool:
        """Tries all patterns with such a root; whether one has been applied."""
        for text in self._patterns.near(op):
            if not text.may_fit(op):
                continue
            pattern = text.compiled
            matcher = Matcher(pattern)
            if not matcher.match(op):
                continue
            where = self._place(pattern, matcher, op)
            if where is not None:
                self._rewriter.apply(pattern.rewrite, op, where, matcher.values())
                self.fused[pattern.name] = self.fused.get(pattern.name, 0) + 1
                return True
        return False

    def _place(self, pattern: CompiledPattern, matcher: Matcher, root: CirhOp) -> InsertPoint | None:
        """Where new ops can stand, see `_place`."""
        if pattern.replaced == (pattern.root,):
            return InsertPoint.before(root)
        try:
            return _place(pattern, matcher, self._order)
        except KeyError:  # an op that is newer than the order, or was moved
            self._order = {op: index for index, op in enumerate(self._block.ops)}
            return _place(pattern, matcher, self._order)


def _place(pattern: CompiledPattern, matcher: Matcher, order: dict[Operation, int]) -> InsertPoint | None:
    """Where new ops can stand: behind all that they read, before all that is replaced. None if nowhere.

    What they read is moved there, and taken out of `order`. There is no such place if something that is
    replaced goes into it.

    Raises:
        KeyError: before anything is moved: an op is not in `order`.
    """
    replaced = {op for node in pattern.replaced if isinstance(op := matcher.bindings[node], Operation)}
    first = min(replaced, key=order.__getitem__)
    inputs = [matcher.bindings[node] for node in pattern.inputs if node in matcher.bindings]
    later = _makers_behind(order[first], order, inputs)
    if later & replaced:
        return None
    block = first.parent_block()
    assert block is not None, "ops on the worklist are part of a block"
    for op in sorted(later, key=order.__getitem__):
        block.detach_op(op)
        block.insert_op_before(op, first)
        del order[op]
    return InsertPoint.before(first)


def _makers_behind(place: int, order: Mapping[Operation, int], values: Iterable[Matched]) -> set[Operation]:
    """The ops behind a place of a block that values depend on."""
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
        """Rewrites the module in place; ops that become unused go."""
        for block in op.walk_blocks():
            for stage in (*STAGES, OPTIONAL):
                groups = [
                    group for group in stage if group in self.only or not (self.only or stage is OPTIONAL)
                ]
                Fuser(ctx, block, groups).run()
                merge_equal_ops(block)  # the patterns of the next stage compare values by identity
