"""The configuration of a run: once for a process, before the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, SupportsIndex

from cs_runtime.errors import suggestion
from cs_runtime.options import DEFAULT_COMPILE_DIR, default_execution, local_compile_dir
from cs_toolkit.execution_options import (
    Recompute,
    ReplicaChoice,
    ReplicaChoiceError,
    Streaming,
    check_replicas,
    replica_choice,
    streaming,
)
from cs_toolkit.step import EXECUTION_CHOICES, ExecutionChoice
from cstorch.compatibility import announce_unused
from cstorch.errors import ConfigureError


@dataclass(frozen=True)
class Configuration:
    """See `configure`."""

    model_dir: Path
    compile_dir: Path | None = None
    compile_only: bool = False
    validate_only: bool = False
    checkpoint_steps: int = 0
    seed: int | None = None
    mgmt_address: str | None = None
    num_csx: int = 1
    num_workers_per_csx: int = 1
    max_wgt_servers: int | None = 24
    fabric: str = "cs2"
    execution: ExecutionChoice = field(default_factory=default_execution)
    num_replicas: ReplicaChoice = 1
    max_act_per_csx: float | str | None = 1
    recompute: Recompute | None = None
    micro_batch_size: int | str | None = None
    use_cs_grad_accum: bool = True
    """Whether `micro_batch_size` counts."""
    run_dir: Path | None = None
    """Where the files of a run go; `model_dir` when None."""

    def __post_init__(self) -> None:
        for name in ("checkpoint_steps", "num_csx", "num_workers_per_csx", "max_wgt_servers", "seed"):
            value = getattr(self, name)
            if not isinstance(value, SupportsIndex | None):
                raise ConfigureError(f"{name} is {value!r}, expected a whole number; write {name}=1, say")
        if not isinstance(self.mgmt_address, str | None):
            raise ConfigureError(f"mgmt_address is {self.mgmt_address!r}, expected 'IP:PORT'")
        if self.compile_only and self.validate_only:
            raise ConfigureError("compile_only and validate_only are both True, expected at most one of them")
        if self.execution not in EXECUTION_CHOICES:
            near = suggestion(str(self.execution), EXECUTION_CHOICES)
            raise ConfigureError(
                f"execution is {self.execution!r}, expected one of {', '.join(EXECUTION_CHOICES)}{near}"
            )
        try:
            self.streaming()
        except ValueError as error:
            raise ConfigureError(str(error)) from None
        if self.num_csx > 1 and self.execution == "pipelined":
            raise ConfigureError(
                f"num_csx is {self.num_csx} with execution {self.execution!r}, expected 1: several CS "
                "systems share a batch by weight streaming; say execution='weight_streaming', or nothing"
            )
        _check_replicas(self)
        if self.max_wgt_servers is not None and self.max_wgt_servers < 1:
            raise ConfigureError(f"max_wgt_servers is {self.max_wgt_servers}, expected 1 or more")
        if self.num_workers_per_csx < 1:
            raise ConfigureError(f"num_workers_per_csx is {self.num_workers_per_csx}, expected 1 or more")
        if self.checkpoint_steps < 0:
            raise ConfigureError(f"checkpoint_steps is {self.checkpoint_steps}, expected 0 or more")

    def streaming(self) -> Streaming:
        """What holds where weights stream.

        Raises:
            ValueError: a setting cannot be.
        """
        return streaming(
            num_csx=int(self.num_csx),
            max_act_per_csx=self.max_act_per_csx,
            recompute=self.recompute,
            micro_batch_size=self.micro_batch_size if self.use_cs_grad_accum else None,
        )


def _check_replicas(configuration: Configuration) -> None:
    try:
        choice = replica_choice(configuration.num_replicas)
        check_replicas(choice, configuration.execution, configuration.num_csx, None)
    except ReplicaChoiceError as error:
        raise ConfigureError(str(error)) from None


_configured: list[Configuration] = []


def configure(
    model_dir: str | Path | None = "./",
    compile_dir: str | Path | None = DEFAULT_COMPILE_DIR,
    compile_only: bool | None = False,
    validate_only: bool | None = False,
    checkpoint_steps: int | None = 0,
    seed: int | None = None,
    mgmt_address: str | None = None,
    num_csx: int | None = 1,
    num_workers_per_csx: int | None = 1,
    max_wgt_servers: int | None = 24,
    mount_dirs: Sequence[str] | None = None,
    python_paths: Sequence[str] | None = None,
    transfer_processes: int | None = 5,
    job_labels: Sequence[str] | None = None,
    max_act_per_csx: float | str | None = 1,
    execution: ExecutionChoice | None = None,
    num_replicas: ReplicaChoice | None = 1,
    recompute: Recompute | None = None,
    micro_batch_size: int | str | None = None,
    **appliance: Any,
) -> None:
    """Configures the run. Call it before the model is made, once in a process.

    None stands for the default of each setting: programs pass what their command line left open.

    Args:
        model_dir: Where summaries go.
        compile_dir: Where compile artifacts go; `model_dir` when None, or where it cannot be made here.
        compile_only: Compile the first step, and run nothing.
        validate_only: Trace the first step and check that it can be compiled.
        checkpoint_steps: The state can be read after every so many steps, beside the first and the last.
        seed: Of `torch.manual_seed` and of random operations on the system.
        mgmt_address: IP:PORT of the CS system; the environment's CS_IP when None.
        num_csx: CS systems of a group that share a batch by weight streaming.
        num_workers_per_csx: Workers that stream the input; the launcher's where that has started workers. 0
            leaves the choice to the toolkit: 1.
        max_wgt_servers: MemoryX processes of the system that may share out the layers, with weight streaming.
        mount_dirs: Of the original's appliance, without effect, as the log says; so are the following ones.
        python_paths: Tasks have the PYTHONPATH of the program.
        transfer_processes: The state travels in one stream.
        job_labels: KEY=VALUE of the job.
        max_act_per_csx: With weight streaming, bytes of activations that may wait in one system, or a text
            such as "16 GB"; None for what the wafer has room for. A number below 1,000 is one of activation
            servers, as programs of the original stack give it, and sets no limit.
        execution: How the CS system executes a step: "pipelined", all layers at once; "weight_streaming", one
            after the other with weights from MemoryX; "auto", pipelined where the model fits the wafer, else
            "weight_streaming". When None, "weight_streaming" under `python-ws`, else "auto".
        num_replicas: Copies of the model on one wafer that share a batch, pipelined: a number that divides
            the batch, or "auto" for the one with the best predicted rate.
        recompute: With weight streaming, which layers compute their forward part again in the backward pass
            instead of keeping it: "auto", as few as let the activations fit; "none"; "all".
        micro_batch_size: With weight streaming, samples of a system that go through the layers together in a
            training; their gradients are added up. "auto" or None: as many as let the activations fit.
        appliance: Of the original's appliance and without effect: `credentials_path`, `debug_args`,
            `execution_strategy`, `job_time_sec`, `disable_version_check`.

    Raises:
        ConfigureError: called twice, or a setting is unknown or cannot be.
    """
    _require_known(appliance)
    without_effect = (mount_dirs, python_paths, transfer_processes, job_labels)
    given = dict(zip(_WITHOUT_EFFECT, without_effect, strict=True)) | appliance
    announce_unused("configure()", given, {"transfer_processes": 5})
    set_configuration(
        Configuration(
            Path("./" if model_dir is None else model_dir),
            local_compile_dir(compile_dir),
            bool(compile_only),
            bool(validate_only),
            checkpoint_steps or 0,
            seed,
            mgmt_address,
            1 if num_csx is None else num_csx,
            num_workers_per_csx or 1,
            24 if max_wgt_servers is None else max_wgt_servers,
            execution=execution or default_execution(),
            num_replicas=1 if num_replicas is None else num_replicas,
            max_act_per_csx=max_act_per_csx,
            recompute=recompute,
            micro_batch_size=micro_batch_size,
        ),
        "configure()",
    )


MbsSetting = Literal["auto", "explore"] | int | dict[str, Any] | None
"""How programs choose the size of a micro batch, see `micro_batch_size_of`."""


def micro_batch_size_of(given: Any) -> int | None:
    """A micro-batch size as programs of the original give it: "auto", "explore" and ranges of sizes stand for
    the compiler's choice.
    """
    return given if isinstance(given, int) else None


def set_configuration(configuration: Configuration, caller: str, start_system: bool = True) -> None:
    """Configures this process, once. A worker ends here, when it has served the chief's runs.

    See `keep_configuration`.

    Args:
        configuration: All of it.
        caller: What the program has called, for messages.
        start_system: A simulated system may be started now, where none is named.
    """
    keep_configuration(configuration, caller)
    from cstorch.start import start_process  # late: it needs the configuration

    start_process(start_system)


def keep_configuration(configuration: Configuration, caller: str) -> None:
    """Configures this process, once.

    Args:
        configuration: All of it.
        caller: What the program has called, for messages.

    Raises:
        ConfigureError: the process is configured already, or a setting cannot be.
    """
    if _configured:
        raise ConfigureError(
            f"{caller} is called twice, expected once: a process has one configuration; start another "
            "process for a run with another one"
        )
    _configured.append(configuration)
    if configuration.seed is not None:
        import torch

        torch.manual_seed(configuration.seed)


def configuration() -> Configuration:
    """The configuration of this process; that without arguments where it was not configured."""
    return _configured[0] if _configured else Configuration(Path("./"))


def change_configuration(**settings: Any) -> None:
    """Changes settings of a configured process that programs tell later than the others."""
    _configured[:] = [replace(configuration(), **settings)]


def is_configured() -> bool:
    """Whether this process was configured."""
    return bool(_configured)


@contextmanager
def adjusted(**changes: Any) -> Iterator[None]:
    """In the body some settings are other ones, as a `DataExecutor` says them for its own loop.

    Args:
        changes: Fields of `Configuration`.
    """
    before = list(_configured)
    change_configuration(**changes)
    try:
        yield
    finally:
        _configured[:] = before


_WITHOUT_EFFECT = (
    "mount_dirs",
    "python_paths",
    "transfer_processes",
    "job_labels",
)
_APPLIANCE: Sequence[str] = (
    "credentials_path",
    "debug_args",
    "execution_strategy",
    "job_time_sec",
    "disable_version_check",
)


def _require_known(appliance: dict[str, Any]) -> None:
    unknown = sorted(set(appliance) - set(_APPLIANCE))
    if unknown:
        raise ConfigureError(
            f"configure() got {', '.join(unknown)}, expected model_dir, compile_dir, compile_only, "
            "validate_only, checkpoint_steps, seed, mgmt_address, num_csx, num_workers_per_csx, execution, "
            "num_replicas, max_act_per_csx, recompute, micro_batch_size, "
            f"or what has no effect, of the appliance: {', '.join((*_WITHOUT_EFFECT, *_APPLIANCE))}"
        )
