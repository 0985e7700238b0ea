"""What could be better in an input function, and what that gives. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Gain:
    """What it gives to do what a finding recommends.

    Attributes:
        kind: "measured": the rates with and without the change were compared; "expected": from the times of
            the stages; "not-speed": something else is won, or not lost.
        text: for a reader.
        times: the rate with the change over that without it; None where there is no figure.
        low: lower end of the 95 % confidence interval of a measured one.
        high: upper end.
        cpus: CPUs that it was measured with, or is expected with.
        at_most: it is a bound: no way to make the change gives more.
    """

    kind: Literal["measured", "expected", "not-speed"]
    text: str
    times: float | None = None
    low: float | None = None
    high: float | None = None
    cpus: int | None = None
    at_most: bool = False

    def __str__(self) -> str:
        return f"{self.kind.replace('-', ' ')}: {self.text}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the input function that could be better.

    Attributes:
        id: stable name of the rule.
        severity: "error" for wrong training data or a run that fails, "warning" for lost speed, "info".
        op: the operation it is about.
        source: the user's line as "file:line"; None where it concerns the pipeline as a whole.
        message: what was found and why it matters, one sentence.
        recommended: what to write instead.
        gain: what that was measured to give, or is expected to; None where neither could be told.
        value: the number in what is recommended, where it is one: of worker processes, of elements in a
            buffer; else None.
        by_hand: why the change is left to the author, though it could be written mechanically; None where
            nothing speaks against it.
    """

    id: str
    severity: Severity
    op: str
    source: str | None
    message: str
    recommended: str
    gain: Gain | None = None
    value: int | None = None
    by_hand: str | None = None

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Finding:
        """A finding from its JSON object."""
        gain = value["gain"]
        return cls(**{**value, "gain": None if gain is None else Gain(**gain)})
