"""Time of commands as users type them, from Enter to the prompt, by part.

    python -m benchmarks.commands    # the rows of `make bench`

Every run is a new process with its own folder for the results, so that nothing is found compiled. The
parts end with lines of the log, which the processes write at once.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fc_mnist import cs_system
from benchmarks.harness import Row

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 3
COMPILE = ("bin/csrun_cpu", "python")
BERT_BASE = ("models/bert/tf/run.py", "-p", "models/bert/tf/configs/params_bert_base.yaml")
FC_MNIST = ("models/fc_mnist/tf/run.py",)
BERT_TARGET_S, FC_MNIST_TARGET_S = 15.0, 7.0

TRAIN_TARGET_S = 15.0

COMPILE_PARTS = {
    "start-up": "compiling for ",
    "input and tracing": "Starting Cerebras Compilation",
    "compiler": "Cerebras Compilation Completed",
}
"""Name of a part -> text of the line that ends it."""
TRAIN_PARTS = {
    "start-up": "training on the CS system",
    "input, tracing and compiler": "Cerebras Compilation Completed",
    "programming and streaming up to the first step": "global step 1:",
}
END = "end"
"""What follows the last line that was waited for."""


@dataclass(frozen=True)
class Run:
    """One run of a command.

    Attributes:
        parts: seconds of wall time of each part, in order; they make up the whole run.
        cpu_s: CPU seconds, user and system, of all its processes.
    """

    parts: dict[str, float]
    cpu_s: float

    @property
    def seconds(self) -> float:
        """Wall time of the run."""
        return sum(self.parts.values())


def rows() -> list[Row]:
    """Compilations that users start with, and a training of one step."""
    bert = "`csrun_cpu python models/bert/tf/run.py --mode=compile_only -p ...params_bert_base.yaml`"
    fc_mnist = "`csrun_cpu python models/fc_mnist/tf/run.py --mode=compile_only`"
    return [
        _row(bert, [compile_only(BERT_BASE) for _ in range(ROUNDS)], BERT_TARGET_S),
        _row(fc_mnist, [compile_only(FC_MNIST) for _ in range(ROUNDS)], FC_MNIST_TARGET_S),
        _row(
            "FC-MNIST training of one step, chief + 2 workers, as typed",
            [train_one_step() for _ in range(ROUNDS)],
            TRAIN_TARGET_S,
        ),
    ]


def compile_only(program: Sequence[str]) -> Run:
    """Compiles a program into a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        return run([*COMPILE, *program, "--mode=compile_only", "-o", folder], COMPILE_PARTS)


def train_one_step() -> Run:
    """Trains FC-MNIST for a step with a chief and two workers, compilation included, in a new folder."""
    with cs_system() as address, tempfile.TemporaryDirectory() as folder:
        job = ["bin/csrun_wse", "--total-nodes=1", "--tasks-per-node=3", f"--log-dir={folder}/logs", "python"]
        program = [*FC_MNIST, "--mode=train", f"--cs_ip={address}", "--max_steps=1", f"-o={folder}/model_dir"]
        return run([*job, *program], TRAIN_PARTS)


def run(command: Sequence[str], parts: dict[str, str]) -> Run:
    """Runs a command in the root of the checkout.

    Args:
        command: its words.
        parts: name -> text of the line, in either stream, that ends it; in the order of the lines.

    Raises:
        RuntimeError: the command failed, or did not write these lines.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ends = [time.perf_counter()]
    waiting = list(parts.values())
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if waiting and waiting[0] in line:
                ends.append(time.perf_counter())
                del waiting[0]
    ends.append(time.perf_counter())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode or waiting:
        raise RuntimeError(
            f"{' '.join(command)} ended with exit code {process.returncode}"
            + (f" and without a line '{waiting[0]}'" if waiting else "")
        )
    names = [*parts, END]
    seconds = {name: end - start for name, start, end in zip(names, ends, ends[1:], strict=False)}
    return Run(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _row(name: str, runs: Sequence[Run], target_s: float) -> Row:
    seconds = statistics.median(run.seconds for run in runs)
    cpu_s = statistics.median(run.cpu_s for run in runs)
    parts = ", ".join(
        f"{part} {statistics.median(run.parts[part] for run in runs):.1f}" for part in runs[0].parts
    )
    ours = f"{seconds:.1f} s: {parts}; {cpu_s:.1f} s of CPU"
    return Row(name, ours, "", None, f"< {target_s:g} s", seconds < target_s)


if __name__ == "__main__":
    for row in rows():
        print(row.name, row.ours, row.target)
