"""Problems of a program, collected over the whole import and reported together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from cgc.errors import (
    CompileError,
    DynamicShapeError,
    GraphImportError,
    GraphTypeError,
    UnsupportedOpsError,
)
from cs_toolkit.errors import ProgramFault


class Kind(Enum):
    """Kinds of problems, in the order in which they are reported."""

    UNKNOWN_OP = "unknown operation"
    TYPE = "element type"
    SHAPE = "dynamic shape"
    USAGE = "usage"


_ERRORS: dict[Kind, type[GraphImportError]] = {
    Kind.UNKNOWN_OP: UnsupportedOpsError,
    Kind.TYPE: GraphTypeError,
    Kind.SHAPE: DynamicShapeError,
    Kind.USAGE: GraphImportError,
}


class RefusedError(CompileError):
    """Raised for an operation that cannot be imported; becomes one problem among those of the graph.

    Args:
        kind: kind of the problem.
        message: the actual value and the expected one.
        what_to_do: a suggestion for this operation; by default the one for all problems of the kind.
    """

    def __init__(self, kind: Kind, message: str, what_to_do: str | None = None) -> None:
        self.kind = kind
        self.what_to_do = what_to_do
        super().__init__(message if what_to_do is None else f"{message}; {what_to_do}")


@dataclass(frozen=True)
class Problem:
    """One problem, as lines of text.

    Attributes:
        kind: its kind, by which problems are sorted.
        text: the actual value and the expected one.
        about: details of the operation, if the problem is about one.
    """

    kind: Kind
    text: str
    about: ProgramFault | None = None


class Described(NamedTuple):
    """Element type and shape of a tensor of the program, in text `float32[8,?]`; None is not known."""

    dtype: str
    shape: tuple[int | None, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.dtype}[shape unknown]"
        return f"{self.dtype}[{','.join('?' if size is None else str(size) for size in self.shape)}]"


@dataclass(frozen=True)
class Operation:
    """Description of an operation of the program in diagnostics.

    Attributes:
        type: the framework's name of the operation's type.
        node: the operation's own name.
        source: the user's line as "file:line", if known.
        results: descriptions of the results, in order.
        advice: what to do if such an operation cannot be imported, in the terms of the framework.
        place: what `node` names, in the terms of the framework.
        library: "package/file:line" of the library that the user's line calls, if it calls one.
    """

    type: str
    node: str
    source: str | None
    results: tuple[Described, ...]
    advice: str | None = None
    place: str = "node"
    library: str | None = None

    @property
    def where(self) -> str:
        """Node, user's line and library, as far as known: `node 'a/Foo', line run.py:41 (in lib/b.py:9)`."""
        library = f" (in {self.library})" if self.library else ""
        known = (
            f"{self.place} '{self.node}'" if self.node else "",
            f"line {self.source}{library}" if self.source else library.strip(" ()"),
        )
        return ", ".join(filter(None, known)) or "line unknown"

    @property
    def what(self) -> str:
        """For example `result float32[8,3]`; of many results the first few."""
        listed = ", ".join(map(str, self.results[:_RESULTS_SHOWN]))
        more = ", ..." if len(self.results) > _RESULTS_SHOWN else ""
        return f"result {listed}{more}" if self.results else "no result"

    def problem(self, kind: Kind, message: str, remedies: Mapping[Kind, str]) -> Problem:
        """Describe a problem of this operation; `remedies` as in `raise_if_any`."""
        return self._problem(kind, f"{self.type}: {self.where}, {self.what}: {message}", remedies)

    def unknown(self, count: int, remedies: Mapping[Kind, str]) -> Problem:
        """Describe that this operation and others of its type and line, `count` in all, are unknown."""
        more = f" ({count} such nodes)" if count > 1 else ""
        text = f"{self.type}: {self.where}{more}, {self.what}" + (f"; {self.advice}" if self.advice else "")
        return self._problem(Kind.UNKNOWN_OP, text, remedies)

    def _problem(self, kind: Kind, text: str, remedies: Mapping[Kind, str]) -> Problem:
        first = self.results[0] if self.results else None
        about = ProgramFault(
            kind=kind.value,
            message=text,
            op=self.type,
            node=self.node or None,
            shape=None if first is None else first.shape,
            dtype=None if first is None else first.dtype,
            source=self.source,
            library=self.library,
            what_to_do=self.advice or remedies.get(kind),
        )
        return Problem(kind, text, about)


def unknown_operations(operations: Iterable[Operation], remedies: Mapping[Kind, str]) -> list[Problem]:
    """Return one problem for each type and line, in the order of the program, with a count of nodes."""
    groups: dict[tuple[str | None, ...], list[Operation]] = defaultdict(list)
    for operation in operations:
        groups[operation.type, operation.source, operation.library].append(operation)
    return [group[0].unknown(len(group), remedies) for group in groups.values()]


def raise_if_any(problems: Iterable[Problem], remedies: Mapping[Kind, str]) -> None:
    """Raise the error of all problems, if there are any; arguments as of `import_error`."""
    problems = list(problems)
    if problems:
        raise import_error(problems, remedies)


def import_error(problems: Sequence[Problem], remedies: Mapping[Kind, str]) -> GraphImportError:
    """Return one error that lists all problems by kind; its class is that of the first kind present.

    Args:
        problems: one or more, in the order of the program.
        remedies: what to do about problems of a kind, in the terms of the framework.
    """
    by_kind = {kind: list(dict.fromkeys(f.text for f in problems if f.kind is kind)) for kind in Kind}
    present = [kind for kind in Kind if by_kind[kind]]
    lines: list[str] = []
    for kind in present:
        found = by_kind[kind]
        lines += [_HEADS[kind].format(count=len(found), plural="" if len(found) == 1 else "s")]
        lines += [f"  {text}" for text in found]
        lines += [f"  what to do: {remedies[kind]}"] if kind in remedies else []
    texts = tuple(text for kind in present for text in by_kind[kind])
    first = {problem.text: problem for problem in reversed(problems)}
    details = tuple(
        problem.about or ProgramFault(problem.kind.value, problem.text, what_to_do=remedies.get(problem.kind))
        for problem in map(first.__getitem__, texts)
    )
    return _ERRORS[present[0]]("\n".join(lines), texts, details)


_RESULTS_SHOWN = 4

_HEADS = {
    Kind.UNKNOWN_OP: "{count} operation{plural} of the graph cannot be compiled:",
    Kind.TYPE: "{count} tensor{plural} of the graph with an element type that the CS system does not have:",
    Kind.SHAPE: "{count} tensor{plural} of the graph without a static shape:",
    Kind.USAGE: "{count} problem{plural} in the graph:",
}
