"""Fusion: groups of ops that are one operation of the vocabulary become that op.

The groups are PDL patterns (`patterns/*.mlir`); what PDL alone cannot say is in `constraints`. Every rewrite
computes the same function; sums are taken in another order, so results agree within the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects import pdl
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter, impl, register_impls
from xdsl.interpreters.pdl import PDLRewriteFunctions
from xdsl.ir import Block, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter
from xdsl.rewriter import InsertPoint

from cgc.cirh.base import CirhOp
from cgc.passes.canonicalize import simplified
from cgc.passes.constraints import REWRITES
from cgc.passes.cse import merge_equal_ops
from cgc.passes.matching import CompiledPattern, Matched, Matcher
from cgc.passes.pattern_files import OPTIONAL, STAGES, load_patterns
from cgc.passes.rewriting import Worklist, copy_debug_attributes, erase_unused, replace_op


@register_impls
class _Rewrites(PDLRewriteFunctions):
    """xDSL's interpreter of the rewrite side, with two things that it leaves out."""

    def __init__(self, context: Context, worklist: Worklist) -> None:
        super().__init__(context)
        self.worklist = worklist
        self.replaced: list[Operation] = []

    def begin(self, source: CirhOp, where: InsertPoint) -> None:
        """Prepares for one match: new ops go to a place, and take over the debug attributes of the root."""
        self.replaced = []
        self.rewriter = PatternRewriter(where)
        self.rewriter.operation_insertion_handler.append(lambda op: self._inserted(source, op))

    def _inserted(self, source: CirhOp, op: Operation) -> None:
        assert isinstance(op, CirhOp), "patterns make ops of CIRH"
        copy_debug_attributes(source, op)
        self.worklist.push_next(op)

    @impl(pdl.OperationOp)
    def run_operation(
        self, interpreter: Interpreter, op: pdl.OperationOp, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Makes an op. Result types that the text does not name are those that the op infers."""
        names = [name.data for name in op.attributeValueNames.data]
        assert op.opName is not None, "an op is made by its name"
        op_type = self.ctx.get_op(op.opName.data)
        assert issubclass(op_type, CirhOp), "patterns make ops of CIRH"
        operands = list(interpreter.get_values(op.operand_values))
        properties = dict(zip(names, interpreter.get_values(op.attribute_values), strict=True))
        types = interpreter.get_values(op.type_values) or op_type.inferred(operands, properties)
        made = op_type.create(operands=operands, result_types=list(types), properties=properties)
        self.rewriter.insert(made)
        return (made,)

    @impl(pdl.ApplyNativeRewriteOp)
    def run_native(
        self, interpreter: Interpreter, op: pdl.ApplyNativeRewriteOp, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Calls a function of `constraints.REWRITES`, which inserts the ops that it makes."""
        function = REWRITES[op.constraint_name.data]
        return (function(self.rewriter, *interpreter.get_values(op.operands)),)

    @impl(pdl.ReplaceOp)
    def run_replace(
        self, interpreter: Interpreter, op: pdl.ReplaceOp, args: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """Replaces the results of an op; the op itself goes when the rewrite is done."""
        (old,) = interpreter.get_values((op.op_value,))
        if op.repl_operation is not None:
            (operation,) = interpreter.get_values((op.repl_operation,))
            new: Sequence[SSAValue] = operation.results
        else:
            new = interpreter.get_values(op.repl_values)
        for before, after in zip(old.results, new, strict=True):
            self.worklist.push_users(before)
            if after.name_hint is None:
                after.name_hint = before.name_hint
            before.replace_all_uses_with(after)
        self.replaced.append(old)
        return ()


class Fuser:
    """Applies patterns to the ops of one block until none fits."""

    def __init__(self, context: Context, block: Block, groups: Sequence[str]) -> None:
        self._block = block
        self._patterns = load_patterns(groups, {op.name for op in block.ops})
        self._worklist = Worklist()
        self._rewrites = _Rewrites(context, self._worklist)
        self._interpreter = Interpreter(ModuleOp([]))
        self._interpreter.register_implementations(self._rewrites)
        self.fused: dict[str, int] = {}

    def run(self) -> None:
        """Rewrites the block in place."""
        for op in self._block.ops:
            if op.name in self._patterns:
                self._worklist.push(op)
        while (op := self._worklist.pop()) is not None:
            if _is_read(op) and not self._fused(op):
                self._simplify(op)

    def _simplify(self, op: CirhOp) -> None:
        """Brings what a rewrite has left into the simple form that patterns are written in."""
        simple = simplified(op)
        if simple is not None:
            replace_op(op, simple, self._worklist)

    def _fused(self, op: CirhOp) -> bool:
        """Tries all patterns with such a root; whether one has been applied."""
        for text in self._patterns.get(op.name, ()):
            if not text.may_fit(op):
                continue
            pattern = text.compiled
            matcher = Matcher(pattern)
            if not matcher.match(op):
                continue
            where = _place(pattern, matcher, op)
            if where is not None:
                self._apply(pattern, op, where, matcher.values())
                self.fused[pattern.name] = self.fused.get(pattern.name, 0) + 1
                return True
        return False

    def _apply(
        self, pattern: CompiledPattern, root: CirhOp, where: InsertPoint, values: dict[SSAValue, Matched]
    ) -> None:
        assert pattern.rewrite.body is not None, "rewrites have a body"
        self._rewrites.begin(root, where)
        self._interpreter.push_scope(pattern.name)
        self._interpreter.set_values(values.items())
        self._interpreter.run_ssacfg_region(pattern.rewrite.body, ())
        self._interpreter.pop_scope()
        erase_unused(self._rewrites.replaced)


def _is_read(op: CirhOp) -> bool:
    return any(result.first_use is not None for result in op.results)


def _place(pattern: CompiledPattern, matcher: Matcher, root: CirhOp) -> InsertPoint | None:
    """Where new ops can stand: behind all that they read, before all that is replaced. None if nowhere.

    What they read is moved there. There is no such place if something that is replaced goes into it.
    """
    if pattern.replaced == (pattern.root,):
        return InsertPoint.before(root)
    block = root.parent_block()
    assert block is not None, "ops on the worklist are part of a block"
    order = {op: index for index, op in enumerate(block.ops)}
    replaced = {op for node in pattern.replaced if isinstance(op := matcher.bindings[node], Operation)}
    first = min(replaced, key=order.__getitem__)
    inputs = [matcher.bindings[node] for node in pattern.inputs if node in matcher.bindings]
    later = _makers_behind(order[first], order, inputs)
    if later & replaced:
        return None
    for op in sorted(later, key=order.__getitem__):
        block.detach_op(op)
        block.insert_op_before(op, first)
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
