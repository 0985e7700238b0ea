"""An analysis from its begin to its end: examine, measure, fit, recommend."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from input_analyzer.analysis import (
    Analysis,
    Component,
    ContentionModel,
    Measurement,
    Node,
    Subject,
    Target,
)
from input_analyzer.conclusions import (
    USABLE_MEMORY,
    Limits,
    bottleneck_of,
    predictions,
    recommend,
    target_of_report,
    with_interval,
)
from input_analyzer.gains import Gains, measure_gains
from input_analyzer.measure import node
from input_analyzer.measure.copies import Copies, Copy, Launch
from input_analyzer.measure.link import Order
from input_analyzer.measure.node import ColdFiles
from input_analyzer.measure.rates import Effort, Plan, Rates, plans
from input_analyzer.rate_model import Point, RateModel, fit
from input_analyzer.report.wording import (
    cold_notes,
    file_notes,
    first_epoch_note,
    more_nodes_notes,
    reservations,
)
from input_rules.findings import Finding
from input_rules.rules import by_rank
from input_rules.rules.sharding import Split, find_uneven_split
from input_rules.throughput import StageCost, sample_time, unaccounted_us

Say = Callable[[str, float], None]
"""Is told what is being done, and what part of the whole analysis is over, 0 to 1."""

_STARTS = 0.35  # of the whole, for the examination


@dataclass(frozen=True)
class Request:
    """What the user asks for.

    Attributes:
        command: the user's words.
        launch: how they are started.
        cpus: CPU numbers of this node that may be used.
        available_nodes: nodes that a layout may have.
        cpus_per_task: candidates; empty: chosen by the number of CPUs.
        target: the rate to reach; None: that of the compile report.
        effort: time of each measurement.
        stage_seconds: time for the stages.
        cold: folders whose files are dropped from the memory of the operating system before a first epoch.
    """

    command: tuple[str, ...]
    launch: Launch
    cpus: tuple[int, ...]
    available_nodes: int
    cpus_per_task: tuple[int, ...] = ()
    target: Target | None = None
    effort: Effort = field(default_factory=Effort)
    stage_seconds: float = 8.0
    cold: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Examined:
    """What the first process has said of the input.

    Attributes:
        facts: see `input_analyzer.measure.examine.examine`.
        memory_bytes: most memory that it had.
    """

    facts: dict[str, Any]
    memory_bytes: int

    def subject(self, command: tuple[str, ...]) -> Subject:
        """What is analysed."""
        facts = self.facts
        return Subject(
            command,
            facts["function"],
            facts["source"],
            facts["framework"],
            facts["batch_size"],
            tuple(Component(c["name"], c["dtype"], tuple(c["shape"])) for c in facts["components"]),
            facts["epoch_samples"],
        )

    @property
    def stages(self) -> tuple[StageCost, ...]:
        """In pipeline order."""
        return tuple(map(StageCost.from_json, self.facts["stages"]))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The gravest first."""
        return tuple(map(Finding.from_json, self.facts["findings"]))

    def findings_with(self, workers: int, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Findings, and what so many workers of the recommended layout are found to share unevenly."""
        uneven = None if self.split is None else find_uneven_split(self.split, workers)
        return tuple(findings) if uneven is None else by_rank([*findings, uneven])

    @property
    def split(self) -> Split | None:
        """Files that workers share out whole."""
        split = self.facts["split"]
        return None if split is None else Split(**split)

    @property
    def may_speed_up(self) -> bool:
        """Whether later epochs may be faster than the first one: of a cache, or files that stay in memory."""
        cached = any(stage.op in ("cache", "snapshot") for stage in self.stages)
        return cached or not self.stages or bool(self.facts["may_read_files"])

    def epoch_of_copy(self, copies: int) -> int | None:
        """Samples of an epoch of one of several copies."""
        epoch: int | None = self.facts["epoch_samples"]
        return epoch // copies if epoch is not None and self.facts["sharded"] else epoch


def default_candidates(cpus: int) -> tuple[int, ...]:
    """CPUs per task that are tried on a node: powers of two from a sixteenth of the node to all of it."""
    powers = [2**power for power in range(cpus.bit_length()) if 2**power <= cpus]
    return tuple(power for power in powers if power * 16 >= cpus)


def _candidates(request: Request) -> tuple[int, ...]:
    return request.cpus_per_task or default_candidates(len(request.cpus))


def _usable_memory(request: Request) -> int:
    """Bytes that all tasks of the node together may take."""
    usable = int(USABLE_MEMORY * node.memory().available_bytes)
    allowed = request.launch.memory_bytes
    return usable if allowed is None else min(usable, allowed)


def examine(request: Request, say: Say, *, source_only: bool = False) -> Examined:
    """Runs the program up to its input function and examines that.

    Args:
        request: What the user asks for.
        say: Told what is being done.
        source_only: Only findings are wanted, also of an input that no run can use as it is.

    Raises:
        InputAnalyzerError: the program or its input cannot be analysed.
    """
    first = Order(
        purpose="examine",
        socket="",
        compile=request.target is None and not source_only,
        source_only=source_only,
        stage_seconds=request.stage_seconds,
        cpus_per_task=max(_candidates(request)),
        memory_bytes=_usable_memory(request) // max(1, len(request.cpus) // max(_candidates(request))),
    )
    with Copies(request.launch, [first], [request.cpus]) as copies:
        doing = "starting the program"
        facts = None
        started = time.monotonic()
        while facts is None:
            part = min(1.0, (time.monotonic() - started) / (request.stage_seconds + 10))
            say(doing, _STARTS * part)
            for _, message in copies.messages():
                if message["event"] == "alive":
                    doing = message["doing"]
                elif message["event"] == "examined":
                    facts = message
                    copies.all[0].waited_for = False  # it ends, or goes on to compile
        if facts["compiles"]:
            _wait_for_compilation(copies, copies.all[0], say)
            facts["notes"] += _failed_compilation(copies.all[0])
        return Examined(facts, copies.all[0].peak_bytes)


def _wait_for_compilation(copies: Copies, copy: Copy, say: Say) -> None:
    while copy.process.poll() is None:
        say("compiling, for the target rate", _STARTS)
        for _ in copies.messages():
            pass


def _failed_compilation(copy: Copy) -> list[str]:
    """What a reader must know of a compilation that gave no report."""
    code = copy.process.returncode
    if not code:
        return []
    said = copy.output_tail().splitlines()[-1:]
    return [f"The compilation failed (exit code {code}), so it gave no target: {' '.join(said)}"]


def analyze(request: Request, say: Say) -> Analysis:
    """The whole analysis.

    Raises:
        InputAnalyzerError: the program or its input cannot be analysed.
    """
    began = time.monotonic()
    analysis = conclude(request, examine(request, say), say)
    return replace(analysis, elapsed_s=time.monotonic() - began)


def gains_of(request: Request, examined: Examined, say: Say) -> Gains:
    """What changes are measured to give in a task with the largest number of CPUs that is tried."""
    return measure_gains(
        examined.findings,
        request.launch,
        request.cpus[: max(_candidates(request))],
        request.effort.longest_s,
        (_usable_memory(request), examined.memory_bytes),
        lambda doing: say(doing, _STARTS),
    )


def conclude(request: Request, examined: Examined, say: Say) -> Analysis:
    """Measures what was examined and recommends.

    Raises:
        InputAnalyzerError: the input fails while it is measured.
    """
    memory, usable = node.memory(), _usable_memory(request)
    candidates = _candidates(request)
    gains = gains_of(request, examined, say)
    stages = examined.stages
    most_workers = None if examined.split is None else examined.split.files
    todo = plans(len(request.cpus), candidates, usable, examined.memory_bytes, most_workers)
    measurements, notes, epoch_ended = _measure(request, examined, todo, say)
    model = fit([point_of(measurement) for measurement in measurements], sample_time(stages))
    limits = Limits(
        request.available_nodes,
        len(request.cpus),
        min(memory.total_bytes, request.launch.memory_bytes or memory.total_bytes),
        max(m.memory_per_task_bytes for m in measurements),
        candidates,
        most_workers,
    )
    target = request.target or target_of_report(map(Path, examined.facts["artifact_dirs"]))
    found = predictions(model, limits)
    recommendation = recommend(found, None if target is None else target.samples_per_s)
    recommendation = with_interval(recommendation, measurements, model.relative_error)
    beside = None
    if epoch_ended or not any(stage.once for stage in stages):
        beside = unaccounted_us(stages, _cpu_us_of_one(measurements, recommendation.layout.cpus_per_task))
    notes += [
        *file_notes(examined.split, limits),
        *more_nodes_notes(model, limits, target, recommendation),
        *reservations(measurements, model, limits, target, todo),
    ]
    say("done", 1.0)
    return Analysis(
        subject=examined.subject(request.command),
        node=Node(request.launch.host, len(request.cpus), memory.total_bytes),
        available_nodes=request.available_nodes,
        stages=stages,
        unaccounted_cpu_us_per_sample=beside,
        bottleneck=bottleneck_of(stages, recommendation.layout.cpus_per_task, beside or 0.0),
        findings=examined.findings_with(recommendation.layout.workers, gains.findings),
        measurements=measurements,
        model=_described(model, limits),
        predictions=found,
        recommendation=recommendation,
        target=target,
        input_bound=None if target is None else recommendation.samples_per_s < target.samples_per_s,
        gain_together=gains.together,
        notes=(*examined.facts["notes"], *gains.notes, *notes),
    )


def _cpu_us_of_one(measurements: Sequence[Measurement], cpus: int) -> float | None:
    """CPU time per sample of the only copy with so many CPUs."""
    alone = (one for one in measurements if one.tasks == 1 and one.cpus_per_task == cpus)
    return next((one.cpu_us_per_sample for one in alone), None)


def _measure(
    request: Request, examined: Examined, todo: Sequence[Plan], say: Say
) -> tuple[tuple[Measurement, ...], list[str], bool]:
    """What was measured, notes, and whether the first epoch was over before."""
    measurements: list[Measurement] = []
    notes: list[str] = []
    total = sum(len(plan.counts) for plan in todo)
    restarts, without_end = 0, []
    cold = ColdFiles("--cold", request.cold) if request.cold else None
    make_cold = None if cold is None else cold.drop
    for plan in todo:
        rates = Rates(request.effort, examined.epoch_of_copy(plan.most), request.cpus, make_cold)

        def progress(doing: str, part: float, plan: Plan = plan) -> None:
            done = (len(measurements) + part) / total
            say(
                # The number first: of what is wider than a terminal the end is not shown.
                f"measurement {len(measurements) + 1} of {total}, {plan.most} x {plan.cpus_per_task} CPUs: "
                f"{doing}",
                _STARTS + (1 - _STARTS) * done,
            )

        for measurement in rates.measure(request.launch, plan, progress):
            measurements.append(measurement)
        restarts = max(restarts, rates.restarts)
        without_end += [] if rates.epoch_ended else [plan.cpus_per_task]
    if restarts:
        notes.append(
            f"The input ended and was read again from its start, up to {restarts} times; its building is "
            "not counted."
        )
    if cold is not None:
        notes += cold_notes(cold, measurements)
    if without_end and examined.may_speed_up:
        everywhere = len(without_end) == len(todo)
        notes.append(first_epoch_note(() if everywhere else without_end))
    return tuple(measurements), notes, not without_end


def point_of(measurement: Measurement) -> Point:
    """A measurement as the model takes it."""
    cpu_us = measurement.cpu_us_per_sample
    return Point(
        measurement.tasks,
        measurement.cpus_per_task,
        measurement.samples_per_s,
        None if cpu_us is None else cpu_us / 1e6,
    )


def _described(model: RateModel, limits: Limits) -> ContentionModel:
    curves = {
        cpus: tuple((tasks, model.rate(tasks, cpus)) for tasks in range(1, limits.most_tasks(cpus) + 1))
        for cpus in limits.cpus_per_task
    }
    return ContentionModel(model.formula, model.relative_error, curves, limits.files)
