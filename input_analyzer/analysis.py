"""The result of an analysis: typed data, and the JSON that `cs_input_analyzer --json FILE` writes. Pure.

docs/input-analyzer-reference.md describes the JSON member by member.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from csrun.jobs.layout import RECOMMENDATION_VERSION
from input_rules.findings import Finding, Gain
from input_rules.pipeline import Framework
from input_rules.throughput import StageCost


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The stage that bounds the rate, and the reason in one sentence."""

    stage: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """Copies of the input function that ran side by side on one node.

    Attributes:
        tasks: number of copies.
        cpus_per_task: CPUs of each copy.
        samples_per_s: rate of all copies together in the steady state.
        low: lower end of the 95 % confidence interval of that rate.
        high: upper end.
        pinned: every copy had CPUs of its own.
        settled: there were enough batches, the rate had come to rest, and the interval was as tight as asked
            for.
        batches: of the copy that delivered the fewest.
        warm_up_s: seconds until the steady state.
        first_epoch_samples_per_s: rate of a copy during its first epoch; None where it was too short to be
            measured, or never ended and files were not made cold, or several copies were measured.
        first_epoch_disk_bytes_per_sample: bytes that it read from disks meanwhile; None where there is no
            such epoch, or the kernel does not tell.
        cold: files were dropped from the memory of the operating system just before.
        cpu_us_per_sample: CPU time of a copy's process per sample.
        bytes_per_sample: size of a sample as the worker gets it.
        memory_per_task_bytes: largest resident memory of a copy.
        other_cpus: CPUs that programs other than the copies kept busy meanwhile.
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
    """A job of csrun_wse: `nodes` times `tasks_per_node` tasks, of which the first is the chief."""

    nodes: int
    tasks_per_node: int
    cpus_per_task: int

    @property
    def workers(self) -> int:
        """Tasks that stream; the chief of a job of one task has its worker in the same process."""
        return max(1, self.nodes * self.tasks_per_node - 1)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The rate that all workers of a layout are expected to reach together."""

    layout: Layout
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The layout to train with.

    Attributes:
        layout: nodes, tasks, CPUs.
        samples_per_s: expected rate of its workers.
        headroom: by what part that is above the target, 0.25 for a quarter; negative where it is below; None
            without a target.
        utilization: part of the time for which the accelerator is expected to have input, 0 to 1; None
            without a target.
        low: lower end of the interval of the expected rate, see `input_analyzer.conclusions`; None where it
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
    """Samples per second that the training could use, and where that number is from."""

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
    """The machine that was measured on."""

    name: str
    cpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Subject:
    """What was analysed.

    Attributes:
        command: the user's words.
        function: name of the input function.
        source: where it is defined, "file:line".
        framework: whose pipeline it returns.
        batch_size: samples of a batch.
        components: tensors of a batch in streaming order.
        epoch_samples: samples of one epoch of one task, those of a smaller last batch too; None where they
            cannot be counted.
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
    """The fitted model of the rate of one node, see `input_analyzer.rate_model`; its formula and error.

    Attributes:
        formula: for a reader, with the fitted numbers.
        relative_error: root mean square of the relative distance from the measurements.
        curves: by CPUs per task, points (tasks, samples per second) of the fitted curve.
        files: that workers share out whole; None where they do not.
    """

    formula: str
    relative_error: float
    curves: dict[int, tuple[tuple[int, float], ...]]
    files: int | None = None


@dataclass(frozen=True)
class Analysis:
    """All that a report says.

    Attributes:
        available_nodes: nodes that a layout may have.
        stages: in pipeline order.
        unaccounted_cpu_us_per_sample: CPU time of a copy that is that of no stage, microseconds; None where
            it is not known.
        bottleneck: None where the stages were not timed.
        measurements: in the order in which they were made.
        predictions: of all layouts that were considered.
        input_bound: the training will wait for input even with the recommended layout; None without a target.
        gain_together: measured of all changes that were tried out; None where these were not several.
        notes: what a reader must know about this analysis, one sentence each.
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
    gain_together: Gain | None = None
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    unaccounted_cpu_us_per_sample: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON value of `--json FILE`; every number in full."""
        return {
            "format_version": RECOMMENDATION_VERSION,
            "recommendation": _flat(asdict(self.recommendation)),
            "target_samples_per_s": None if self.target is None else self.target.samples_per_s,
            "target_origin": None if self.target is None else self.target.origin,
            "input_bound": self.input_bound,
            "bottleneck": None if self.bottleneck is None else asdict(self.bottleneck),
            "stages": [asdict(stage) for stage in self.stages],
            "unaccounted_cpu_us_per_sample": self.unaccounted_cpu_us_per_sample,
            "findings": [asdict(finding) for finding in self.findings],
            "gain_together": None if self.gain_together is None else asdict(self.gain_together),
            "measurements": [asdict(measurement) for measurement in self.measurements],
            "predictions": [_flat(asdict(prediction)) for prediction in self.predictions],
            "model": {"formula": self.model.formula, "relative_error": self.model.relative_error},
            "subject": asdict(self.subject),
            "node": asdict(self.node),
            "available_nodes": self.available_nodes,
            "notes": list(self.notes),
            "elapsed_s": self.elapsed_s,
        }


def _flat(value: dict[str, Any]) -> dict[str, Any]:
    """With the members of its layout among its own."""
    return {**value.pop("layout"), **value}
