"""Measured gains: the input is read with and without a mend, in turns, by a process of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from input_analyzer.analysis import Finding, Gain
from input_analyzer.applying import COMPARED, PREFETCHING, optional
from input_analyzer.errors import InputAnalyzerError
from input_analyzer.findings.gains import counted_cpus, figure
from input_analyzer.measure.copies import Copies, Launch
from input_analyzer.measure.link import Order
from input_analyzer.turns import Ratio, slower

TOTAL_S = 16.0
"""All comparisons together take about so long at most."""

_LEAST_S = 2.0
_MEMORY = 2.5
"""The process has the input twice at a time; its examination had it about once."""

_NOISE = 0.2
"""An interval as wide as that says nothing about the change."""


@dataclass(frozen=True)
class Gains:
    """What was measured.

    Attributes:
        findings: all findings, with the measured gain where there is one.
        together: of all mends together, without those left out; None where there are not several, or they
            were not compared.
        notes: what a reader must know, one sentence each.
        left_out: findings whose mending is for speed alone and was measured to make the input slower.
    """

    findings: tuple[Finding, ...]
    together: Gain | None = None
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def compared_sets(findings: Sequence[Finding]) -> tuple[tuple[str, ...], ...]:
    """Findings to mend in each comparison: each that can change the rate alone, of several all together."""
    found = list(dict.fromkeys(finding.id for finding in findings))
    alone = [(name,) for name in found if name in COMPARED]
    return (*alone, tuple(found)) if len(alone) > 1 else tuple(alone)


def measure_gains(
    findings: tuple[Finding, ...],
    launch: Launch,
    cpus: tuple[int, ...],
    longest_s: float,
    memory: tuple[int, int],
    say: Callable[[str], None],
) -> Gains:
    """Compares the rates with and without each mend. Whatever fails here is a note, not an error.

    Args:
        findings: Of the input.
        launch: How the program is started.
        cpus: CPUs that the process is pinned to.
        longest_s: Time of one comparison, at most.
        memory: Bytes that may be used, and that the input was seen to use.
        say: Told what is being done.
    """
    sets = compared_sets(findings)
    usable, used = memory
    if not sets:
        return Gains(findings)
    if _MEMORY * used > usable:
        note = "Gains were not measured: the input does not fit into the memory twice."
        return Gains(findings, notes=(note,))
    seconds = max(_LEAST_S, min(longest_s, TOTAL_S / len(sets)))
    for_speed = optional(findings)
    order = Order(purpose="compare", socket="", mends=sets, optional=for_speed, stage_seconds=seconds)
    try:
        results = _compare(order, launch, cpus, say)
    except InputAnalyzerError as error:
        reason = str(error).splitlines()[0]
        return Gains(findings, notes=(f"Gains could not be measured: {reason}",))
    by_set = dict(zip(sets, results, strict=True))
    together = by_set.get(sets[-1]) if len(sets[-1]) > 1 else None
    return Gains(
        tuple(with_gains(findings, {name: by_set.get((name,)) for name in COMPARED}, len(cpus))),
        None if together is None else rate_gain(together, len(cpus)),
        left_out=tuple(name for name in for_speed if slower(by_set.get((name,)))),
    )


def _compare(
    order: Order, launch: Launch, cpus: tuple[int, ...], say: Callable[[str], None]
) -> list[Ratio | None]:
    with Copies(launch, [order], [cpus]) as copies:
        say("starting the program, for the gains")
        while True:
            for _, message in copies.messages():
                if message["event"] == "alive":
                    say(message["doing"])
                elif message["event"] == "compared":
                    return [None if ratio is None else tuple(ratio) for ratio in message["ratios"]]


def with_gains(findings: Sequence[Finding], ratios: dict[str, Ratio | None], cpus: int) -> list[Finding]:
    """The findings, those that were compared with what was measured."""
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
        if finding.gain is not None and finding.gain.kind == "not-speed":
            text += f"; {finding.gain.text}"
        elif (gain.high or 0.0) < 1:
            text += "; leave it as it is here"
        result.append(replace(finding, gain=replace(gain, text=text)))
    return result


def rate_gain(ratio: Ratio, cpus: int) -> Gain:
    """A measured ratio in words."""
    times, low, high = ratio
    interval = f"{figure(low)} to {figure(high)}"
    where = counted_cpus(cpus)
    if low <= 1 <= high:
        found = (
            "no difference" if high - low < _NOISE else "none that stands out of the noise of this machine"
        )
        text = f"{found} with {where} ({interval} times the rate)"
    else:
        text = f"{figure(times)} times the rate with {where} ({interval})"
    return Gain("measured", text, times, low, high, cpus)
