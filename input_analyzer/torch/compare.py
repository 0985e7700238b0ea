"""Rates of a torch DataLoader with and without what findings recommend.

Both are made once and read as a worker reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from input_analyzer.errors import InputEndedError
from input_analyzer.interleaved import Ratio, ratio_of
from input_analyzer.torch.changed import changed
from input_rules.input_export import InputProgram, Shard


def compare(
    program: InputProgram, findings: Mapping[str, int | None], seconds: float, say: Callable[[], None]
) -> Ratio | None:
    """The ratio of the rates with and without some changes, and its 95 % interval.

    Args:
        program: The input.
        findings: Identifiers of findings, with the number that each recommends.
        seconds: Time to take.
        say: Called now and then.

    Returns:
        None where nothing changes, or batches are too slow for the time.
    """
    with program.role(Shard(1, 0)):
        plain, other = (program.build(Shard(1, 0)) for _ in range(2))
        other = changed(other, findings)
        if other is None:
            return None
        before, after = (partial(next, _without_end(loader, say)) for loader in (plain, other))
        return ratio_of(before, after, seconds, say)


def _without_end(loader: Any, say: Callable[[], None]) -> Iterator[Any]:
    """Batches of epoch after epoch."""
    while True:
        made = 0
        for batch in loader:
            made += 1
            say()
            yield batch
        if not made:
            raise InputEndedError(0, 0)
