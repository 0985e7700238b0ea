"""Measured gains: the input is read with and without a mend, in turns, by a process of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from input_analyzer.analysis import Finding, Gain
from input_analyzer.applying import COMPARED, PREFETCHING, SPARING, optional, words_of
from input_analyzer.errors import InputAnalyzerError
from input_analyzer.findings import by_rank
from input_analyzer.findings.expected_gains import counted_cpus, figure
from input_analyzer.measure.copies import Copies, Launch
from input_analyzer.measure.link import Order
from input_analyzer.other_process import concluded
from input_analyzer.turns import Ratio, slower

TOTAL_S = 16.0
"""All comparisons together take about so long at most."""

_LEAST_S = 2.0
_MEMORY = 2.5
"""The process has the input twice at a time; its examination had it about once."""

_NOISE = 0.2
"""An interval as wide as that says nothing about the change."""
_HELPS = 1.05
"""A change that is for speed alone has to reach that with the upper end of its interval."""


@dataclass(frozen=True)
class Gains:
    """What was measured.

    Attributes:
        findings: all findings, with the measured gain where there is one.
        together: of all mends together, without those left out; None where there are not several, or they
            were not compared.
        notes: what a reader must know, one sentence each.
        left_out: findings whose mending is for speed, or spares memory that is not short, and was measured to
            make the input slower.
    """

    findings: tuple[Finding, ...]
    together: Gain | None = None
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def compared_sets(findings: Sequence[Finding]) -> tuple[tuple[str, ...], ...]:
    """Findings to mend in each comparison: each that can change the rate alone, of several all together."""
    found = list(dict.fromkeys(finding.id for finding in findings if finding.proved))
    alone = [(name,) for name in found if name in COMPARED]
    return (*alone, tuple(found)) if len(alone) > 1 else tuple(alone)


BOUNDED = {
    "map-before-batch": "read with batches in memory in place of what the function makes",
    "python-function": "read with results in memory in place of what it makes",
    "python-generator": "read with records in memory in place of those that it makes",
    "cache-would-fit": "from the second epoch on, read with results in memory",
}
"""Findings that only the author can mend: how the most that this can give is measured."""


def _bounds(findings: Sequence[Finding]) -> dict[str, tuple[tuple[str, str | None], ...]]:
    """By identifier the operations and lines of the findings of which the most is measured."""
    found: dict[str, list[tuple[str, str | None]]] = {}
    for finding in findings:
        if finding.id in BOUNDED:
            found.setdefault(finding.id, []).append((finding.op, finding.source))
    return {name: tuple(places) for name, places in found.items()}


def measure_gains(
    findings: tuple[Finding, ...],
    launch: Launch,
    cpus: tuple[int, ...],
    longest_s: float,
    memory: tuple[int, int],
    say: Callable[[str], None],
    tasks: int = 1,
    digest: str = "",
) -> Gains:
    """Compares the rates with and without each mend. Whatever fails here is a note, not an error.

    Args:
        findings: Of the input.
        launch: How the program is started.
        cpus: CPUs that the process is pinned to.
        longest_s: Time of one comparison, at most.
        memory: Bytes that may be used, and that the input was seen to use.
        say: Told what is being done.
        tasks: With so many CPUs each, for which the node has room: where the memory does not suffice for all
            of them, what spares memory is mended although it makes a task slower.
        digest: Of what workers share out; a mend that would share it out is left alone where the process has
            another one. Empty: it need not be the same.
    """
    bounds = _bounds(findings)
    mended = compared_sets(findings)
    sets = (*((name,) for name in bounds), *mended)
    usable, used = memory
    notes: tuple[str, ...] = ()
    if sets and _MEMORY * used > usable:
        notes = ("Gains were not measured: the input does not fit into the memory twice.",)
        bounds, sets = {}, ()
    if not sets and not digest:
        return Gains(findings, notes=notes)
    seconds = max(_LEAST_S, min(longest_s, TOTAL_S / max(len(sets), 1)))
    short = SPARING if tasks * used > usable else frozenset()
    for_speed = tuple(name for name in optional(findings) if name not in short)
    words = {word.partition(":")[0]: word for word in words_of(findings, len(cpus))}
    order = Order(
        purpose="compare",
        socket="",
        mends=tuple(tuple(words.get(name, name) for name in names) for names in sets),
        bounds=bounds,
        optional=tuple(words[name] for name in for_speed),
        stage_seconds=seconds,
        share=bool(digest),
    )
    shares: list[str] = []
    results: list[Ratio | None] = []
    try:
        results = _compare(order, launch, cpus, say, shares.append)
    except InputAnalyzerError as error:
        reason = str(error).splitlines()[0]
        notes += (f"Gains could not be measured: {reason}",)
        sets = ()
    findings, said = concluded(findings, digest, shares[0] if shares else None)
    if not sets:
        return Gains(findings, notes=(*notes, *said))
    by_set = dict(zip(sets, results, strict=True))
    together = by_set.get(sets[-1]) if len(sets[-1]) > 1 else None
    left_out = tuple(name for name in for_speed if slower(by_set.get((name,))))
    alone = {name: by_set.get((name,)) for name in (*COMPARED, *bounds)}
    return Gains(
        by_rank(with_gains(findings, alone, len(cpus), left_out, for_speed)),
        None if together is None else _of_all(together, len(cpus), set(sets[-1]) <= set(for_speed)),
        notes=(*said, *(_SHORT.format(name) for name in sorted(short) if slower(alone[name]))),
        left_out=left_out,
    )


_SHORT = (
    "Mending {} makes a task slower, but the memory that it spares is short: the node has CPUs for more "
    "tasks than it has memory for."
)


def _compare(
    order: Order,
    launch: Launch,
    cpus: tuple[int, ...],
    say: Callable[[str], None],
    shares: Callable[[str], None],
) -> list[Ratio | None]:
    with Copies(launch, [order], [cpus]) as copies:
        say("starting the program, for the gains")
        while True:
            for _, message in copies.messages():
                if message["event"] == "alive":
                    say(message["doing"])
                elif message["event"] == "shares":
                    shares(message["digest"])
                elif message["event"] == "compared":
                    return [None if ratio is None else tuple(ratio) for ratio in message["ratios"]]


def with_gains(
    findings: Sequence[Finding],
    ratios: dict[str, Ratio | None],
    cpus: int,
    left_out: Collection[str] = (),
    for_speed: Collection[str] = (),
) -> list[Finding]:
    """The findings, those that were compared with what was measured; some are better left as they are.

    Args:
        findings: All.
        ratios: What was measured, by their identifiers.
        cpus: That it was measured with.
        left_out: Findings that were measured to be better as they are.
        for_speed: Findings that are mended for nothing else, or for memory: one that does not help becomes a
            hint.
    """
    count = Counter(finding.id for finding in findings)
    result = []
    for finding in findings:
        ratio = ratios.get(finding.id)
        if ratio is None:
            result.append(finding)
            continue
        how = BOUNDED.get(finding.id)
        gain = rate_gain(ratio, cpus) if how is None else bound_gain(ratio, cpus, how)
        text = gain.text
        if finding.id in PREFETCHING:
            text += ", where a training takes as long for a batch as its making"
        if count[finding.id] > 1:
            text += f", all {count[finding.id]} of its kind together"
        if finding.gain is not None and finding.gain.kind == "not-speed":
            text += f"; {finding.gain.text}"
        helps = ratio[2] >= _HELPS or finding.id not in for_speed or finding.id in SPARING
        if finding.id in left_out or not helps:
            gain, finding = _advised(replace(gain, text=text), True), replace(finding, severity="info")
        else:
            gain = replace(gain, text=text)
        result.append(replace(finding, gain=gain))
    return result


def _advised(gain: Gain, leave: bool) -> Gain:
    """A gain with the advice not to make the change, where that was measured not to help."""
    return replace(gain, text=f"{gain.text}; leave it as it is here") if leave else gain


def _of_all(ratio: Ratio, cpus: int, for_speed: bool) -> Gain:
    """What all mends give together; errors and endings are mended though the input is slower then."""
    gain = rate_gain(ratio, cpus)
    if not slower(ratio) or for_speed:
        return _advised(gain, slower(ratio))
    return replace(gain, text=f"{gain.text}; what is not for speed among them is to be mended all the same")


def bound_gain(ratio: Ratio, cpus: int, how: str) -> Gain:
    """The rate of an input without what some stages cost over that of the input as it is, in words.

    The bottleneck's ratio leaves calls and hand-overs as they are; here they are spared with the stages.
    """
    times, low, high = ratio
    interval = f"{figure(low)} to {figure(high)}"
    most = f"at most about {figure(times)} times the rate" if high >= _HELPS else "nothing"
    text = f"{most} with {counted_cpus(cpus)} ({interval}), {how}{_SPARED_TOO}"
    return Gain("measured", text, times, low, high, cpus, True)


_SPARED_TOO = ", which spares calls and handing elements over, too"


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
