"""Estimate a steady rate and its confidence interval from counts over time. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Equal parts of a measurement; those of the warm-up are cut off, the others are merged into batches.
WINDOWS = 40

# A fixed number of batches that grow with the measurement: correlation of neighboring samples (a shuffle
# buffer that fills, a queue that drains) increasingly falls within the batches. The remaining correlation
# between batches widens the interval.
BATCHES = 20

_MOST_CORRELATED = 0.9
_FEWEST_FREEDOM = 3

_SMALLEST_IMPROVEMENT = 0.7
# Student's t, 97.5 %, for 1, 2, ... degrees of freedom.
_STUDENT_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160)


@dataclass(frozen=True, slots=True)
class Count:
    """The samples that a copy has read by a time."""

    t: float
    samples: float


@dataclass(frozen=True, slots=True)
class SteadyRate:
    """The rate after the warm-up.

    Attributes:
        samples_per_s: mean rate.
        low: lower end of its 95 % confidence interval, at least 0.
        high: upper end.
        warm_up_s: seconds that were cut off.
        settled: the warm-up ended in the first half, so the rest is steady.
    """

    samples_per_s: float
    low: float
    high: float
    warm_up_s: float
    settled: bool

    @property
    def relative_half_width(self) -> float:
        """Half of the interval as a fraction of the rate."""
        if self.samples_per_s <= 0:
            return math.inf
        return (self.high - self.low) / 2 / self.samples_per_s


def steady_rate(copies: Sequence[Sequence[Count]], start: float, end: float) -> SteadyRate:
    """Estimate the rate of all copies together between two times.

    Args:
        copies: for every copy, its counts in order of time; the rate between them is taken as constant.
        start: beginning of the measurement.
        end: its end, later.
    """
    edges = np.linspace(start, end, WINDOWS + 1)
    totals = np.zeros(WINDOWS + 1)
    for counts in copies:
        totals += np.interp(edges, [c.t for c in counts], [c.samples for c in counts])
    width = (end - start) / WINDOWS
    rates = np.diff(totals) / width
    # The marginal standard error rule (K. P. White, "An effective truncation heuristic for bias reduction in
    # simulation output", Simulation 69, 1997): cut off the windows that minimize the standard error of the
    # mean of the rest.
    most = WINDOWS // 2
    scores = [float(rates[cut:].var()) / (WINDOWS - cut) for cut in range(most + 1)]
    cut = int(np.argmin(scores))
    # Some cut always looks slightly better by chance, and would make the interval too narrow.
    if scores[cut] >= _SMALLEST_IMPROVEMENT * scores[0]:
        cut = 0
    settled = cut < most
    steady = rates[cut:]
    length = len(steady) // BATCHES
    batches = steady[len(steady) - length * BATCHES :].reshape(BATCHES, length).mean(axis=1)
    mean = float(batches.mean())
    half = _interval_half_width(batches)
    return SteadyRate(mean, max(0.0, mean - half), mean + half, cut * width, settled)


def _interval_half_width(means: np.ndarray) -> float:
    """Return half of the 95 % interval of the mean of batch means that may be correlated."""
    # If neighbors have a correlation r that decays as in a first-order autoregression, n means are worth
    # n (1 - r) / (1 + r) independent ones (G. S. Fishman, "Principles of Discrete Event Simulation", 1978).
    # r is estimated from the means, corrected for the bias of short series, -(1 + 3 r) / n (F. H. C. Marriott
    # and J. A. Pope, Biometrika 41, 1954), and never negative.
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
    """Return the 97.5 % quantile of Student's t distribution."""
    if freedom <= len(_STUDENT_975):
        return _STUDENT_975[freedom - 1]
    # Cornish-Fisher expansion: within 0.1 % from 13 degrees of freedom on.
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
