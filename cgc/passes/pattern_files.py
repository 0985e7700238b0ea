"""The patterns of `fuse`: MLIR text in `patterns/*.mlir`, in the dialect PDL, indexed by their root op.

An op is compared with the patterns of its own name alone, so that their number does not slow the walk.

A file may hold several forms of one pattern. A comment before it says what there is to choose:

    // choices: [scale] [keep|dropout] (sqrt|rsqrt)

stands for any combination of scale or not; keep, dropout or neither; sqrt or rsqrt. A line that ends in
`// if scale, !keep` belongs to the combinations with scale and without keep only, one in `// if keep|dropout`
to those with either; all other lines to all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from itertools import product
from typing import NamedTuple

from xdsl.context import Context
from xdsl.dialects import pdl
from xdsl.dialects.builtin import Builtin
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.parser import Parser

from cgc.cirh import ops
from cgc.cirh.base import CirhOp
from cgc.passes.constraints import CONSTRAINTS
from cgc.passes.matching import CompiledPattern, compile_pattern

STAGES = (
    ("signs", "rows_in_order", "roots", "means"),
    (
        *("bias", "linear", "activation", "layer_norm", "row_norm", "batch_norm"),
        *("softmax", "attention", "global_norm", "adam"),
    ),
    ("layer_norm_grad", "batch_norm_grad", "attention_grad", "cross_entropy"),
    ("composite", "batch_norm_half"),
)
"""The files. The patterns of a stage are applied until none fits; then those of the next are."""

OPTIONAL = ("composite_gelu",)
"""Files that are used only where they are named, after all stages. GELU has a kernel of its own, which would
take the bias away from the layer that it belongs to."""

_CHOICES = re.compile(r"\[([\w|]+)\]|\(([\w|]+)\)")
_OP_NAME = re.compile(r'pdl\.operation "(cirh\.\w+)"')
_OPERATION = re.compile(r'(%\w+) = pdl\.operation "(cirh\.\w+)"(?:\s*\(([^:]*):)?')
_RESULT = re.compile(r"(%\w+) = pdl\.result \d+ of (%\w+)")
_ROOT = re.compile(r"pdl\.rewrite (%\w+)")
_VALUE = re.compile(r"%\w+")
_CONDITION = re.compile(r"\s*// if ([!\w|, ]+)$")

_STEPS = 3
"""So far from the root the names of ops are compared before a pattern is parsed."""

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
"""Ops that may come up in any program on the way, because simplification makes them."""


class Shape(NamedTuple):
    """Names of an op of a pattern and of those that make its operands; None where any value may stand."""

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
        """The pattern ready to be matched; parsing takes milliseconds, and few patterns come that far."""
        context = Context()
        context.load_dialect(Builtin)
        context.load_dialect(pdl.PDL)
        module = Parser(context, self.text, self.name).parse_module()
        (op,) = module.body.block.ops
        assert isinstance(op, pdl.PatternOp), "a paragraph is one pattern"
        return compile_pattern(op, self.name, CONSTRAINTS)

    def may_fit(self, op: Operation) -> bool:
        """Whether ops of the right names make the operands of an op, and of those; else it does not fit."""
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
    """Patterns by the names of the ops that make the operands of their root: most ops have none to try."""

    def __init__(self, patterns: Mapping[str, Sequence[PatternText]]) -> None:
        self._patterns = patterns
        self._near: dict[tuple[str | None, ...], tuple[PatternText, ...]] = {}

    def knows(self, op: Operation) -> bool:
        """Whether there are patterns with such a root."""
        return op.name in self._patterns

    def near(self, op: CirhOp) -> tuple[PatternText, ...]:
        """The patterns that fit an op and its operands as far as names of ops tell."""
        texts = self._patterns.get(op.name, ())
        if not texts:
            return ()
        makers = [value.op.name if type(value) is OpResult else None for value in op.operand_values]
        key = (op.name, *makers)
        if key not in self._near:
            self._near[key] = tuple(text for text in texts if _are_near(text.root, makers))
        return self._near[key]


def _are_near(root: Shape, makers: Sequence[str | None]) -> bool:
    """Whether ops of these names may make the operands of the root, of two in either order."""
    orders = [makers, makers[::-1]] if len(makers) == 2 else [makers]
    return len(root.operands) == len(makers) and any(
        all(wanted is None or wanted.name == name for wanted, name in zip(root.operands, order, strict=True))
        for order in orders
    )


def load_patterns(
    groups: Sequence[str], present: AbstractSet[str] | None = None
) -> dict[str, tuple[PatternText, ...]]:
    """Name of the root op -> the patterns of these files with such a root, in their order.

    Args:
        groups: names of files.
        present: names of the ops of a program; patterns that cannot fit it, even after others have, are left
            out. All patterns without it.
    """
    texts = [text for group in groups for text in pattern_texts(group)]
    if present is not None:
        texts = _usable(texts, present)
    found: dict[str, list[PatternText]] = {}
    for text in texts:
        found.setdefault(text.root.name, []).append(text)
    return {name: tuple(patterns) for name, patterns in found.items()}


def _usable(texts: list[PatternText], present: AbstractSet[str]) -> list[PatternText]:
    """Those whose ops are there, or are made by others of them."""
    known, usable = ALWAYS | present, -1
    while usable != len(known):
        usable = len(known)
        known = known.union(*(text.makes for text in texts if text.needs <= known))
    return [text for text in texts if text.needs <= known]


@cache
def pattern_texts(group: str) -> tuple[PatternText, ...]:
    """All forms of all patterns of a file."""
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
    """The op that a pattern rewrites, as far as names of ops tell."""
    operations = {value: (name, operands) for value, name, operands in _OPERATION.findall(text)}
    results = dict(_RESULT.findall(text))

    def shape(operation: str, steps: int) -> Shape:
        name, operands = operations[operation]
        made_by = [results.get(value, "") for value in _VALUE.findall(operands)]
        makers = (shape(op, steps - 1) if op in operations and steps else None for op in made_by)
        return Shape(name, tuple(makers))

    return shape(_ROOT.findall(text)[0], _STEPS)


def _combinations(text: str) -> Iterator[frozenset[str]]:
    """The largest first: a pattern that takes in more is tried before one that takes in less."""
    header = next((line for line in text.splitlines() if line.startswith("// choices:")), "")
    groups = [
        [*optional.split("|"), None] if optional else forced.split("|")
        for optional, forced in _CHOICES.findall(header)
    ]
    for choice in product(*groups):
        yield frozenset(name for name in choice if name is not None)


def _lines_of(text: str, chosen: frozenset[str]) -> str:
    """The lines that belong to a combination."""
    lines = []
    for line in text.splitlines():
        condition = _CONDITION.search(line)
        wanted = condition[1].replace(" ", "").split(",") if condition else []
        if all(_holds(names, chosen) for names in wanted):
            lines.append(line)
    return "\n".join(lines)


def _holds(names: str, chosen: frozenset[str]) -> bool:
    """Whether `name`, `!name` or `name|name` is true of a combination."""
    negated = names.startswith("!")
    return any(name in chosen for name in names.lstrip("!").split("|")) != negated
