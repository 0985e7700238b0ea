"""The end of a command that srun runs, where Slurm or the command misbehaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
SRUN = """#!/usr/bin/python3
import os, signal, sys, time
def got(signum, frame):
    os.write(1, f"srun got {signum:d}\\n".encode())  # print() may be at work already
    if signum == signal.SIGTERM:
        sys.exit(137)
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, got)
print("ready", flush=True)
while True:
    time.sleep(1)
"""
ATTEND = """
import os, sys
from csrun.schedulers.slurm.program import run_srun
sys.exit(run_srun(("srun",), dict(os.environ), "mine", terminal=False, limit_s=0.2))
"""
STEP = "#!/bin/sh\nprintf '7.0\\037other\\n7.1\\037mine\\n'\n"
TELL = '#!/bin/sh\necho "$*" > told\n'
FAILS = "#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n"


@pytest.mark.parametrize(
    ("squeue", "scancel", "signum", "said"),
    [
        # One that hangs while it tidies up is killed after its time.
        (STEP, FAILS, signal.SIGINT, ["srun got 2", "srun got 15"]),
        (STEP, TELL, signal.SIGHUP, ["srun got 15"]),
        # Nobody can be notified: srun kills.
        (FAILS, "", signal.SIGTERM, ["srun got 15"]),
        (STEP, FAILS, signal.SIGHUP, ["srun got 15"]),
        # A step that begins meanwhile.
        (
            "#!/bin/sh\n[ -e asked ] && exec ./step; touch asked\n",
            TELL,
            signal.SIGHUP,
            ["srun got 2", "srun got 15"],
        ),
        # srun tells without the controller.
        (FAILS, "", signal.SIGINT, ["srun got 2", "srun got 15"]),
    ],
)
def test_tasks_that_do_not_end_are_killed(
    tmp_path: Path, squeue: str, scancel: str, signum: signal.Signals, said: list[str]
) -> None:
    for name, text in (("srun", SRUN), ("step", STEP), ("squeue", squeue), ("scancel", scancel)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ATTEND]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signum)
        shown = process.stdout.read().splitlines()
        assert process.wait(30) == 128 + signum
    assert shown == said
    if scancel is TELL:
        assert (tmp_path / "told").read_text() == "--signal=1 7.1\n"
