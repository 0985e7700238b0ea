"""From counts over time to a rate with its confidence interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WINDOWS = 40
"""Equal parts of a measurement; those of the warm-up are cut off, the rest is merged into batches."""

BATCHES = 20
"""Batch means have a fixed number of batches of growing length, so that the longer a measurement is, the more
of what neighbours have to do with each other (a shuffle buffer that fills, a queue that drains) is within the
batches. What is left between them widens the interval."""

_MOST_CORRELATED = 0.9
_FEWEST_FREEDOM = 3

_WORTH_A_CUT = 0.7
_STUDENT_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160)
"""Student's t, 97.5 %, for 1, 2, ... degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Count:
    """Samples that a copy had read at a time, both since anything."""

    t: float
    samples: float


@dataclass(frozen=True, slots=True)
class SteadyRate:
    """The rate after the warm-up.

    Attributes:
        samples_per_s: mean rate.
        low: lower end of its 95 % confidence interval; 0 or more.
        high: upper end.
        warm_up_s: seconds that were cut off.
        settled: the warm-up ended in the first half: the rest is steady.
    """

    samples_per_s: float
    low: float
    high: float
    warm_up_s: float
    settled: bool

    @property
    def relative_half_width(self) -> float:
        """Half of the interval as a part of the rate."""
        if self.samples_per_s <= 0:
            return math.inf
        return (self.high - self.low) / 2 / self.samples_per_s


def steady_rate(copies: Sequence[Sequence[Count]], start: float, end: float) -> SteadyRate:
    """The rate of all copies together between two times.

    The warm-up is found by the marginal standard error rule (K. P. White, "An effective truncation heuristic
    for bias reduction in simulation output", Simulation 69, 1997): that many windows are cut off at which the
    standard error of the mean of the rest is least. The interval is that of the means of `BATCHES` batches,
    whose correlation with their neighbours is taken into account as that of a first-order autoregression.

    Args:
        copies: of every copy its counts, in the order of time; between them the rate is taken as even.
        start: begin of the measurement.
        end: its end, later.
    """
    edges = np.linspace(start, end, WINDOWS + 1)
    totals = np.zeros(WINDOWS + 1)
    for counts in copies:
        totals += np.interp(edges, [c.t for c in counts], [c.samples for c in counts])
    width = (end - start) / WINDOWS
    rates = np.diff(totals) / width
    cut = _warm_up(rates)
    settled = cut < WINDOWS // 2
    steady = rates[cut:]
    length = len(steady) // BATCHES
    batches = steady[len(steady) - length * BATCHES :].reshape(BATCHES, length).mean(axis=1)
    mean = float(batches.mean())
    half = _half_width(batches)
    return SteadyRate(mean, max(0.0, mean - half), mean + half, cut * width, settled)


def _half_width(means: np.ndarray) -> float:
    """Half of the 95 % interval of the mean of batch means that may be correlated.

    With a correlation r of neighbours that falls off as in a first-order autoregression, n means tell as much
    as n (1 - r) / (1 + r) independent ones (G. S. Fishman, "Principles of Discrete Event Simulation", 1978).
    r is estimated from the means, less the bias of that in short series, -(1 + 3 r) / n (F. H. C. Marriott
    and J. A. Pope, Biometrika 41, 1954), and never taken for negative.
    """
    count = len(means)
    distances = means - means.mean()
    squares = float(distances @ distances)
    if squares == 0:
        return 0.0
    r = float(distances[1:] @ distances[:-1]) / squares
    r = min(max(0.0, r + (1 + 3 * r) / count), _MOST_CORRELATED)
    wider = (1 + r) / (1 - r)
    freedom = max(_FEWEST_FREEDOM, int((count - 1) / wider))
    return student_975(freedom) * float(means.std(ddof=1)) * math.sqrt(wider / count)


def student_975(freedom: int) -> float:
    """The 97.5 % quantile of Student's t; for many degrees of freedom that of the normal distribution."""
    if freedom <= len(_STUDENT_975):
        return _STUDENT_975[freedom - 1]
    # Cornish-Fisher expansion: within 0.1 % from 13 degrees of freedom on.
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _warm_up(rates: np.ndarray) -> int:
    """Windows to cut off, at most half of them; none where that gains little.

    By chance alone some cut always looks a little better, and the interval behind it would be too narrow.
    """
    most = len(rates) // 2
    scores = [float(rates[cut:].var()) / (len(rates) - cut) for cut in range(most + 1)]
    best = int(np.argmin(scores))
    return best if scores[best] < _WORTH_A_CUT * scores[0] else 0
