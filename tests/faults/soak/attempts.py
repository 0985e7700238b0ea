"""One start of the command of a case: its processes, the faults that strike it, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cs_toolkit.execution_options import EXECUTION_VARIABLE
from tests.processes import kill_processes, list_processes, wait_until
from tests.slurm.cluster import SlurmCluster
from tests.wall_clock import WallClock

from .cases import LAST_STEP, Case, Fault
from .site import Site

ROOT = Path(__file__).parents[3]
STEP_S = 0.02
LIMIT_S = 240.0
LEFT_LIMIT_S = 75.0  # a silent peer counts as lost after 60 s


class Attempt:
    """A running `csrun_wse`.

    Args:
        case: The case.
        site: The system.
        cluster: The nodes; None for processes of this machine.
        folder: The directory of the job, which later attempts share.
        workers: Number of workers.
        environment: More variables.
    """

    def __init__(
        self,
        case: Case,
        site: Site,
        cluster: SlurmCluster | None,
        folder: Path,
        workers: int,
        environment: dict[str, str],
    ) -> None:
        self._site, self._cluster, self._folder, self._workers = site, cluster, folder, workers
        value = uuid.uuid4().hex
        self._marker = f"TEST_MARKER={value}".encode()
        program = Path(__file__).with_name(f"{case.front_end}_training.py")
        layout = ["--total-nodes=1", f"--tasks-per-node={workers + 1}", "--cpus-per-task=1"]
        inherited = dict(os.environ)
        if cluster is not None:
            layout = ["--launcher=slurm", f"--total-nodes={workers + 1}", "--tasks-per-node=1"]
            inherited = {**cluster.environment, "GRES_RESOURCE": "cs:1"}
        command = [str(ROOT / "bin" / "csrun_wse"), *layout, f"--log-dir={folder / 'logs'}"]
        command += ["python", str(program), site.address, str(folder / "model_dir"), str(LAST_STEP)]
        self._output = folder / f"output-{value}.txt"
        self._started_s = time.monotonic()
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={
                    **inherited,
                    "TEST_MARKER": value,
                    "STEP_S": str(STEP_S),
                    "NUM_CSX": str(case.wafers),
                    EXECUTION_VARIABLE: case.execution,
                    "TMPDIR": str(folder / "tmp"),
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        """What it has written."""
        return self._output.read_text(errors="replace")

    def left(self) -> list[int]:
        """Return all processes of the job."""
        return list_processes(self._marker)

    def clean_up(self) -> None:
        """Kill what is left of it."""
        kill_processes(self.left)
        self.process.wait(10)

    def wait_for(self, fault: Fault) -> bool:
        """Wait for the moment of a fault; return False if the job ends before."""
        moment_s = self._started_s
        while fault.step is not None:
            if self.process.poll() is not None:
                return False
            self._check_limit()
            info = self._site.info()
            if info is not None and info.run is not None and info.run.step >= fault.step:
                moment_s = time.monotonic()
                break
            time.sleep(0.05)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, moment_s + fault.after_s - time.monotonic()))
        return self.process.poll() is None

    def end(self) -> int:
        """Wait for its end, and return its exit code."""
        while self.process.poll() is None:
            self._check_limit()
            time.sleep(0.05)
        return self.process.returncode

    def _check_limit(self) -> None:
        assert time.monotonic() - self._started_s < LIMIT_S, f"it does not end: {self.output[-6000:]}"

    def wait_until_gone(self) -> None:
        """Wait until no process of the job is left, on any node."""
        wait_until(self._is_gone, self._describe_left, LEFT_LIMIT_S)
        if self._cluster is not None:
            cluster = self._cluster
            wait_until(lambda: not cluster.jobs(), cluster.jobs, LEFT_LIMIT_S)
            cluster.start_killed_nodes()
            wait_until(lambda: {*cluster.states().values()} == {"idle"}, cluster.states, LEFT_LIMIT_S)

    def _is_gone(self) -> bool:
        time.sleep(0.1)  # it looks at all processes
        return not self.left()

    def _describe_left(self) -> list[str]:
        found = []
        for pid in self.left():
            with suppress(OSError):
                found.append(f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().split(bytes(1))}")
        return [*found, self.output[-3000:]]

    def strike(self, fault: Fault, clocks: dict[str, WallClock]) -> bool:
        """Do what a fault says as soon as its victim exists; return False if the job ends before."""
        while not self._strike_now(fault, clocks):
            if self.process.poll() is not None:
                return False
            self._check_limit()
            time.sleep(0.01)
        return True

    def _strike_now(self, fault: Fault, clocks: dict[str, WallClock]) -> bool:
        """Do what a fault says; return False if its victim does not exist now."""
        match fault.kind:
            case "kill" | "terminate":
                number = signal.SIGKILL if fault.kind == "kill" else signal.SIGTERM
                return self._send(fault, number)
            case "stop":
                return self._stop(fault)
            case "cut":
                return self._site.networks[fault.victim].cut()
            case "damage":
                self._site.networks[fault.victim].damage(fault.seed)
            case "fill":
                fill(self._folder if fault.victim == "job" else self._site.disk)
            case "clock":
                clocks[fault.victim].jump(fault.seconds)
        return True

    def _send(self, fault: Fault, number: int) -> bool:
        if fault.victim == "node":
            assert self._cluster is not None
            nodes = self._cluster.names[: self._workers + 1]
            self._cluster.kill_node(nodes[fault.worker % len(nodes)])
            return True
        if fault.victim in ("system", "memoryx", "engine", "wafer"):
            if not self._site.send(fault.victim, number):
                return False
            time.sleep(fault.seconds)
            self._site.start()
            return True
        pids = self._pids(fault)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(pids)

    def _stop(self, fault: Fault) -> bool:
        own = fault.victim in ("worker", "chief", "launcher")
        pids = self._pids(fault) if own else self._site.pids(fault.victim)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if pids and number == signal.SIGSTOP:
                time.sleep(fault.seconds)
        return bool(pids)

    def _pids(self, fault: Fault) -> list[int]:
        """Return the process of a part of the job, without those that it has started."""
        if fault.victim == "launcher":
            return [self.process.pid]
        if fault.victim == "chief":
            place = ["CSRUN_ROLE=chief"]
        else:
            place = ["CSRUN_ROLE=worker", f"CSRUN_TASK_INDEX={fault.worker % self._workers}"]
        pids = list_processes(self._marker, *(text.encode() for text in place))
        roots = [pid for pid in pids if (parent := _parent(pid)) and parent not in pids]
        return [_parent(pid) for pid in roots] if fault.victim == "agent" else roots


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a file system of 128 MiB at a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "none", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


FILLER = "filler"


def fill(folder: Path) -> None:
    """Take all space of the file system of a folder."""
    with suppress(OSError), (folder / FILLER).open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12 if file.tell() >= 120 << 20 else 1 << 20))
