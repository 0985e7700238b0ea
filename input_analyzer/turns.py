"""Rates of an input with and without mends, measured in turns.

A turn takes a fraction of a second, so a busy machine disturbs both alike. While one is read, threads and
processes of the other fill its buffers and stop: so the first part of every turn, in which these are emptied,
does not count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
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


def compare_sets(
    sets: Sequence[Sequence[str]],
    optional: Collection[str],
    compare_one: Callable[[tuple[str, ...], Callable[[], None]], Ratio | None],
    say: Callable[[str], None],
) -> list[Ratio | None]:
    """For each set of findings the ratio of the rates with and without them mended.

    Args:
        sets: Identifiers of findings, as `applying.words_of` writes them or alone.
        optional: Findings, written alike, that a set of several is compared without where they alone were
            slower.
        compare_one: Measures some findings; calls what it is given to say that it goes on.
        say: Told what is being done.
    """
    ratios: list[Ratio | None] = []
    alone: dict[str, Ratio | None] = {}
    for names in sets:
        plain = (name.partition(":")[0] for name in names)  # a number may be behind it
        doing = f"measuring what mending {' and '.join(plain) if len(names) < 3 else 'all'} gives"
        ratio = compare_one(worth_while(names, alone, optional), partial(say, doing))
        ratios.append(ratio)
        if len(names) == 1:
            alone[names[0]] = ratio
    return ratios


def in_turns(
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


def worth_while(
    names: Collection[str], alone: Mapping[str, Ratio | None], optional: Collection[str]
) -> tuple[str, ...]:
    """The findings without those that are optional and that, mended alone, make the input slower."""
    return tuple(name for name in names if not (name in optional and slower(alone.get(name))))
