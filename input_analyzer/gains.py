"""Measured gains: the input is read with and without a change, interleaved, by a process of its own."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from input_analyzer.errors import InputAnalyzerError
from input_analyzer.measure.copies import Copies, Launch
from input_analyzer.measure.link import Order
from input_analyzer.measure.statistics import student_975
from input_rules.findings import Finding, Gain
from input_rules.formatting import plural
from input_rules.rules import by_rank
from input_rules.rules.base import format_ratio

TOTAL_S = 16.0
"""All comparisons together take about so long at most."""

_LEAST_S = 2.0
_MEMORY = 2.5
"""The process has the input twice at a time; its examination had it about once."""

_NOISE = 0.2
"""An interval as wide as that says nothing about the change."""
_HELPS = 1.05
"""A change has to reach that with the upper end of its interval."""
_BY_HAND = "it was measured to make the input slower here"


@dataclass(frozen=True)
class Gains:
    """What was measured.

    Attributes:
        findings: all findings, with the measured gain where there is one.
        together: of all changes that do not make the input slower; None where there are not several, or they
            were not compared.
        notes: what a reader must know, one sentence each.
    """

    findings: tuple[Finding, ...]
    together: Gain | None = None
    notes: tuple[str, ...] = ()


def measure_gains(
    findings: tuple[Finding, ...],
    launch: Launch,
    cpus: tuple[int, ...],
    longest_s: float,
    memory: tuple[int, int],
    say: Callable[[str], None],
) -> Gains:
    """Measures what findings give whose change can be tried out; whatever fails here is a note, not an error.

    Args:
        findings: Of the input.
        launch: How the program is started.
        cpus: CPUs that the process is pinned to.
        longest_s: Time of one comparison, at most.
        memory: Bytes that may be used, and that the input was seen to use.
        say: Told what is being done.
    """
    values = select_compared(findings)
    if not values:
        return Gains(findings)
    usable, used = memory
    if _MEMORY * used > usable:
        return Gains(
            findings, notes=("Gains were not measured: the input does not fit into the memory twice.",)
        )
    order = Order(
        purpose="compare",
        socket="",
        findings=values,
        stage_seconds=max(_LEAST_S, min(longest_s, TOTAL_S / (len(values) + 1))),
    )
    try:
        alone, together = _compare(order, launch, cpus, say)
    except InputAnalyzerError as error:
        return Gains(findings, notes=(f"Gains could not be measured: {str(error).splitlines()[0]}",))
    return Gains(
        by_rank(add_gains(findings, alone, len(cpus))),
        None if together is None else rate_gain(together, len(cpus)),
    )


def _compare(
    order: Order, launch: Launch, cpus: tuple[int, ...], say: Callable[[str], None]
) -> tuple[dict[str, Ratio | None], Ratio | None]:
    with Copies(launch, [order], [cpus]) as copies:
        say("starting the program, for the gains")
        while True:
            for _, message in copies.messages():
                if message["event"] == "alive":
                    say(message["doing"])
                elif message["event"] == "compared":
                    alone = {name: _ratio(found) for name, found in message["alone"].items()}
                    return alone, _ratio(message["together"])


def _ratio(found: list[float] | None) -> Ratio | None:
    return None if found is None else (found[0], found[1], found[2])


def add_gains(findings: Sequence[Finding], ratios: dict[str, Ratio | None], cpus: int) -> list[Finding]:
    """The findings, those that were compared with what was measured.

    Args:
        findings: All.
        ratios: What was measured, by their identifiers.
        cpus: That it was measured with.
    """
    count = Counter(finding.id for finding in findings)
    result = []
    for finding in findings:
        ratio = ratios.get(finding.id)
        if ratio is None:
            result.append(finding)
            continue
        gain = rate_gain(ratio, cpus)
        text = gain.text
        if finding.id in PREFETCHING:
            text += ", where a training takes as long for a batch as its making"
        if count[finding.id] > 1:
            text += f", all {count[finding.id]} of its kind together"
        if ratio[2] < _HELPS:
            finding = replace(finding, severity="info")
            if is_slower(ratio):
                text += "; leave it as it is here"
                finding = replace(finding, by_hand=finding.by_hand or _BY_HAND)
        result.append(replace(finding, gain=replace(gain, text=text)))
    return result


def rate_gain(ratio: Ratio, cpus: int) -> Gain:
    """A measured ratio in words."""
    times, low, high = ratio
    interval = f"{format_ratio(low)} to {format_ratio(high)}"
    where = plural(cpus, "CPU")
    if low <= 1 <= high:
        found = (
            "no difference" if high - low < _NOISE else "none that stands out of the noise of this machine"
        )
        text = f"{found} with {where} ({interval} times the rate)"
    else:
        text = f"{format_ratio(times)} times the rate with {where} ({interval})"
    return Gain("measured", text, times, low, high, cpus)


PREFETCHING = frozenset({"prefetch-missing", "prefetch-not-last", "prefetch-empty"})
"""Findings that matter where something is done between two batches."""

WORKER_COUNTS = ("loader-workers-missing", "loader-workers-few")
"""Findings that recommend a number of worker processes."""

COMPARED = PREFETCHING | {
    *WORKER_COUNTS,
    *("parallel-calls-missing", "parallel-calls-fixed", "cycle-length-fixed", "flat-map-of-files"),
    *("parallel-reads-missing", "loader-workers-restarted"),
}
"""Findings that are about speed alone, and whose change can be tried out."""


def select_compared(findings: Iterable[Finding]) -> dict[str, int | None]:
    """Identifiers of the findings that are compared, with the numbers that they recommend."""
    return {one.id: one.value for one in findings if one.id in COMPARED}


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


def measure_ratio(
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
    return compare_interleaved(*rates, fewest=FEWEST_ROUNDS, seconds=seconds, say=say)


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


def compare_interleaved(
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


def is_slower(ratio: Ratio | None) -> bool:
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
    kept = {name: value for name, value in findings.items() if not is_slower(alone[name])}
    if len(kept) < 2:
        return alone, None
    return alone, compare(kept, partial(say, "measuring what all changes give together"))
