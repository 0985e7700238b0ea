"""Measured gains: the input is read with and without a change, interleaved, by a process of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from input_analyzer.compared import PREFETCHING, values_of
from input_analyzer.errors import InputAnalyzerError
from input_analyzer.interleaved import Ratio, slower
from input_analyzer.measure.copies import Copies, Launch
from input_analyzer.measure.link import Order
from input_rules.findings import Finding, Gain
from input_rules.rules import by_rank
from input_rules.rules.base import counted_cpus, figure

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
    values = values_of(findings)
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
        by_rank(with_gains(findings, alone, len(cpus))),
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


def with_gains(findings: Sequence[Finding], ratios: dict[str, Ratio | None], cpus: int) -> list[Finding]:
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
            if slower(ratio):
                text += "; leave it as it is here"
                finding = replace(finding, by_hand=finding.by_hand or _BY_HAND)
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
