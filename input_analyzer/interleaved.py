"""Rates of an input with and without a change, measured interleaved.

A turn takes a fraction of a second, so a busy machine disturbs both alike. While one is read, threads and
processes of the other fill its buffers and stop: so the first part of every turn, in which these are emptied,
does not count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from input_analyzer.measure.statistics import student_975

Ratio = tuple[float, float, float]
"""The rate with a change over that without it, and both ends of its 95 % interval."""

TURN_S = 0.25
"""A turn takes at least so long."""
BATCHES = 4
"""A turn takes at least so many."""
WARM_UP_S = 0.4
"""What autotune does at first, files that are cold, and workers that start."""
WARM_UPS = 3
"""Warm-ups after which batches that are too slow for the time are taken for slow."""
FEWEST_ROUNDS = 6
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


def ratio_of(
    before: Callable[[], object],
    after: Callable[[], object],
    seconds: float,
    say: Callable[[], None],
    *,
    beside_a_training: bool = False,
) -> Ratio | None:
    """The ratio of the rates at which two inputs give batches.

    Args:
        before: Takes a batch of the input without a change.
        after: The same with the change.
        seconds: Time to take.
        say: Called now and then.
        beside_a_training: After each batch as long is waited as its making takes: what is made ahead shows
            where a training takes as long for a batch.

    Returns:
        None where batches are too slow for the time.
    """
    # On a busy machine workers still start in the first warm-up, so it alone does not call an input slow.
    for _ in range(WARM_UPS):
        slowest = 0.0
        for take in (before, after):
            say()
            slowest = max(slowest, 1 / _rate(take, WARM_UP_S, 0.0))
        turn = max(TURN_S, BATCHES * slowest)
        if turn * FEWEST_ROUNDS <= seconds:
            break
    else:
        return None
    pause = slowest if beside_a_training else 0.0
    turn *= 2 if beside_a_training else 1
    rates = (partial(_rate, take, turn, pause) for take in (before, after))
    return rates_interleaved(*rates, fewest=FEWEST_ROUNDS, seconds=seconds, say=say)


def _rate(take: Callable[[], object], seconds: float, pause: float) -> float:
    """Batches per second of a turn of about so many seconds; after each batch it waits."""
    _read(take, LEFT_OUT * seconds, pause)
    batches, passed = _read(take, (1 - LEFT_OUT) * seconds, pause)
    return batches / passed


def _read(take: Callable[[], object], seconds: float, pause: float) -> tuple[int, float]:
    """Reads for so long, at least one batch; the number of batches, and the time."""
    began = time.perf_counter()
    batches, passed = 0, 0.0
    while not batches or passed < seconds:
        take()
        batches += 1
        if pause:
            time.sleep(pause)
        passed = time.perf_counter() - began
    return batches, passed


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
    compare: Callable[[Mapping[str, int | None], Callable[[], None]], Ratio | None],
    say: Callable[[str], None],
) -> tuple[dict[str, Ratio | None], Ratio | None]:
    """For each finding the ratio of the rates with and without its change, and for all together.

    What alone makes the input slower is left out of all together.

    Args:
        findings: Identifiers, with the numbers that they recommend.
        compare: Measures some of them; calls what it is given to say that it goes on.
        say: Told what is being done.

    Returns:
        The ratios by their identifiers, None for what was not measured; and that of all together, None where
        there are not several.
    """
    alone = {}
    for name, value in findings.items():
        alone[name] = compare({name: value}, partial(say, f"measuring what {name} gives"))
    kept = {name: value for name, value in findings.items() if not slower(alone[name])}
    if len(kept) < 2:
        return alone, None
    return alone, compare(kept, partial(say, "measuring what all changes give together"))
