"""Executables that LLVM's reader does not survive: `python -m tests.programs.steps.unreadable DIRECTORY`.

It changes one byte of a small executable at a time, reads the result in a child process, and writes one on
which the reader does not return to the file `hang`, and one on which it overflows its stack to `crash`.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

Damage = Literal["hang", "crash"]

ROOT = Path(__file__).parents[3]
CPU_S = 0.3  # for a read that takes 3 ms
ENDS: dict[Damage, signal.Signals] = {"hang": signal.SIGPROF, "crash": signal.SIGSEGV}


@cache
def unreadable_executables() -> dict[Damage, bytes]:
    """Return an executable on which the reader does not return, and one on which it crashes."""
    with TemporaryDirectory() as directory:
        subprocess.run([sys.executable, "-m", __name__, directory], cwd=ROOT, check=True, timeout=120)
        return {damage: (Path(directory) / damage).read_bytes() for damage in ("hang", "crash")}


def changes(module: bytes) -> Iterator[bytes]:
    """Yield modules with one other byte: references among their attributes then may form circles."""
    for at in range(module.index(b"\0") + 1, len(module)):
        for value in (1, 3, 7, 9):
            yield module[:at] + bytes([value]) + module[at + 1 :]


def ends_reader(module: bytes, cause: signal.Signals) -> bool:
    """Read a module in a child process; return True if a signal ends it."""
    from cs_system.engine.allowed_ops import RefusedOpError, _parse

    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        try:
            _parse(module)
        except RefusedOpError:
            pass
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -cause


def main() -> None:
    """Run the command line."""
    import jax
    import numpy as np
    from jax import export

    shape = jax.ShapeDtypeStruct((3,), np.float32)
    exported = export.export(jax.jit(lambda state, inputs: state + inputs))(shape, shape)
    executable, module = bytes(exported.serialize()), exported.mlir_module_serialized
    # Changes at the start make offsets wrong, those at the end properties of ops.
    found = {"hang": changes(module), "crash": reversed(list(changes(module)))}
    for damage, cause in ENDS.items():
        damaged = next(changed for changed in found[damage] if ends_reader(changed, cause))
        (Path(sys.argv[1]) / damage).write_bytes(executable.replace(module, damaged))


if __name__ == "__main__":
    main()
