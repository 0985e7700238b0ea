"""The configuration of a run: once for a process, before the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cs_toolkit.step import Precision
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
    precision: Precision = "float32"


_configured: list[Configuration] = []


def configure(
    model_dir: str | Path = "./",
    compile_dir: str | Path | None = None,
    compile_only: bool = False,
    validate_only: bool = False,
    checkpoint_steps: int = 0,
    seed: int | None = None,
    mgmt_address: str | None = None,
    num_csx: int = 1,
    num_workers_per_csx: int = 1,
    **appliance: Any,
) -> None:
    """Configures the run. Call it before the model is made, once in a process.

    Args:
        model_dir: Where summaries go.
        compile_dir: Where compile artifacts go; `model_dir` when None.
        compile_only: Compile the first step, and run nothing.
        validate_only: Trace the first step and check that it can be compiled.
        checkpoint_steps: The state can be read after every so many steps, beside the first and the last.
        seed: Of `torch.manual_seed` and of random operations on the system.
        mgmt_address: IP:PORT of the CS system; the environment's CS_IP when None.
        num_csx: Number of CS systems; 1.
        num_workers_per_csx: Workers that stream the input; set by the launcher in a job of several tasks.
        appliance: Settings of the original's appliance that have no meaning here: `max_wgt_servers`,
            `mount_dirs`, `python_paths`, `transfer_processes`, `job_labels`, `max_act_per_csx`,
            `credentials_path`, `debug_args`, `execution_strategy`, `job_time_sec`, `disable_version_check`.

    Raises:
        ConfigureError: called twice, or a setting is unknown or cannot be.
    """
    if _configured:
        raise ConfigureError(
            "configure() is called twice, expected once: a process has one configuration; start another "
            "process for a run with another one"
        )
    _require_known(appliance)
    if compile_only and validate_only:
        raise ConfigureError("compile_only and validate_only are both True, expected at most one of them")
    for name, value in (("num_csx", num_csx), ("num_workers_per_csx", num_workers_per_csx)):
        if value != 1:
            raise ConfigureError(f"{name} is {value}, expected 1: more than one is not there yet")
    if checkpoint_steps < 0:
        raise ConfigureError(f"checkpoint_steps is {checkpoint_steps}, expected 0 or more")
    _configured.append(
        Configuration(
            Path(model_dir),
            None if compile_dir is None else Path(compile_dir),
            compile_only,
            validate_only,
            checkpoint_steps,
            seed,
            mgmt_address,
        )
    )
    if seed is not None:
        import torch

        torch.manual_seed(seed)


def configuration() -> Configuration:
    """The configuration of this process; that without arguments where `configure` was not called."""
    return _configured[0] if _configured else Configuration(Path("./"))


_APPLIANCE: Sequence[str] = (
    "max_wgt_servers",
    "mount_dirs",
    "python_paths",
    "transfer_processes",
    "job_labels",
    "max_act_per_csx",
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
            "validate_only, checkpoint_steps, seed, mgmt_address, num_csx, num_workers_per_csx, or settings "
            f"of the appliance, which have no effect: {', '.join(_APPLIANCE)}"
        )
