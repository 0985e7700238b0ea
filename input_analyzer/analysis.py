"""The result of an analysis: typed data, and the JSON that `cs_input_analyzer --json FILE` writes. Pure.

docs/reference/input-analyzer-reference.md describes the members of the JSON.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cs_toolkit import __version__
from csrun.jobs.layout import RECOMMENDATION_VERSION
from input_rules.findings import Finding, Gain
from input_rules.pipeline import Framework
from input_rules.throughput import StageCost


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The stage that limits the throughput, and the reason in one sentence."""

    stage: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """Copies of the input function that ran in parallel on one node.

    Attributes:
        tasks: number of copies.
        cpus_per_task: CPUs of each copy.
        samples_per_s: throughput of all copies together in the steady state.
        low: lower end of the 95 % confidence interval of that throughput.
        high: upper end.
        pinned: every copy had its own CPUs.
        settled: there were enough batches, the throughput was steady, and the interval was as narrow as
            requested.
        batches: batches of the copy that delivered the fewest.
        warm_up_s: seconds until the steady state.
        first_epoch_samples_per_s: throughput of a copy during its first epoch; None if that was too short to
            be measured, if it never ended and files were not made cold, or if several copies were measured.
        first_epoch_disk_bytes_per_sample: bytes that it read from disks during that epoch; None without such
            an epoch, or if the kernel does not report it.
        cold: files were dropped from the page cache just before.
        cpu_us_per_sample: CPU time of a copy's process per sample.
        bytes_per_sample: size of a sample as the worker receives it.
        memory_per_task_bytes: largest resident memory of a copy.
        other_cpus: CPUs that other programs kept busy in the meantime.
    """

    tasks: int
    cpus_per_task: int
    samples_per_s: float
    low: float
    high: float
    pinned: bool = True
    settled: bool = True
    batches: int = 0
    warm_up_s: float = 0.0
    first_epoch_samples_per_s: float | None = None
    cpu_us_per_sample: float | None = None
    bytes_per_sample: float = 0.0
    memory_per_task_bytes: int = 0
    other_cpus: float = 0.0
    first_epoch_disk_bytes_per_sample: float | None = None
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """A job of csrun_wse: `nodes` times `tasks_per_node` tasks, the first of which is the chief."""

    nodes: int
    tasks_per_node: int
    cpus_per_task: int

    @property
    def workers(self) -> int:
        """Tasks that stream; in a job of one task the chief's process includes the worker."""
        return max(1, self.nodes * self.tasks_per_node - 1)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The throughput that all workers of a layout are expected to reach together."""

    layout: Layout
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The layout to train with.

    Attributes:
        layout: nodes, tasks, CPUs.
        samples_per_s: expected throughput of its workers.
        headroom: fraction by which that exceeds the target, negative if it is below; None without a target.
        utilization: fraction of the time for which the accelerator is expected to have input, 0 to 1; None
            without a target.
        low: lower end of the interval of the expected throughput, see `conclusions.add_interval`; None if it
            was not computed.
        high: upper end.
    """

    layout: Layout
    samples_per_s: float
    headroom: float | None
    utilization: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Samples per second that training could use, and the origin of that number."""

    samples_per_s: float
    origin: str


@dataclass(frozen=True, slots=True)
class Component:
    """One tensor of a batch."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """The machine on which the input was measured."""

    name: str
    cpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Subject:
    """The analyzed input.

    Attributes:
        command: the user's command.
        function: name of the input function.
        source: where it is defined, "file:line".
        framework: framework of the pipeline that it returns.
        batch_size: samples of a batch.
        components: tensors of a batch in streaming order.
        epoch_samples: samples of an epoch of one task, including a smaller last batch; None if unknown.
    """

    command: tuple[str, ...]
    function: str
    source: str | None
    framework: Framework
    batch_size: int
    components: tuple[Component, ...]
    epoch_samples: int | None = None


@dataclass(frozen=True, slots=True)
class ContentionModel:
    """The fitted model of the throughput of one node, see `input_analyzer.rate_model`.

    Attributes:
        formula: formula with the fitted numbers.
        relative_error: root mean square of the relative distance from the measurements.
        curves: by CPUs per task, points (tasks, samples per second) of the fitted curve.
        files: files that are distributed whole among the workers; None if they are not.
    """

    formula: str
    relative_error: float
    curves: dict[int, tuple[tuple[int, float], ...]]
    files: int | None = None


@dataclass(frozen=True)
class Analysis:
    """The content of a report.

    Attributes:
        available_nodes: nodes that a layout may have.
        stages: in pipeline order.
        unaccounted_cpu_us_per_sample: CPU time of a copy that belongs to no stage, microseconds; None if
            unknown.
        unaccounted_wait_us_per_sample: time of a copy in which neither a stage nor its own overhead explains
            the wait, microseconds; None if unknown.
        bottleneck: None if the stages were not timed.
        measurements: in the order in which they were made.
        predictions: of all layouts that were considered.
        input_bound: training will wait for input even with the recommended layout; None without a target.
        combination: identifiers of the findings whose changes are the fastest measured combination.
        gain_together: its measured gain; None if no change makes the input faster.
        unsettled: reasons why the measurements do not support a verdict; empty if they do.
        measure_again: how to get measurements that do; None if they are settled.
        notes: remarks for readers, one sentence each.
        elapsed_s: seconds that the analysis took.
    """

    subject: Subject
    node: Node
    available_nodes: int
    stages: tuple[StageCost, ...]
    bottleneck: Bottleneck | None
    findings: tuple[Finding, ...]
    measurements: tuple[Measurement, ...]
    model: ContentionModel
    predictions: tuple[Prediction, ...]
    recommendation: Recommendation
    target: Target | None
    input_bound: bool | None
    combination: tuple[str, ...] = ()
    gain_together: Gain | None = None
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    unaccounted_cpu_us_per_sample: float | None = None
    unaccounted_wait_us_per_sample: float | None = None
    unsettled: tuple[str, ...] = ()
    measure_again: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON value of `--json FILE`, with every number in full precision."""
        return {
            "format_version": RECOMMENDATION_VERSION,
            "toolkit_version": __version__,
            "recommendation": _inline_layout(asdict(self.recommendation)),
            "target_samples_per_s": None if self.target is None else self.target.samples_per_s,
            "target_origin": None if self.target is None else self.target.origin,
            "input_bound": self.input_bound,
            "settled": not self.unsettled,
            "unsettled_reasons": list(self.unsettled),
            "measure_again": self.measure_again,
            "bottleneck": None if self.bottleneck is None else asdict(self.bottleneck),
            "stages": [asdict(stage) for stage in self.stages],
            "unaccounted_cpu_us_per_sample": self.unaccounted_cpu_us_per_sample,
            "unaccounted_wait_us_per_sample": self.unaccounted_wait_us_per_sample,
            "findings": [asdict(finding) for finding in self.findings],
            "recommended_changes": list(self.combination),
            "gain_together": None if self.gain_together is None else asdict(self.gain_together),
            "measurements": [asdict(measurement) for measurement in self.measurements],
            "predictions": [_inline_layout(asdict(prediction)) for prediction in self.predictions],
            "model": {"formula": self.model.formula, "relative_error": self.model.relative_error},
            "subject": asdict(self.subject),
            "node": asdict(self.node),
            "available_nodes": self.available_nodes,
            "notes": list(self.notes),
            "elapsed_s": self.elapsed_s,
        }


def _inline_layout(value: dict[str, Any]) -> dict[str, Any]:
    """Merge the members of a layout into the object that has it."""
    return {**value.pop("layout"), **value}
