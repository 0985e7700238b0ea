"""What `runconfig` of a parameter file says, checked."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cs_runtime.errors import CallError, suggestion
from cs_runtime.options import default_execution
from cs_toolkit.replicas import (
    AUTO,
    ReplicaChoice,
    ReplicaChoiceError,
    check_replicas,
    replica_choice,
)
from cs_toolkit.step import EXECUTION_CHOICES, ExecutionChoice
from cs_toolkit.streaming import Recompute, streaming

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class RunConfig:
    """How long to run, and what to leave behind.

    Attributes:
        model_dir: where results go.
        log_steps: a log line, and summaries, behind every so many steps; 0 for the last one alone.
        num_epochs: epochs to train; not together with `num_steps`.
        num_steps: steps to train.
        max_steps: global step to end at; needed where neither of the two is given.
        steps_per_epoch: steps of an epoch; all batches of the loader when None.
        eval_steps: steps of an evaluation; all batches of the loader when None.
        checkpoint_steps: a checkpoint behind every so many steps, and the last one; 0 for none at all.
        save_initial_checkpoint: one before the first step, too.
        save_losses: leaves `losses.json` with the losses that were logged.
        check_loss_values: a loss that is NaN or infinite ends the training.
        checkpoint_path: checkpoint to start with; the newest one of `model_dir` when None.
        is_pretrained_checkpoint: takes the weights of `checkpoint_path` and begins at step 0.
        save_stream_size: the first so many batches of the input are kept, in `stream` below `model_dir`.
        num_replicas: copies of the model on one wafer that share a batch: a number that divides the batch, or
            "auto" (also -1) for the one with the best predicted rate.
        fabric_config_file: YAML file of the fabric to compile for.
        seed: of weights, input and random operations.
        logging: level of the chief's log.
        streamer_logging: level of the workers' logs.
        service_dir: where files of the run go; `model_dir` when None.
        compile_dir: where artifacts go; `service_dir` when None.
        cs_ip: address of the CS system; this CPU without it.
        compile_only: compile, and stop.
        validate_only: check that the model compiles, and stop.
        mode: "train", "eval" or "train_and_eval".
        enable_summaries: refused on the CS system.
        grad_accum_steps: steps whose gradients are added up; 1 on the CS system.
        appliance: refused.
        multireplica: "auto" where `num_replicas` says nothing.
        execution: "auto", "pipelined" or "weight_streaming", see `cstorch.configure`.
        num_csx: CS systems of a group that share a batch.
        max_act_per_csx: limit of the activations that wait in each, see `cstorch.configure`.
        recompute: "auto", "none" or "all", see `cstorch.configure`.
        micro_batch_size: samples of a system that go through the layers together, see `cstorch.configure`.
        max_wgt_servers: MemoryX processes of the system that may share out the layers.
    """

    model_dir: Path
    log_steps: int
    num_epochs: int | None = None
    num_steps: int | None = None
    max_steps: int | None = None
    steps_per_epoch: int | None = None
    eval_steps: int | None = None
    checkpoint_steps: int = 0
    save_initial_checkpoint: bool = False
    save_losses: bool = False
    check_loss_values: bool = True
    checkpoint_path: str | None = None
    is_pretrained_checkpoint: bool = False
    save_stream_size: int = 0
    num_replicas: ReplicaChoice | None = None
    fabric_config_file: str | None = None
    seed: int | None = None
    logging: str = "info"
    streamer_logging: str = "error"
    service_dir: str | None = None
    compile_dir: str | None = None
    cs_ip: str | None = None
    compile_only: bool = False
    validate_only: bool = False
    mode: str = "train"
    enable_summaries: bool = False
    grad_accum_steps: int = 1
    appliance: bool = False
    multireplica: bool = False
    execution: ExecutionChoice | None = None
    num_csx: int = 1
    max_act_per_csx: float | str | None = None
    recompute: Recompute | None = None
    micro_batch_size: int | str | None = None
    max_wgt_servers: int | None = None

    def streaming_fields(self) -> dict[str, Any]:
        """What holds where weights stream, as `cstorch.configure` takes it."""
        return {
            "num_csx": self.num_csx,
            "max_act_per_csx": self.max_act_per_csx,
            "recompute": self.recompute,
            "micro_batch_size": self.micro_batch_size,
        }

    @property
    def on_cs(self) -> bool:
        """Whether a CS system is used, or compiled for."""
        return self.cs_ip is not None or self.only_compiled

    @property
    def only_compiled(self) -> bool:
        """Whether nothing runs."""
        return self.compile_only or self.validate_only

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> RunConfig:
        """Reads `runconfig`.

        Raises:
            CallError: a key is unknown or missing, or values contradict each other.
        """
        given = dict(params.get("runconfig", {}))
        known = [field.name for field in fields(cls)]
        for name in sorted(given.keys() - set(known)):
            raise CallError(
                f"runconfig has '{name}', expected {', '.join(known)}{suggestion(name, known)}; correct or "
                "remove it"
            )
        if given.get("log_steps") is None:
            raise CallError(
                "runconfig has no log_steps, expected a number of steps; 0 logs the last one alone"
            )
        given["model_dir"] = Path(given.get("model_dir") or "model_dir")
        made = cls(**{name: value for name, value in given.items() if value is not None})
        made._check_numbers()
        made._check_steps()
        made._check_place()
        return made

    def total_steps(self, first_step: int, epoch_steps: int) -> int:
        """Steps to train from a global step on.

        Args:
            first_step: global step of the checkpoint.
            epoch_steps: batches of the loader.

        Raises:
            StepsReachedError: none is left.
        """
        if self.max_steps is not None and first_step >= self.max_steps:
            raise StepsReachedError(
                f"global step {first_step} has reached max_steps {self.max_steps}, expected fewer: raise "
                "max_steps, or train into another model_dir"
            )
        wanted = self.num_steps
        if self.num_epochs is not None:
            wanted = self.num_epochs * (self.steps_per_epoch or epoch_steps)
        left = None if self.max_steps is None else self.max_steps - first_step
        return min(steps for steps in (wanted, left) if steps is not None)

    def _check_numbers(self) -> None:
        positive = (
            "num_epochs",
            "num_steps",
            "max_steps",
            "steps_per_epoch",
            "eval_steps",
            "grad_accum_steps",
            "max_wgt_servers",
        )
        limits = {**dict.fromkeys(positive, 1), **dict.fromkeys(_COUNTS, 0)}
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise CallError(f"runconfig: {name} is {value!r}, expected a whole number of {least} or more")
        try:
            streaming(**self.streaming_fields())
        except ValueError as error:
            raise CallError(f"runconfig: {error}") from None
        for name in ("logging", "streamer_logging"):
            if str(getattr(self, name)).lower() not in LOG_LEVELS:
                raise CallError(
                    f"runconfig: {name} is {getattr(self, name)!r}, expected one of {', '.join(LOG_LEVELS)}"
                )

    def _check_steps(self) -> None:
        if self.num_epochs is not None and self.num_steps is not None:
            raise CallError(
                f"runconfig: num_epochs is {self.num_epochs} and num_steps is {self.num_steps}, expected one "
                "of them; remove the other"
            )
        trains = self.mode != "eval" and not self.only_compiled
        if trains and self.num_epochs is None and self.num_steps is None and self.max_steps is None:
            raise CallError(
                "runconfig has neither num_epochs, num_steps nor max_steps, expected one of them: say how "
                "long to train"
            )

    @property
    def replicas(self) -> ReplicaChoice:
        """How many copies are wanted."""
        default = AUTO if self.multireplica else 1
        return default if self.num_replicas is None else replica_choice(self.num_replicas)

    def _check_place(self) -> None:
        if self.execution is not None and self.execution not in EXECUTION_CHOICES:
            raise CallError(
                f"runconfig: execution is {self.execution!r}, expected one of "
                f"{', '.join(EXECUTION_CHOICES)}{suggestion(self.execution, EXECUTION_CHOICES)}"
            )
        try:
            check_replicas(self.replicas, self.execution or default_execution(), self.num_csx, None)
        except ReplicaChoiceError as error:
            raise CallError(f"runconfig: {error}") from None
        if self.compile_only and self.validate_only:
            raise CallError("compile_only and validate_only are both given, expected one of them")
        if self.appliance:
            raise CallError(
                "--appliance is given, expected --cs_ip=IP:PORT: the system is reached by its address"
            )
        if not self.on_cs:
            return
        if self.grad_accum_steps != 1:
            raise CallError(
                f"grad_accum_steps is {self.grad_accum_steps} on the CS system, expected 1: choose the batch "
                "size, and micro_batch_size, instead"
            )
        if self.enable_summaries:
            raise CallError(
                "enable_summaries is set on the CS system, expected False: values come back at log_steps "
                "alone"
            )

    def log_level(self, *, streams_alone: bool) -> int:
        """Level of the log of this task."""
        name = self.streamer_logging if streams_alone else self.logging
        return int(getattr(logging, name.upper()))


_COUNTS = ("log_steps", "checkpoint_steps", "save_stream_size")


class StepsReachedError(CallError, RuntimeError):
    """There is nothing left to train; a RuntimeError, as programs expect."""
