"""The configuration of a run, and the kinds of backends."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, SupportsIndex

from cs_toolkit.execution_options import OPTIONS, ExecutionOptions, OptionError, configure_default_of
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


def default_options() -> ExecutionOptions:
    """Return the options of a program that sets none."""
    return ExecutionOptions().change({name: configure_default_of(name) for name in OPTIONS})


@dataclass(frozen=True)
class Configuration:
    """The settings of a run, which `cstorch.configure` and `cstorch.backend` describe.

    Attributes:
        options: How the CS system executes the steps.
        use_cs_grad_accum: False ignores a micro-batch size.
        run_dir: Directory for the files of a run; None for `model_dir`.
    """

    model_dir: Path
    compile_dir: Path | None = None
    compile_only: bool = False
    validate_only: bool = False
    checkpoint_steps: int = 0
    seed: int | None = None
    mgmt_address: str | None = None
    num_workers_per_csx: int = 1
    fabric: str = "cs2"
    options: ExecutionOptions = field(default_factory=default_options)
    use_cs_grad_accum: bool = True
    run_dir: Path | None = None

    def __post_init__(self) -> None:
        for name in ("checkpoint_steps", "num_workers_per_csx", "seed"):
            value = getattr(self, name)
            if not isinstance(value, SupportsIndex | None):
                raise ConfigureError(f"{name} is {value!r}, expected a whole number; write {name}=1, say")
        if not isinstance(self.mgmt_address, str | None):
            raise ConfigureError(f"mgmt_address is {self.mgmt_address!r}, expected 'IP:PORT'")
        if self.compile_only and self.validate_only:
            raise ConfigureError("compile_only and validate_only are both True, expected at most one of them")
        if self.num_workers_per_csx < 1:
            raise ConfigureError(f"num_workers_per_csx is {self.num_workers_per_csx}, expected 1 or more")
        if self.checkpoint_steps < 0:
            raise ConfigureError(f"checkpoint_steps is {self.checkpoint_steps}, expected 0 or more")

    def change(self, settings: Mapping[str, Any]) -> Configuration:
        """Return this configuration with some settings changed, and options of the execution, by name.

        Raises:
            ConfigureError: A setting is invalid, or options exclude each other.
        """
        options = {name: value for name, value in settings.items() if name in OPTIONS}
        others = {name: value for name, value in settings.items() if name not in OPTIONS}
        changed = replace(self, **others)
        if not changed.use_cs_grad_accum:
            options.pop("micro_batch_size", None)
        try:
            changed = replace(changed, options=changed.options.change(options))
            changed.options.check()
        except OptionError as error:
            raise ConfigureError(str(error)) from None
        return changed


def micro_batch_size_of(given: Any) -> int | None:
    """Return the micro-batch size that a program gives; None leaves the choice to the compiler."""
    # Programs of the original also give "auto", "explore" and ranges of sizes.
    return given if isinstance(given, int) else None
