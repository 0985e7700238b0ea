"""Options, stages and result of a compile, for all modes of execution."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from cgc.cirh.interface import step_mode
from cgc.cirh.module import verify_module
from cgc.manifest import (
    PROVENANCE,
    REPORT_HTML,
    REPORT_JSON,
    REPORT_TEXT,
    Estimates,
    ExecutableEntry,
    Interface,
    Provenance,
    executable_file,
)
from cgc.passes import DEFAULT_PIPELINE, precision_pipeline
from cs_toolkit.execution_options import Streaming
from cs_toolkit.step import ExecutionChoice, Precision

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from cgc.cirh.op_table import OpTable
    from cgc.report import CompileReport
    from cs_toolkit.step import StepInterface

# Stages of every compile: rewriting the graph at its start, writing the artifact at its end.
COMMON_STAGES = 2

# (stage that begins, its number from 1, stages in all as far as known); called once more at the end, with the
# number of the last stage.
Progress = Callable[[str, int, int], None]


class CompileOptions(BaseModel):
    """Choices of the user; a part of the artifact's key.

    Attributes:
        passes: the rewrites and their options, in the syntax of `cgc.passes.pipeline`.
        precision: format of activations and their gradients; with 16 bits the rest remains float32.
        execution: how the CS system executes the step; auto is pipelined if the step fits the wafer, else
            weight streaming.
        replicas: copies of the model on the wafer that share the samples of a step, pipelined; auto is the
            number with the best predicted rate.
        streaming: options of weight streaming.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    passes: str = DEFAULT_PIPELINE
    precision: Precision = "float32"
    execution: ExecutionChoice = "pipelined"
    replicas: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    streaming: Streaming = Streaming()

    @property
    def pipeline(self) -> str:
        """All rewrites of a compile, including those of the precision."""
        return ",".join(filter(None, (self.passes, precision_pipeline(self.precision))))


class Stages:
    """Counts the stages of a compile and reports them."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._begun = 0
        self._progress = progress

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count and announce a stage."""
        self._begun += 1
        self._report(name)
        yield

    def expect(self, more: int) -> None:
        """Correct the number of stages that are still to come."""
        self._total = self._begun + more

    def finish(self) -> None:
        """Announce the end."""
        self._report("Completed")

    def _report(self, name: str) -> None:
        if self._progress is not None:
            self._progress(name, self._begun, self._total)


def rewrite_step(module: ModuleOp, scanned: OpTable | None, pipeline: str, stages: Stages) -> ModuleOp:
    """Return a checked and rewritten copy of a module; one stage.

    Args:
        module: the step; it is not changed.
        scanned: the same as integers (`cgc.cirh.op_table`).
        pipeline: the rewrites.
        stages: of the compile.

    Raises:
        CompileError: the module is invalid.
    """
    from cgc.passes.pipeline import should_verify
    from cgc.repeats.rewrite import rewrite

    with stages.stage("Rewriting the graph"):
        # Ops verify themselves when they are created and when they are parsed.
        if should_verify():
            verify_module(module)
        step_mode(module)
        return rewrite(module, scanned, pipeline)


@dataclass(frozen=True)
class Part:
    """One executable.

    Attributes:
        name: unique in the step.
        interface: its arguments and results.
        data: its bytes.
    """

    name: str
    interface: StepInterface
    data: bytes


@dataclass(frozen=True)
class Compiled:
    """A compiled step: the content of an artifact.

    Attributes:
        batch_size: samples of a step.
        parts: the executables, in the order that the mode of execution requires.
        texts: all other files by name, except the reports.
        estimates: for the manifest.
        report: the estimates as objects.
    """

    batch_size: int
    parts: tuple[Part, ...]
    texts: dict[str, str]
    estimates: Estimates
    report: CompileReport

    def files(self, made: Provenance) -> dict[str, bytes]:
        """Return every file of the artifact but its manifest.

        Args:
            made: provenance, for the human-readable reports and a separate file; no other file depends on it.
        """
        from cgc.report import build_json, render_html, render_text  # lazy: a cached compile has no report

        texts = {
            **self.texts,
            REPORT_JSON: json.dumps(build_json(self.report), indent=1) + "\n",
            REPORT_TEXT: render_text(self.report, made),
            REPORT_HTML: render_html(self.report, made),
        }
        if made != Provenance():
            texts[PROVENANCE] = json.dumps(made.to_json(), indent=1) + "\n"
        encoded = {name: text.encode() for name, text in texts.items()}
        return encoded | {executable_file(part.name): part.data for part in self.parts}

    def entries(self) -> list[ExecutableEntry]:
        """Return the executables as the manifest lists them."""
        return [
            ExecutableEntry(name=part.name, interface=Interface.from_step(part.interface))
            for part in self.parts
        ]
