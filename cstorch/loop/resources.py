"""Resources of a loop: a CS system, workers on this machine, and the lock of the directory."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from cs_runtime.destination import Destination, choose_destination, given_address, surrounding_address
from cs_runtime.embedded_system import EmbeddedSystem, log_name
from cs_runtime.training_lock import training_lock
from cstorch.chosen_backend import DEFAULT_ARTIFACT_DIR, current_backend
from cstorch.input.workers import LocalWorkers, job_directory
from cstorch.job import task
from cstorch.program import Program, configuration
from input_rules.input_export import export_requested


def lock_directory() -> AbstractContextManager[None]:
    """Lock the directory that the program has named for its runs, while it trains.

    Runs in the default directories have separate folders.

    Raises:
        ModelDirInUseError: Another process trains there.
    """
    backend = current_backend(raise_exception=False)
    directory = configuration().model_dir
    if backend is not None and backend.is_cpu:  # its directory is not in the configuration
        directory = Path(backend.artifact_dir)
    defaults = (Path("./"), Path(DEFAULT_ARTIFACT_DIR))
    return nullcontext() if directory in defaults or task().role == "worker" else training_lock(directory)


def start_workers() -> None:
    """Start the workers that the program wants, unless a launcher or an earlier call has."""
    number = configuration().num_workers_per_csx
    if number > 1 and task().num_tasks == 1 and _runs() and not export_requested():
        Program.current().local_workers = LocalWorkers(number, job_directory(task()), task())


def destination() -> Destination:
    """Return where the program runs."""
    return choose_destination(
        given_address(configuration().mgmt_address, "mgmt_address"),
        surrounding_address(),
        "backend 'CPU'" if Program.current().on_cpu else "",
        compiles=not _runs(),
    )


def start_system() -> None:
    """Start a simulated system for a program that runs and names none; return before it is ready."""
    if destination().kind == "embedded":
        _own_system(configuration().options.share.wafers)


def system_address() -> str | None:
    """Return the address of the CS system; None if the program is only compiled and names none."""
    place = destination()
    if place.kind != "embedded":
        return place.address
    return _own_system(configuration().options.share.wafers).address


def _runs() -> bool:
    config = configuration()
    return not (config.compile_only or config.validate_only)


def _own_system(wafers: int) -> EmbeddedSystem:
    """Return the simulated system of the program, which is started at the first call."""
    systems = Program.current().embedded_systems
    if wafers not in systems:
        system = systems[wafers] = EmbeddedSystem(configuration().model_dir / log_name(wafers), wafers)
        Program.current().cleanup.callback(system.end)
    return systems[wafers]
