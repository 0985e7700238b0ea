"""What a worker's process loads."""

from __future__ import annotations

import subprocess
import sys


def test_workers_load_no_compiler() -> None:
    """Nor anything else that takes long to import and that only a chief needs."""
    program = (
        "import cs_runtime.worker, estimator.cli, estimator.front_end, estimator.on_cs, sys\n"
        "import estimator.keras_front_end\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"cs_runtime", "cs_stream", "cs_system"} <= loaded
    assert not {"cgc", "pydantic", "xdsl"} & loaded
