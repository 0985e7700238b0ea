"""The main job on real data: compile, train, evaluate and predict FC-MNIST on a simulated CS system.

Run by `make demo`. All its files are in demo_out/; each command is printed before it runs, so that
every step can be repeated by hand.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "demo_out"
MODEL_DIR = OUT / "model_dir"
RUN_PY = Path("models/fc_mnist/tf/run.py")
ACCURACY_GOAL = 0.97
SERVER_START_S = 60.0


def main() -> int:
    """Runs the demo; 0 when the trained network reaches the accuracy goal."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    started = time.monotonic()
    with cs_system() as address:
        python = ["python", str(RUN_PY), f"--model_dir={MODEL_DIR.relative_to(ROOT)}"]
        title("Check that the program can run on a CS system")
        run("bin/csrun_cpu", *python, "--mode=validate_only")
        title("Compile it on a CPU, for the fabric of this system")
        run("bin/csrun_cpu", *python, "--mode=compile_only", f"--cs_ip={address}")
        title("Train it: one chief, two workers that stream the data")
        layout = ["--total-nodes=1", "--tasks-per-node=3", "--cpus-per-task=1"]
        logs = f"--log-dir={(OUT / 'logs').relative_to(ROOT)}"
        run("bin/csrun_wse", *layout, logs, *python, "--mode=train", f"--cs_ip={address}")
        title("Evaluate and predict with the checkpoint, on a CPU")
        evaluation = run("bin/csrun_cpu", *python, "--mode=eval")
        run("bin/csrun_cpu", *python, "--mode=predict")
    return summary(accuracy_in(evaluation), time.monotonic() - started)


def title(text: str) -> None:
    """Prints what comes next."""
    print(f"\n\033[1m== {text}\033[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def run(*command: str) -> str:
    """Prints a command and runs it, showing its output, and returns what it wrote to stdout.

    Ends the demo with the command's exit code when it fails. SIGINT and SIGTERM are passed on to the command,
    which ends its processes first.
    """
    print(f"$ {shlex.join(command)}", flush=True)
    caught, started, lines = list[int](), list[subprocess.Popen[str]](), list[str]()

    def forward(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        for process in started:
            process.send_signal(number)

    handlers = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        # A separate session: a Ctrl-C of the terminal reaches the command once, too.
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            started.append(process)
            for number in caught:  # while it was started
                process.send_signal(number)
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    code = 128 + caught[0] if caught else process.returncode
    if code < 0:  # killed by a signal
        code = 128 - code
    if code:
        print(f"demo: exit code {code} of: {shlex.join(command)}", file=sys.stderr)
        raise SystemExit(code)
    return "".join(lines)


def accuracy_in(output: str) -> float:
    """The accuracy in `accuracy = 0.98, global_step = ...`, as run.py prints it."""
    match = re.search(r"accuracy = ([0-9.e-]+)", output)
    if match is None:
        raise SystemExit(f"demo: no accuracy in the output of the evaluation: {output!r}")
    return float(match[1])


@contextmanager
def cs_system() -> Iterator[str]:
    """A simulated CS system on free ports; gives its address, ends it afterwards."""
    title("Start a simulated CS system")
    ready, log = OUT / "cs_system.json", OUT / "cs_system.log"
    command = [
        "bin/cs_system", "serve", "--port", "0", "--data-port", "0",
        "--ready-file", str(ready.relative_to(ROOT)),
    ]  # fmt: skip
    print(f"$ {shlex.join(command)} 2> {log.relative_to(ROOT)} &", flush=True)
    with log.open("w") as stderr:
        # A separate session: Ctrl-C reaches the demo, which then ends the system in order.
        server = subprocess.Popen(command, cwd=ROOT, stderr=stderr, start_new_session=True)
    try:
        deadline = time.monotonic() + SERVER_START_S
        while not ready.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                print(f"demo: the CS system did not start:\n{log.read_text()}", file=sys.stderr)
                raise SystemExit(1)
            time.sleep(0.05)
        address = json.loads(ready.read_text())["address"]
        print(f"CS system at {address}", flush=True)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(timeout=15)
        except subprocess.TimeoutExpired:
            server.kill()


def summary(accuracy: float, seconds: float) -> int:
    """Prints what happened and where things lie; returns the exit code."""
    train = json.loads((MODEL_DIR / "run_summary.json").read_text())
    performance = json.loads((MODEL_DIR / "performance.json").read_text())
    title("Summary")
    for phase in train["timeline"]:
        print(f"  {phase['start_s']:7.1f} s  {phase['name']:<22} {phase['seconds']:6.1f} s")
    print(
        f"  whole demo {seconds:.0f} s; {train['last_step']} steps at {train['samples_per_sec']:,.0f} "
        f"samples/s; estimated for the wafer {performance['est_samples_per_sec']:,.0f} samples/s"
    )
    print(f"  test accuracy {accuracy:.4f} (goal {ACCURACY_GOAL})")
    where = MODEL_DIR.relative_to(ROOT)
    print(f"  checkpoint   {where}/model.ckpt-{train['last_step']}.*")
    print(f"  performance  {where}/performance.json")
    print(f"  compiled     {os.path.relpath(train['artifact'], ROOT)}/compile_report.html")
    print(f"  events       {where}   (.venv/bin/tensorboard --logdir {where})")
    print("  next         bin/cs_system serve, and in another terminal:")
    print(
        "               bin/csrun_wse --total-nodes=1 --tasks-per-node=3 "
        f"python {RUN_PY} --mode=train --cs_ip=127.0.0.1:9000"
    )
    if accuracy < ACCURACY_GOAL:
        print(f"demo: accuracy {accuracy:.4f} is below {ACCURACY_GOAL}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the CS system ends first
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
