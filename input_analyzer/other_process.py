"""What is said of records that workers share out once another process of the program has made them, too."""

from __future__ import annotations

from collections.abc import Sequence

from input_analyzer.analysis import Finding
from input_analyzer.applying import left_alone

_SHARED_OUT = "shard-missing"
_DIFFERS = (
    "a second process of the program has other data, or the same in another order, as of a set, of random "
    "numbers, or of what a clock or os.urandom() gives: workers would take parts of other orders, unless it "
    "is sorted or seeded"
)
_UNSEEN = "whether a second process of the program has the same data in the same order could not be seen"
_OWN_PARTS = (
    "A second process of the program has other data, or the same in another order, as of a set, of random "
    "numbers, or of what a clock or os.urandom() gives: unless it is sorted or seeded the workers take their "
    "parts of other orders, and some records are read by several of them and others by none."
)


def concluded(
    findings: Sequence[Finding], digest: str, other: str | None
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """The findings, and notes for the reader, once two processes have been compared.

    Args:
        findings: Of the input.
        digest: Of what workers share out, in the process that examined the input, or several of what they
            read first; empty where it does not matter.
        other: That of another process; None where it failed.
    """
    if not digest or (other is not None and _is_same(digest, other)):
        return tuple(findings), ()
    reason = _UNSEEN if other is None else _DIFFERS
    shared = {finding.id for finding in findings} & {_SHARED_OUT}
    notes = () if shared or other is None else (_OWN_PARTS,)
    return tuple(
        left_alone(one, reason) if one.id == _SHARED_OUT and one.proved else one for one in findings
    ), notes


def _is_same(digest: str, other: str) -> bool:
    """As far as both go: in the same time a busy machine reads less."""
    pairs = list(zip(digest.split(), other.split(), strict=False))
    return bool(pairs) and all(one == another for one, another in pairs)
