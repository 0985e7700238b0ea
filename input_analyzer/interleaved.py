"""Rates of an input with and without a change, measured interleaved.

A turn takes a fraction of a second, so a busy machine disturbs both alike. While one is read, threads and
processes of the other fill its buffers and stop: so the first part of every turn, in which these are emptied,
does not count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

import numpy as np

from input_analyzer.measure.statistics import student_975

Ratio = tuple[float, float, float]
"""The rate with a change over that without it, and both ends of its 95 % interval."""

TURN_S = 0.25
"""A turn takes at least so long, and at least as many batches as its framework needs."""
LEFT_OUT = 0.4
"""Part of a turn in which buffers are emptied."""
TIGHT = 0.02
"""Half of the interval, as part of the ratio, from which on no more rounds are needed."""
CLEAR = 0.1
"""The same as part of the ratio's logarithm: what is 3 times as fast need not be known to 2 %."""
FEWEST_CLEAR = 4
"""Rounds from which on a clear ratio suffices, if it was one a round before too: an interval that is looked
at often enough is narrow by chance. So it holds the true ratio in 93 to 95 of 100 cases of normal noise, as
the intervals do that end with `TIGHT`."""


def rates_interleaved(
    before: Callable[[], float],
    after: Callable[[], float],
    *,
    fewest: int,
    seconds: float,
    say: Callable[[], None],
) -> Ratio:
    """The ratio of two rates, each of a turn, until it is tight or the time is over.

    Args:
        before: Reads for a turn without the change; the rate.
        after: The same with the change.
        fewest: Rounds, of a turn of each, that are made if the ratio is not clear before; at least 2.
        seconds: No round begins later than that.
        say: Called before every round.
    """
    end = time.monotonic() + seconds
    logs: list[float] = []
    clear = 0  # rounds in a row
    while True:
        say()
        # Each begins as often as the other.
        if len(logs) % 2:
            plain, changed = before(), after()
        else:
            changed, plain = after(), before()
        logs.append(math.log(changed / plain))
        if len(logs) < 2:
            continue
        middle = float(np.mean(logs))
        half = student_975(len(logs) - 1) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
        clear = clear + 1 if half < CLEAR * abs(middle) else 0
        enough = clear > 1 and len(logs) >= FEWEST_CLEAR
        if enough or (len(logs) >= fewest and (half < TIGHT or time.monotonic() > end)):
            return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


def slower(ratio: Ratio | None) -> bool:
    """Whether a change was measured to make the input slower, by the whole of its interval."""
    return ratio is not None and ratio[2] < 1


def compare_all(
    findings: Mapping[str, int | None],
    optional: Collection[str],
    compare: Callable[[Mapping[str, int | None], Callable[[], None]], Ratio | None],
    say: Callable[[str], None],
) -> tuple[dict[str, Ratio | None], Ratio | None]:
    """For each finding the ratio of the rates with and without its change, and for all together.

    Args:
        findings: Identifiers, with the numbers that they recommend.
        optional: Those that are left out of all together where they alone make the input slower.
        compare: Measures some of them; calls what it is given to say that it goes on.
        say: Told what is being done.

    Returns:
        The ratios by their identifiers, None for what was not measured; and that of all together, None where
        there are not several.
    """
    alone = {}
    for name, value in findings.items():
        alone[name] = compare({name: value}, partial(say, f"measuring what {name} gives"))
    kept = {name: value for name, value in findings.items() if not (name in optional and slower(alone[name]))}
    if len(kept) < 2:
        return alone, None
    return alone, compare(kept, partial(say, "measuring what all changes give together"))
