"""Measure gains: read the input with and without a change, interleaved, in a separate process.

A turn takes a fraction of a second, so that a busy machine disturbs both inputs alike. While one input is
read, threads and processes of the other fill its buffers and then stop. Emptying these buffers takes the
first part of every turn, which does not count.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from input_analyzer.batch_forms import FORMS
from input_analyzer.errors import InputAnalyzerError
from input_analyzer.measure.copies import Copies, Launch
from input_analyzer.measure.link import Order
from input_analyzer.measure.statistics import student_975
from input_analyzer.source_changes import plan_changes
from input_rules.findings import Finding, Gain
from input_rules.formatting import plural
from input_rules.rules import by_rank
from input_rules.rules.base import format_ratio
from input_rules.rules.batching import UNTRIED

# Upper bound for the time of all comparisons together.
TOTAL_S = 16.0

_SHORTEST_S = 2.0
# The process holds two inputs; the examination held about one.
_MEMORY_FACTOR = 2.5

# Intervals of this width or more say nothing about the change.
_UNINFORMATIVE_WIDTH = 0.2
# The upper end of the interval must reach this for a change to help.
_SMALLEST_GAIN = 1.05
# A change with a lower ratio is withdrawn even if the noise leaves open that it makes no difference.
_NOTICEABLY_SLOWER = 0.8
_SLOWER_HERE = "it was measured to make the input slower here"
_ADDS_NOTHING = "it was measured to add nothing to the other changes"


@dataclass(frozen=True)
class Gains:
    """The measured gains.

    Attributes:
        findings: all findings, with the measured gain if there is one.
        combination: identifiers of the findings whose changes are the fastest combination that was measured;
            empty if no change makes the input faster.
        together: measured gain of that combination; None if it is empty.
        notes: remarks for readers, one sentence each.
    """

    findings: tuple[Finding, ...]
    combination: tuple[str, ...] = ()
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
    """Measure the gains of findings whose change can be tried; failures become notes instead of errors.

    Args:
        findings: The findings about the input.
        launch: How the program is started.
        cpus: CPUs that the process is pinned to.
        longest_s: Maximum time of one comparison.
        memory: Bytes that may be used, and bytes that the input was observed to use.
        say: Receives progress.
    """
    values, forms = select_compared(findings), plan_forms(findings)
    if not forms:
        values = {name: value for name, value in values.items() if name not in FORMS}
    untried = drop_untried(findings)
    if not values:
        return Gains(untried)
    usable, used = memory
    if _MEMORY_FACTOR * used > usable:
        return Gains(
            untried, notes=("Gains were not measured: two copies of the input do not fit into the memory.",)
        )
    order = Order(
        purpose="compare",
        socket="",
        findings=values,
        source_forms=forms,
        stage_seconds=max(_SHORTEST_S, min(longest_s, TOTAL_S / (2 * len(values) - 1))),
    )
    compared = None
    try:
        with Copies(launch, [order], [cpus]) as copies:
            say("starting the program, for the gains")
            while compared is None:
                for _, message in copies.messages():
                    if message["event"] == "alive":
                        say(message["doing"])
                    elif message["event"] == "compared":
                        compared = message
    except InputAnalyzerError as error:
        return Gains(untried, notes=(f"Gains could not be measured: {str(error).splitlines()[0]}",))
    single = {name: _parse_ratio(found) for name, found in compared["alone"].items()}
    together, combination = _parse_ratio(compared["together"]), tuple(compared["combination"])
    if forms:
        findings = choose_form(findings, compared["form"])
    return Gains(
        by_rank(add_gains(findings, single, len(cpus), combination)),
        combination,
        None if together is None else rate_gain(together, len(cpus)),
    )


def plan_forms(findings: Sequence[Finding]) -> dict[str, dict[str, str]]:
    """Return the changed sources of findings whose change has several forms, by form and file."""
    forms: dict[str, dict[str, str]] = {}
    for name, known in FORMS.items():
        for form in known:
            moving = [replace(one, form=form) for one in findings if one.id == name]
            files = {str(Path(file.name).absolute()): file.after for file in plan_changes(moving).files}
            if files:
                forms[form] = files
    return forms


def choose_form(findings: Iterable[Finding], form: str | None) -> tuple[Finding, ...]:
    """Set the form of a change that was tried; without one it is not proposed."""
    if form is None:
        return tuple(one for one in findings if one.id not in FORMS)
    return tuple(replace(one, form=form) if one.id in FORMS else one for one in findings)


def drop_untried(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings without those whose change may only be proposed after it was tried."""
    return tuple(one for one in findings if one.form != UNTRIED)


def _parse_ratio(found: list[float] | None) -> Ratio | None:
    return None if found is None else (found[0], found[1], found[2])


def add_gains(
    findings: Sequence[Finding],
    ratios: Mapping[str, Ratio | None],
    cpus: int,
    combination: Sequence[str] = (),
) -> list[Finding]:
    """Add the measured gains to the findings that were compared, and withdraw those that cost speed.

    Args:
        findings: All findings.
        ratios: Measured ratios by identifiers of findings.
        cpus: CPUs that they were measured with.
        combination: Identifiers of the findings in the fastest combination.
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
            text += ", if a training step takes as long as preparing its batch"
        if count[finding.id] > 1:
            text += f", all {count[finding.id]} findings of this kind together"
        if is_slower(ratio):
            finding = replace(
                finding, severity="info", by_hand=finding.by_hand or _SLOWER_HERE, withdrawn=True
            )
        elif ratio[2] < _SMALLEST_GAIN:
            finding = replace(finding, severity="info")
        elif combination and finding.id not in combination:
            if ratio[1] > 1:
                text += "; it adds nothing to the recommended combination"
            finding = replace(finding, by_hand=finding.by_hand or _ADDS_NOTHING)
        result.append(replace(finding, gain=replace(gain, text=text)))
    return result


def rate_gain(ratio: Ratio, cpus: int) -> Gain:
    """Describe a measured ratio as a gain."""
    times, low, high = ratio
    interval = f"{format_ratio(low)} to {format_ratio(high)}"
    where = plural(cpus, "CPU")
    if low <= 1 <= high:
        found = (
            "no difference"
            if high - low < _UNINFORMATIVE_WIDTH
            else "no difference beyond the noise of this machine"
        )
        text = f"{found} with {where} ({interval} times the rate)"
    else:
        text = f"{format_ratio(times)} times the rate with {where} ({interval})"
    return Gain("measured", text, times, low, high, cpus)


# Findings that matter if something else is done between two batches.
PREFETCHING = frozenset({"prefetch-missing", "prefetch-not-last", "prefetch-empty"})

# Findings that recommend a number of worker processes.
WORKER_COUNTS = ("loader-workers-missing", "loader-workers-few")

# Findings that are only about speed and whose change can be tried.
COMPARED = PREFETCHING | {
    *WORKER_COUNTS,
    *("parallel-calls-missing", "parallel-calls-fixed", "cycle-length-fixed", "flat-map-of-files"),
    *("parallel-reads-missing", "loader-workers-restarted", *FORMS),
}


def select_compared(findings: Iterable[Finding]) -> dict[str, int | None]:
    """Return the identifiers of findings that are compared, with the numbers that they recommend."""
    return {one.id: one.value for one in findings if one.id in COMPARED}


# The rate with a change over that without it, and both ends of its 95 % interval.
Ratio = tuple[float, float, float]

# Minimum time of a turn.
TURN_S = 0.25
# Minimum number of batches of a turn.
BATCHES = 4
# Covers the initial work of autotune, cold files, and the start of workers.
WARM_UP_S = 0.4
# After this many warm-ups, batches that are too slow for the time count as slow.
WARM_UPS = 3
FEWEST_ROUNDS = 6
# Fraction of a turn in which buffers are emptied.
SETTLING_SHARE = 0.4
# Half-width of the interval, as a fraction of the ratio, at which no more rounds are needed.
TIGHT = 0.02
# The same as a fraction of the ratio's logarithm: a factor of 3 need not be known to 2 %.
CLEAR = 0.1
# Rounds after which a clear ratio suffices, if it was clear one round before, too: an interval that is
# checked repeatedly is narrow by chance at some time. With this rule it covers the true ratio in 93 to 95
# of 100 cases of normal noise, as do intervals that end with `TIGHT`.
FEWEST_CLEAR = 4


def measure_ratio(
    before: Callable[[], object],
    after: Callable[[], object],
    seconds: float,
    say: Callable[[], None],
    *,
    while_training: bool = False,
) -> Ratio | None:
    """Measure the ratio of the rates at which two inputs deliver batches.

    Args:
        before: Takes a batch of the input without a change.
        after: Takes a batch of the input with the change.
        seconds: Time to take.
        say: Called now and then.
        while_training: Wait after each batch as long as it takes to make one, so that batches made ahead show
            their effect as with a training step of the same time.

    Returns:
        None if batches are too slow for the time.
    """
    # On a busy machine workers may still start in the first warm-up, so one warm-up is not enough.
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
    pause = slowest if while_training else 0.0
    turn *= 2 if while_training else 1
    rates = (partial(_rate, take, turn, pause) for take in (before, after))
    return compare_interleaved(*rates, fewest=FEWEST_ROUNDS, seconds=seconds, say=say)


def _rate(take: Callable[[], object], seconds: float, pause: float) -> float:
    """Return the batches per second of a turn of this many seconds, with a pause after each batch."""
    _read(take, SETTLING_SHARE * seconds, pause)
    batches, passed = _read(take, (1 - SETTLING_SHARE) * seconds, pause)
    return batches / passed


def _read(take: Callable[[], object], seconds: float, pause: float) -> tuple[int, float]:
    """Read for some time, at least one batch; return the number of batches and the time."""
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
    """Measure the ratio of two rates, turn by turn, until its interval is narrow or the time is over.

    Args:
        before: Reads for a turn without the change; returns the rate.
        after: Reads for a turn with the change; returns the rate.
        fewest: Rounds of one turn each that are made unless the ratio is clear before; at least 2.
        seconds: No round starts later than that.
        say: Called before every round.
    """
    end = time.monotonic() + seconds
    logs: list[float] = []
    clear = 0  # rounds in a row
    while True:
        say()
        # Each of them goes first equally often.
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


def is_slower(ratio: Ratio) -> bool:
    """Return True if a change makes the input slower: by its whole interval, or noticeably."""
    return ratio[2] < 1 or ratio[0] < _NOTICEABLY_SLOWER


@dataclass(frozen=True)
class Compared:
    """The measured ratios of the rates with and without changes.

    Attributes:
        alone: Ratio of each change by the identifier of its finding; None if it was not measured.
        combination: Identifiers of the fastest combination that was measured.
        together: Its ratio; None if the combination is empty.
    """

    alone: Mapping[str, Ratio | None]
    combination: tuple[str, ...]
    together: Ratio | None


def compare_all(
    findings: Mapping[str, int | None],
    compare: Callable[[Mapping[str, int | None], Callable[[], None]], Ratio | None],
    say: Callable[[str], None],
) -> Compared:
    """Measure each change, and combine changes greedily: the fastest first, then each that adds to it.

    Args:
        findings: Identifiers, with the numbers that they recommend.
        compare: Measures some of them; calls its second argument to report that it is alive.
        say: Receives progress.
    """
    alone: dict[str, Ratio | None] = {}
    for name, value in findings.items():
        alone[name] = compare({name: value}, partial(say, f"measuring the gain of {name}"))
    # Changes without a measured gain are not tried again: each comparison takes seconds.
    faster = {name: ratio for name, ratio in alone.items() if ratio is not None and ratio[0] > 1}
    # A prefetch shows its gain only next to a training step. Without one it must only not cost anything, so
    # it comes last.
    order = sorted(faster, key=lambda name: (name in PREFETCHING, -faster[name][0]))
    chosen: list[str] = []
    best: Ratio | None = None
    for name in order:
        if best is None:
            chosen, best = [name], faster[name]
            continue
        tried = [*chosen, name]
        ratio = compare(
            {one: findings[one] for one in tried}, partial(say, f"measuring {' and '.join(tried)} together")
        )
        if ratio is None:
            continue
        if ratio[2] >= best[0] if name in PREFETCHING else ratio[0] > best[0]:
            chosen, best = tried, ratio
    if best is None or best[1] <= 1:  # the noise leaves open that nothing makes it faster
        return Compared(alone, (), None)
    return Compared(alone, tuple(chosen), best)
