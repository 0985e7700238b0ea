"""The configuration of a run, and the kinds of backends."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, SupportsIndex

from cs_runtime.errors import suggestion
from cs_runtime.options import default_execution
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
from cstorch.errors import ConfigureError

MbsSetting = Literal["auto", "explore"] | int | dict[str, Any] | None
"""A micro-batch size as programs give it, see `micro_batch_size_of`."""


class BackendType(enum.Enum):
    """Kinds of backends; programs may also give their names."""

    CSX = "CSX"
    CPU = "CPU"
    GPU = "GPU"

    @staticmethod
    def from_str(backend_type: str) -> BackendType:
        """Return the kind of a name in capital or small letters.

        Raises:
            ValueError: There is no such kind.
        """
        name = backend_type.upper()
        if name not in BackendType.__members__:
            raise ValueError(f"backend_type is {backend_type!r}, expected CSX, CPU or GPU")
        return BackendType[name]

    @property
    def is_csx(self) -> bool:
        """True for a CS system."""
        return self is BackendType.CSX

    @property
    def is_cpu(self) -> bool:
        """True for this CPU."""
        return self is BackendType.CPU

    @property
    def is_gpu(self) -> bool:
        """True for a GPU."""
        return self is BackendType.GPU


@dataclass(frozen=True)
class Configuration:
    """The settings of a run, which `cstorch.configure` and `cstorch.backend` describe.

    Attributes:
        use_cs_grad_accum: False ignores `micro_batch_size`.
        run_dir: Directory for the files of a run; None for `model_dir`.
    """

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
    run_dir: Path | None = None

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
        """Return the settings of weight streaming.

        Raises:
            ValueError: A setting is invalid.
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


def micro_batch_size_of(given: Any) -> int | None:
    """Return the micro-batch size that a program gives; None leaves the choice to the compiler."""
    # Programs of the original also give "auto", "explore" and ranges of sizes.
    return given if isinstance(given, int) else None
