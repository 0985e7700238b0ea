"""Programs that are forked from a process which has imported their framework, as if each were started."""

from __future__ import annotations

import atexit
import pkgutil
import runpy
import sys
import threading
from collections.abc import Collection
from importlib import import_module
from os import _exit


def load(*packages: str, without: Collection[str]) -> None:
    """Import all modules of packages, except those with one of these names in their path."""
    for name in packages:
        for module in pkgutil.walk_packages(import_module(name).__path__, f"{name}."):
            if not set(without) & set(module.name.split(".")):
                import_module(module.name)


def load_compiler(without: Collection[str]) -> None:
    """Import the compiler with its patterns, except for modules with one of these names."""
    import jax

    import cgc.placement.place
    from cgc.passes.fuse import STAGES, load_patterns

    assert jax
    cgc.placement.place._MOVES_PER_KERNEL = 4  # as `quick_placement` in the processes of pytest
    load("cgc", without=without)
    load_patterns([file for stage in STAGES for file in stage])


def run_program(script: str) -> int:
    """Run a script as a program and return its exit code; as in Python, messages go to stderr."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        if isinstance(error.code, int | None):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def run_exit_functions() -> None:
    """Do what Python does at its end, except for taking modules apart.

    They are shared with the process from which this one was forked: to touch them copies every page, 0.2 s of
    a CPU.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def end(code: int) -> None:
    """End this process."""
    run_exit_functions()
    _exit(code)
