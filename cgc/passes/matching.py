"""Matching of PDL patterns.

xDSL's own matcher only walks from the root to the operands, in their written order. Programs write the
operands of a sum in any order and patterns of gradients have several results, so this matcher

* tries both orders of the operands of commutative ops, and backtracks;
* finds ops of a pattern that the root does not depend on among the users of matched values, as MLIR does for
  patterns with several roots;
* calls a native constraint as soon as its arguments are known; a constraint with a result returns a value or
  None.

Result types of an op are compared only if the pattern gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from xdsl.dialects import pdl
from xdsl.ir import Attribute, Operation, OpResult, SSAValue
from xdsl.traits import Commutative

Matched: TypeAlias = Operation | SSAValue | Attribute  # a match of a value of a pattern
# A native constraint: takes the matches of its operands; returns a truth value, or its result or None.
Constraint: TypeAlias = Callable[..., Any]


@dataclass(eq=False)
class Node:
    """A value of a pattern.

    Attributes:
        pattern: the value in the pattern's text.
        constant: the attribute or type that it must be, if the pattern gives one.
        operation: the op that has it as a result, if any.
        index: number of that result.
        checks: the constraints that it is an argument of.
    """

    pattern: SSAValue
    constant: Attribute | None = None
    operation: OpNode | None = None
    index: int = 0
    checks: list[Check] = field(default_factory=list)


@dataclass(eq=False)
class OpNode(Node):
    """An op of a pattern; `name` is empty for any op, `results` are those that the pattern uses."""

    name: str = ""
    attributes: tuple[tuple[str, Node], ...] = ()
    operands: tuple[Node, ...] = ()
    types: tuple[Node, ...] = ()
    results: list[Node] = field(default_factory=list)


@dataclass(eq=False)
class Check:
    """A native constraint with its arguments and, if it has one, its result."""

    constraint: Constraint
    arguments: tuple[Node, ...]
    result: Node | None
    is_negated: bool


@dataclass(frozen=True)
class CompiledPattern:
    """A pattern ready to be matched.

    Attributes:
        name: of the pattern, "file.pattern".
        root: the op at which matching starts, given by the rewrite.
        operations: all ops, in the order of the text.
        rewrite: the actions for a match.
        replaced: the ops that the rewrite replaces.
        inputs: the matched values that new ops read.
        constants: the attributes and types that the pattern gives.
    """

    name: str
    root: OpNode
    operations: tuple[OpNode, ...]
    rewrite: pdl.RewriteOp
    replaced: tuple[Node, ...]
    inputs: tuple[Node, ...]
    constants: Mapping[SSAValue, Attribute]


def compile_pattern(
    pattern: pdl.PatternOp, name: str, constraints: Mapping[str, Constraint]
) -> CompiledPattern:
    """Compile a pattern into nodes.

    Raises:
        KeyError: it names an unknown constraint.
        ValueError: it has no rewrite with a root, or uses an unusual op of PDL.
    """
    nodes: dict[SSAValue, Node] = {}
    operations: list[OpNode] = []
    rewrite: pdl.RewriteOp | None = None
    for op in pattern.body.block.ops:
        match op:
            case pdl.OperandOp():
                nodes[op.value] = Node(op.value)
            case pdl.AttributeOp():
                nodes[op.output] = Node(op.output, constant=op.value)
            case pdl.TypeOp():
                nodes[op.result] = Node(op.result, constant=op.constantType)
            case pdl.OperationOp():
                operations.append(_compile_operation(op, nodes))
            case pdl.ResultOp():
                producer = nodes[op.parent_]
                assert isinstance(producer, OpNode)
                nodes[op.val] = Node(op.val, operation=producer, index=op.index.value.data)
                producer.results.append(nodes[op.val])
            case pdl.ApplyNativeConstraintOp():
                result = Node(op.res[0]) if op.res else None
                arguments = tuple(nodes[value] for value in op.args)
                check = Check(
                    constraints[op.constraint_name.data], arguments, result, bool(op.is_negated.value.data)
                )
                for argument in set(arguments):
                    argument.checks.append(check)
                if result is not None:
                    nodes[op.res[0]] = result
            case pdl.RewriteOp():
                rewrite = op
            case _:
                raise ValueError(f"pattern {name}: {op.name} is not supported in a pattern")
    root = None if rewrite is None or rewrite.root is None else nodes[rewrite.root]
    if rewrite is None or not isinstance(root, OpNode):
        raise ValueError(f"pattern {name}: expected a pdl.rewrite of an operation of the pattern")
    actions = list(rewrite.body.block.ops) if rewrite.body is not None else []
    replaced = [nodes[op.op_value] for op in actions if isinstance(op, pdl.ReplaceOp)]
    creators = [op for op in actions if not isinstance(op, pdl.ReplaceOp)]
    inputs = dict.fromkeys(nodes[value] for op in creators for value in op.operands if value in nodes)
    return CompiledPattern(
        name,
        root,
        tuple(operations),
        rewrite,
        tuple(replaced),
        tuple(inputs),
        {value: node.constant for value, node in nodes.items() if node.constant is not None},
    )


def _compile_operation(op: pdl.OperationOp, nodes: dict[SSAValue, Node]) -> OpNode:
    names = [attribute.data for attribute in op.attributeValueNames.data]
    values = [nodes[value] for value in op.attribute_values]
    node = OpNode(
        op.op,
        name="" if op.opName is None else op.opName.data,
        attributes=tuple(zip(names, values, strict=True)),
        operands=tuple(nodes[value] for value in op.operand_values),
        types=tuple(nodes[value] for value in op.type_values),
    )
    nodes[op.op] = node
    return node


_Goals: TypeAlias = "tuple[tuple[Node, Matched], _Goals] | None"


class Matcher:
    """One attempt to match a pattern.

    Attributes:
        bindings: the match of each value of the pattern, after `match` has returned True.
    """

    def __init__(self, pattern: CompiledPattern) -> None:
        self.pattern = pattern
        self.bindings: dict[Node, Matched] = {}
        self._trail: list[Node] = []

    def match(self, root: Operation) -> bool:
        """Return True if the pattern matches with this op as its root."""
        return self._solve(((self.pattern.root, root), None))

    def values(self) -> dict[SSAValue, Matched]:
        """Return the match of each value of the pattern."""
        found = {node.pattern: matched for node, matched in self.bindings.items()}
        return {**self.pattern.constants, **found}

    def _solve(self, goals: _Goals) -> bool:
        while goals is not None:
            (node, matched), goals = goals
            known = self.bindings.get(node, node.constant)
            if known is not None and known is not matched and known != matched:
                return False
            if node in self.bindings:
                continue
            if isinstance(node, OpNode):
                assert isinstance(matched, Operation)
                if not self._fits(node, matched):
                    return False
                if not self._bind(node, matched) or not self._bind_results(node, matched):
                    return False
                if _is_reorderable(node, matched):
                    return self._solve_both_orders(node, matched, goals)
                for pair in zip(node.operands, matched.operands, strict=True):
                    goals = (pair, goals)
            else:
                if not self._bind(node, matched):
                    return False
                if node.operation is not None:
                    if not isinstance(matched, OpResult) or matched.index != node.index:
                        return False
                    goals = ((node.operation, matched.op), goals)
        return self._solve_next_root()

    def _fits(self, node: OpNode, op: Operation) -> bool:
        """Compare name, number of operands, attributes and result types."""
        if (node.name and op.name != node.name) or len(op.operands) != len(node.operands):
            return False
        for name, expected in node.attributes:
            attribute = op.get_attr_or_prop(name)
            if attribute is None or not self._accept(expected, attribute):
                return False
        if node.types and len(node.types) != len(op.results):
            return False
        return all(
            self._accept(expected, result.type)
            for expected, result in zip(node.types, op.results, strict=False)
        )

    def _accept(self, node: Node, attribute: Attribute) -> bool:
        known = self.bindings.get(node, node.constant)
        if known is not None and known != attribute:
            return False
        return node in self.bindings or self._bind(node, attribute)

    def _bind_results(self, node: OpNode, op: Operation) -> bool:
        if any(result.index >= len(op.results) for result in node.results):
            return False
        return all(self._solve_value(result, op.results[result.index]) for result in node.results)

    def _bind(self, node: Node, matched: Matched) -> bool:
        self.bindings[node] = matched
        self._trail.append(node)
        return all(self._check(check) for check in node.checks)

    def _check(self, check: Check) -> bool:
        """Call a constraint if its arguments are known."""
        arguments = [self.bindings.get(node, node.constant) for node in check.arguments]
        if any(argument is None for argument in arguments):
            return True
        outcome = check.constraint(*arguments)
        if check.result is None:
            return bool(outcome) != check.is_negated
        return outcome is not None and self._solve_value(check.result, outcome)

    def _solve_value(self, node: Node, matched: Matched) -> bool:
        known = self.bindings.get(node)
        return known == matched if known is not None else self._bind(node, matched)

    def _solve_both_orders(self, node: OpNode, op: Operation, goals: _Goals) -> bool:
        first, second = op.operands
        for left, right in ((first, second), (second, first)):
            mark = len(self._trail)
            if self._solve(((node.operands[0], left), ((node.operands[1], right), goals))):
                return True
            self._undo(mark)
        return False

    def _solve_next_root(self) -> bool:
        """Match the next op that the root does not depend on, among the users of a matched value."""
        for node in self.pattern.operations:
            if node in self.bindings:
                continue
            operand = next((self.bindings[value] for value in node.operands if value in self.bindings), None)
            if not isinstance(operand, SSAValue):
                continue
            matched_ids = set(map(id, self.bindings.values()))
            users = dict.fromkeys(use.operation for use in operand.uses)
            for user in users:
                if user.name != node.name or id(user) in matched_ids:
                    continue
                mark = len(self._trail)
                if self._solve(((node, user), None)):
                    return True
                self._undo(mark)
            return False
        return all(node in self.bindings for node in (*self.pattern.operations, *self.pattern.replaced))

    def _undo(self, mark: int) -> None:
        while len(self._trail) > mark:
            del self.bindings[self._trail.pop()]


def _is_reorderable(node: OpNode, op: Operation) -> bool:
    return len(op.operands) == 2 and op.has_trait(Commutative) and op.operands[0] is not op.operands[1]
