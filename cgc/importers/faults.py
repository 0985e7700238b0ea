"""What is wrong with a program, collected over the whole import and reported at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from cgc.errors import (
    CompileError,
    DynamicShapeError,
    GraphImportError,
    GraphTypeError,
    UnsupportedOpsError,
)
from cs_toolkit.errors import ProgramFault


class Kind(Enum):
    """Kinds of faults, in the order in which they are reported."""

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
    """Raised for an operation that cannot be imported; becomes one fault among those of the graph."""

    def __init__(self, kind: Kind, message: str) -> None:
        self.kind = kind
        super().__init__(message)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, as lines of text.

    Attributes:
        kind: where it stands among the others.
        text: what was got and expected.
        about: what is known of the operation that it is about, if it is about one.
    """

    kind: Kind
    text: str
    about: ProgramFault | None = None


def raise_if_any(faults: Iterable[Fault], remedies: Mapping[Kind, str]) -> None:
    """Raises one error that lists all faults by kind; its class is that of the first kind present.

    Args:
        faults: in the order of the program.
        remedies: what to do about faults of a kind, in the words of the framework.
    """
    faults = list(faults)
    if not faults:
        return
    by_kind = {kind: list(dict.fromkeys(f.text for f in faults if f.kind is kind)) for kind in Kind}
    present = [kind for kind in Kind if by_kind[kind]]
    lines: list[str] = []
    for kind in present:
        found = by_kind[kind]
        lines += [_HEADS[kind].format(count=len(found), plural="" if len(found) == 1 else "s")]
        lines += [f"  {text}" for text in found]
        lines += [f"  what to do: {remedies[kind]}"] if kind in remedies else []
    texts = tuple(text for kind in present for text in by_kind[kind])
    first = {fault.text: fault for fault in reversed(faults)}
    details = tuple(_detail(first[text], remedies) for text in texts)
    raise _ERRORS[present[0]]("\n".join(lines), texts, details)


def _detail(fault: Fault, remedies: Mapping[Kind, str]) -> ProgramFault:
    """The fault for programs."""
    return fault.about or ProgramFault(fault.kind.value, fault.text, what_to_do=remedies.get(fault.kind))


_HEADS = {
    Kind.UNKNOWN_OP: "{count} operation{plural} of the graph cannot be compiled:",
    Kind.TYPE: "{count} tensor{plural} of the graph with an element type that the CS system does not have:",
    Kind.SHAPE: "{count} tensor{plural} of the graph without a static shape:",
    Kind.USAGE: "{count} fault{plural} in the graph:",
}
