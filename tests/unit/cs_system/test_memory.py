"""Limits of memory, kills for lack of it, and their messages; /proc and /sys of other machines."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cs_system.errors import EngineLostError
from cs_system.memory import MemoryUse, count_oom_kills, memory_limit


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MACHINE = {"proc/meminfo": "MemTotal:       1000 kB\n", "proc/vmstat": "oom_kill 3\noom_kill_x 9\n"}


@pytest.mark.parametrize(
    ("files", "limit", "kills"),
    [
        ({}, (0, ""), 0),
        (MACHINE, (1_024_000, "this machine"), 3),
        (
            {
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/step/memory.max": "max\n",
                "sys/fs/cgroup/job/step/memory.events": "low 0\noom 7\noom_kill 2\n",
                "sys/fs/cgroup/job/memory.max": "4096\n",
            },
            (4096, "its cgroup"),
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/of/the/host\n3:cpu:/x\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "8192\n",
                "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            },
            (8192, "its cgroup"),
            1,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            (1_024_000, "this machine"),
            3,
        ),
    ],
)
def test_limits_and_kills(files: dict[str, str], limit: tuple[int, str], kills: int, tmp_path: Path) -> None:
    write(tmp_path, {**MACHINE, **files} if files else {})
    assert memory_limit(tmp_path) == limit
    assert count_oom_kills(tmp_path) == kills


@pytest.mark.parametrize(
    ("memory", "text"),
    [
        (None, "(Killed) (the kernel does this when the machine or its cgroup is out of memory); the log"),
        (
            MemoryUse(0, 2_000_000_000, "this machine", False),
            "(Killed) (the kernel does this when the machine or its cgroup is out of memory); the log",
        ),
        (
            MemoryUse(1_500_000_000, 2_000_000_000, "this machine", False),
            "cgroup is out of memory; it used up to 1.50 GB, and this machine has 2.00 GB); the log",
        ),
        (
            MemoryUse(1_990_000_000, 2_000_000_000, "its cgroup", True),
            "(Killed) (by the kernel, for lack of memory; it used up to 1.99 GB, and its cgroup has 2.00 GB: "
            "choose a smaller batch, or give it more memory); the log",
        ),
    ],
)
def test_a_killed_process_is_described_with_its_memory(memory: MemoryUse | None, text: str) -> None:
    error = EngineLostError.ended("running the steps", -signal.SIGKILL, memory, has_state=True)
    assert text in str(error)
