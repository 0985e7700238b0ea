"""Entry point on the nodes: `python -I -S .../csrun/agent FOLDER MODULE:FUNCTION`.

FUNCTION, in a module below FOLDER, reads the place of the task from the environment
(`csrun.tasks.place.PlaceReader`).
"""

# -I and -S: variables and packages of the user must not change the agent, which needs no site-packages.

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).absolute().parents[2]))
    from cs_toolkit.garbage import leave_at_exit
    from csrun.agent.task import main

    leave_at_exit()
    sys.exit(main(sys.argv[1:]))
