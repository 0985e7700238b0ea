"""Run an analysis from beginning to end: examine, measure, fit, recommend."""

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
    add_interval,
    find_bottleneck,
    predict_layouts,
    read_report_target,
    recommend,
)
from input_analyzer.gains import Gains, measure_gains
from input_analyzer.measure import node
from input_analyzer.measure.copies import Copies, Launch
from input_analyzer.measure.link import Order
from input_analyzer.measure.node import ColdFiles
from input_analyzer.measure.rates import Effort, Plan, Rates, plans
from input_analyzer.rate_model import Point, RateModel, fit
from input_analyzer.report.wording import (
    cold_notes,
    file_notes,
    first_epoch_note,
    measure_again,
    more_nodes_notes,
    reservations,
    unsettled_reasons,
)
from input_analyzer.source_changes import add_diffs
from input_rules.findings import Finding
from input_rules.rules import by_rank
from input_rules.rules.sharding import Split, find_uneven_split
from input_rules.throughput import StageCost, sample_time, time_us, unaccounted_us

# Receives the current activity and the completed fraction of the whole analysis, 0 to 1.
ReportProgress = Callable[[str, float], None]

_MEASUREMENTS_START = 0.35  # fraction of the progress at which measurements start


@dataclass(frozen=True)
class Request:
    """The analysis that the user requests.

    Attributes:
        command: the user's command.
        launch: how it is started.
        cpus: CPU numbers of this node that may be used.
        available_nodes: nodes that a layout may have.
        cpus_per_task: candidates; if empty, they are derived from the number of CPUs.
        target: the throughput to reach; None: the estimate of the compile report.
        effort: time of each measurement.
        stage_seconds: time for timing the stages.
        cold: folders whose files are dropped from the page cache before a first epoch.
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

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of the command line for the same analysis, but for the time of a measurement."""
        flags = [f"--available-nodes={self.available_nodes}"]
        if self.cpus_per_task:
            flags.append(f"--cpus-per-task={','.join(map(str, self.cpus_per_task))}")
        if self.target is not None:
            flags.append(f"--target-samples-per-s={self.target.samples_per_s:.10g}")
        flags += [f"--cold={folder}" for folder in self.cold]
        return tuple(flags)


@dataclass(frozen=True)
class ExaminedInput:
    """The facts about the input that the first process has reported.

    Attributes:
        facts: see `measure.examine.examine`.
        memory_bytes: its peak memory.
    """

    facts: dict[str, Any]
    memory_bytes: int

    def subject(self, command: tuple[str, ...]) -> Subject:
        """Describe the analyzed input."""
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
        """The stages in pipeline order."""
        return tuple(map(StageCost.from_json, self.facts["stages"]))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, most severe first."""
        return tuple(map(Finding.from_json, self.facts["findings"]))

    def findings_with(self, workers: int, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """Add a finding if this number of workers cannot have the same number of files each."""
        uneven = None if self.split is None else find_uneven_split(self.split, workers)
        return tuple(findings) if uneven is None else by_rank([*findings, uneven])

    @property
    def split(self) -> Split | None:
        """Files that are distributed whole among the workers."""
        split = self.facts["split"]
        return None if split is None else Split(**split)

    @property
    def may_speed_up(self) -> bool:
        """True if later epochs may be faster, because of a cache or of files in memory."""
        cached = any(stage.op in ("cache", "snapshot") for stage in self.stages)
        return cached or not self.stages or bool(self.facts["may_read_files"])

    def epoch_of_copy(self, copies: int) -> int | None:
        """Return the samples of an epoch of one of several copies."""
        epoch: int | None = self.facts["epoch_samples"]
        return epoch // copies if epoch is not None and self.facts["sharded"] else epoch


def default_cpu_candidates(cpus: int) -> tuple[int, ...]:
    """Return the powers of two from a sixteenth of the node's CPUs to all of them."""
    powers = [2**power for power in range(cpus.bit_length()) if 2**power <= cpus]
    return tuple(power for power in powers if power * 16 >= cpus)


def _cpu_candidates(request: Request) -> tuple[int, ...]:
    return request.cpus_per_task or default_cpu_candidates(len(request.cpus))


def _usable_memory(request: Request) -> int:
    """Return the bytes that all tasks of the node together may use."""
    usable = int(USABLE_MEMORY * node.read_memory().available_bytes)
    allowed = request.launch.memory_bytes
    return usable if allowed is None else min(usable, allowed)


def examine(request: Request, say: ReportProgress, *, source_only: bool = False) -> ExaminedInput:
    """Run the program up to its input function and examine that.

    Args:
        request: The requested analysis.
        say: Receives progress.
        source_only: Only findings are needed, also for an input that no run can use.

    Raises:
        InputAnalyzerError: the program or its input cannot be analyzed.
    """
    first = Order(
        purpose="examine",
        socket="",
        compile=request.target is None and not source_only,
        source_only=source_only,
        stage_seconds=request.stage_seconds,
        cpus_per_task=max(_cpu_candidates(request)),
        memory_bytes=_usable_memory(request) // max(1, len(request.cpus) // max(_cpu_candidates(request))),
    )
    with Copies(request.launch, [first], [request.cpus]) as copies:
        doing = "starting the program"
        facts = None
        started = time.monotonic()
        while facts is None:
            part = min(1.0, (time.monotonic() - started) / (request.stage_seconds + 10))
            say(doing, _MEASUREMENTS_START * part)
            for _, message in copies.messages():
                if message["event"] == "alive":
                    doing = message["doing"]
                elif message["event"] == "examined":
                    facts = message
                    copies.all[0].must_report = False  # it exits, or continues with its compile
        copy = copies.all[0]
        if facts["compiles"]:
            while copy.process.poll() is None:
                say("compiling, for the target rate", _MEASUREMENTS_START)
                for _ in copies.messages():
                    pass
            if code := copy.process.returncode:
                last_line = " ".join(copy.output_tail().splitlines()[-1:])
                facts["notes"].append(
                    f"The compile failed (exit code {code}), so it provides no target: {last_line}"
                )
        return ExaminedInput(facts, copy.peak_bytes)


def analyze(request: Request, say: ReportProgress) -> Analysis:
    """Run the whole analysis.

    Raises:
        InputAnalyzerError: the program or its input cannot be analyzed.
    """
    began = time.monotonic()
    analysis = conclude(request, examine(request, say), say)
    return replace(analysis, elapsed_s=time.monotonic() - began)


def measure_change_gains(request: Request, examined: ExaminedInput, say: ReportProgress) -> Gains:
    """Measure the gains of recommended changes in a task with the largest candidate number of CPUs."""
    return measure_gains(
        examined.findings,
        request.launch,
        request.cpus[: max(_cpu_candidates(request))],
        request.effort.longest_s,
        (_usable_memory(request), examined.memory_bytes),
        lambda doing: say(doing, _MEASUREMENTS_START),
    )


def conclude(request: Request, examined: ExaminedInput, say: ReportProgress) -> Analysis:
    """Measure an examined input and recommend a layout.

    Raises:
        InputAnalyzerError: the input fails while it is measured.
    """
    memory, usable = node.read_memory(), _usable_memory(request)
    candidates = _cpu_candidates(request)
    gains = measure_change_gains(request, examined, say)
    stages = examined.stages
    most_workers = None if examined.split is None else examined.split.files
    planned = plans(len(request.cpus), candidates, usable, examined.memory_bytes, most_workers)
    measurements, notes, epoch_ended = _measure(request, examined, planned, say)
    model = fit([model_point(measurement) for measurement in measurements], sample_time(stages))
    limits = Limits(
        request.available_nodes,
        len(request.cpus),
        min(memory.total_bytes, request.launch.memory_bytes or memory.total_bytes),
        max(m.memory_per_task_bytes for m in measurements),
        candidates,
        most_workers,
    )
    target = request.target or read_report_target(map(Path, examined.facts["artifact_dirs"]))
    found = predict_layouts(model, limits)
    recommendation = recommend(found, None if target is None else target.samples_per_s)
    recommendation = add_interval(recommendation, measurements, model.relative_error)
    cpus = recommendation.layout.cpus_per_task
    single = next((one for one in measurements if one.tasks == 1 and one.cpus_per_task == cpus), None)
    unaccounted = wait = None
    # Stages that work in the first epoch only would count as unaccounted time of a first epoch.
    if single is not None and (epoch_ended or not any(stage.once for stage in stages)):
        unaccounted = unaccounted_us(stages, single.cpu_us_per_sample)
        if unaccounted is not None:
            wait = max(0.0, 1e6 / single.samples_per_s - time_us(stages, cpus, unaccounted))
    unsettled = unsettled_reasons(measurements, limits.node_cpus)
    notes += [
        *file_notes(examined.split, limits),
        *more_nodes_notes(model, limits, target, recommendation),
        *reservations(measurements, model, limits, target, planned),
    ]
    say("done", 1.0)
    return Analysis(
        subject=examined.subject(request.command),
        node=Node(request.launch.host, len(request.cpus), memory.total_bytes),
        available_nodes=request.available_nodes,
        stages=stages,
        unaccounted_cpu_us_per_sample=unaccounted,
        unaccounted_wait_us_per_sample=wait,
        bottleneck=find_bottleneck(stages, cpus, unaccounted or 0.0),
        findings=add_diffs(examined.findings_with(recommendation.layout.workers, gains.findings)),
        measurements=measurements,
        model=_describe_model(model, limits),
        predictions=found,
        recommendation=recommendation,
        target=target,
        input_bound=None if target is None else recommendation.samples_per_s < target.samples_per_s,
        combination=gains.combination,
        gain_together=gains.together,
        unsettled=unsettled,
        measure_again=(
            measure_again(
                measurements, limits.node_cpus, request.effort.longest_s, request.command, request.flags
            )
            if unsettled
            else None
        ),
        notes=(*examined.facts["notes"], *gains.notes, *notes),
    )


def _measure(
    request: Request, examined: ExaminedInput, planned: Sequence[Plan], say: ReportProgress
) -> tuple[tuple[Measurement, ...], list[str], bool]:
    """Run all measurements; return them, notes, and True if every first epoch ended before its rates."""
    measurements: list[Measurement] = []
    notes: list[str] = []
    total = sum(len(plan.counts) for plan in planned)
    restarts, endless = 0, []
    cold = ColdFiles("--cold", request.cold) if request.cold else None
    make_cold = None if cold is None else cold.drop
    for plan in planned:
        rates = Rates(request.effort, examined.epoch_of_copy(plan.most), request.cpus, make_cold)

        def progress(doing: str, part: float, plan: Plan = plan) -> None:
            done = (len(measurements) + part) / total
            say(
                # The number comes first, as the end of a line is cut off on a narrow terminal.
                f"measurement {len(measurements) + 1} of {total}, {plan.most} x {plan.cpus_per_task} CPUs: "
                f"{doing}",
                _MEASUREMENTS_START + (1 - _MEASUREMENTS_START) * done,
            )

        for measurement in rates.measure(request.launch, plan, progress):
            measurements.append(measurement)
        restarts = max(restarts, rates.restarts)
        endless += [] if rates.epoch_ended else [plan.cpus_per_task]
    if restarts:
        notes.append(
            f"The input ended and was rebuilt up to {restarts} times; the time for this is not counted."
        )
    if cold is not None:
        notes += cold_notes(cold, measurements)
    if endless and examined.may_speed_up:
        everywhere = len(endless) == len(planned)
        notes.append(first_epoch_note(() if everywhere else endless))
    return tuple(measurements), notes, not endless


def model_point(measurement: Measurement) -> Point:
    """Convert a measurement to a point of the rate model."""
    cpu_us = measurement.cpu_us_per_sample
    return Point(
        measurement.tasks,
        measurement.cpus_per_task,
        measurement.samples_per_s,
        None if cpu_us is None else cpu_us / 1e6,
    )


def _describe_model(model: RateModel, limits: Limits) -> ContentionModel:
    curves = {
        cpus: tuple((tasks, model.rate(tasks, cpus)) for tasks in range(1, limits.most_tasks(cpus) + 1))
        for cpus in limits.cpus_per_task
    }
    return ContentionModel(model.formula, model.relative_error, curves, limits.files)
