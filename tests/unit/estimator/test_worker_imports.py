"""What a worker's process loads."""

from __future__ import annotations

import subprocess
import sys


def test_workers_load_no_compiler() -> None:
    """Everything that a worker calls is imported without what only a chief needs and takes long to import."""
    program = (
        "import cs_runtime.worker, estimator.cli, estimator.front_end, estimator.on_cs, sys\n"
        "import estimator.keras_front_end\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"cs_runtime", "cs_stream", "cs_system"} <= loaded
    assert not {"cgc", "pydantic", "xdsl"} & loaded
