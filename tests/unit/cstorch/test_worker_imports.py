"""Modules that a worker's process loads."""

from __future__ import annotations

import subprocess
import sys


def test_workers_load_no_compiler() -> None:
    """A worker runs the program up to where the step begins, so all that it imports is loaded."""
    program = (
        "import cerebras_pytorch, cerebras_torch, cstorch.v1.runner, sys\n"
        "import cstorch.loop.on_cs, cstorch.input.workers, cerebras_pytorch.experimental\n"
        "import cstorch.v1.session.utils.data\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"cs_runtime", "cs_stream", "cs_system", "cstorch"} <= loaded
    assert not {"cgc", "xdsl"} & loaded
