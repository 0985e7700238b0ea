"""Input functions that fail, hang, or take all memory: one message, the right exit code, nothing left."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.processes import wait_until

from .analyses import ANALYZER, analysis_of, inside

HEAD = """
import os, signal, sys, time
import numpy as np
from input_rules.input_export import InputProgram, export_input

def batch(size=4, width=3):
    return (np.zeros([size, width], np.float32), np.zeros([size], np.int32))
"""
TAIL = """
export_input(InputProgram("tensorflow", train_input, lambda shard: None, train_input))
"""


def analyze(tmp_path: Path, function: str, *flags: str, tail: str = TAIL) -> tuple[int, str]:
    """Exit code and stderr of an analysis of a program with that input function."""
    program = tmp_path / "run.py"
    program.write_text(HEAD + function + tail, encoding="utf-8")
    return analysis_of(tmp_path, *flags, "python", str(program))


def test_an_error_of_the_user_shows_the_users_traceback_and_no_frame_of_the_toolkit(tmp_path: Path) -> None:
    code, text = analyze(
        tmp_path,
        """
def records():
    raise ValueError("no such column: age")

def train_input(shard):
    records()
    yield batch()
""",
    )
    assert code == 1
    assert "the input function raised ValueError on " in text
    assert 'in records\n    raise ValueError("no such column: age")' in text
    assert text.rstrip().endswith("ValueError: no such column: age")
    assert "input_analyzer" not in text.replace("cs_input_analyzer", "")


def test_an_input_that_ends_after_three_batches(tmp_path: Path) -> None:
    code, text = analyze(
        tmp_path,
        """
def train_input(shard):
    yield from [batch()] * 3
""",
    )
    assert code == 1
    assert "the input ended after 3 batches (12 samples)" in text
    assert "add repeat()" in text


def test_batches_whose_shapes_vary(tmp_path: Path) -> None:
    code, text = analyze(
        tmp_path,
        """
def train_input(shard):
    for index in range(100):
        yield batch(width=3 + index % 5)
""",
    )
    assert code == 1
    assert (
        "varying shapes: 'component 0' is float32[4, 3] in the first batch and float32[4, 4] in batch 2"
        in text
    )


def test_a_hanging_input_is_shown_with_the_line_that_it_hangs_at(tmp_path: Path) -> None:
    code, text = analyze(
        tmp_path,
        """
def train_input(shard):
    yield batch()
    time.sleep(600)
    yield batch()
""",
        "--time-limit=4",
    )
    assert code == 1
    assert "the input function hangs" in text
    assert f"the process on {socket.gethostname()} sent nothing for 4 s" in text
    assert re.search(r'File ".*run\.py", line \d+, in train_input\n    time\.sleep\(600\)', text)


def test_a_program_that_hangs_before_its_input(tmp_path: Path) -> None:
    code, text = analyze(tmp_path, "print('loading', flush=True)\ntime.sleep(600)", "--time-limit=3", tail="")
    assert code == 1
    assert "the program hangs before it exports its input" in text
    assert "loading" in text


def test_an_input_that_takes_all_memory_is_stopped_before(tmp_path: Path) -> None:
    code, text = analyze(
        tmp_path,
        """
kept = []

def train_input(shard):
    yield batch()
    while True:
        kept.append(np.ones(4 << 20))
        time.sleep(0.02)
    yield batch()
""",
        "--memory=0.4",
    )
    assert code == 1
    assert "stopped before the memory of" in text
    assert "--memory allows 0.4 GiB" in text


def test_an_input_that_declares_itself_stateless(tmp_path: Path) -> None:
    code, text = analyze(
        tmp_path,
        """
def train_input(shard):
    raise MemoryError("cannot allocate 7 TiB")
    yield
""",
    )
    assert code == 1
    assert "ran out of memory" in text
    assert "cannot allocate 7 TiB" in text


def test_a_program_that_is_killed_may_have_lacked_memory(tmp_path: Path) -> None:
    code, text = analyze(
        tmp_path,
        """
def train_input(shard):
    os.kill(os.getpid(), signal.SIGKILL)
    yield batch()
""",
    )
    assert code == 137
    assert re.search(
        r"was killed on \S+, probably by the kernel because memory ran out: it had \d\.\d GiB", text
    )


def test_a_crashed_program_shows_where_it_was(tmp_path: Path) -> None:
    code, text = analyze(
        tmp_path,
        """
def train_input(shard):
    import ctypes
    print("I0000 00:00:1795218272.131625    7859 port.cc:153] oneDNN custom operations are on.", flush=True)
    print("W of mine", flush=True)
    yield batch()
    ctypes.string_at(0)
    yield batch()
""",
    )
    assert code == 139
    assert "killed by SIGSEGV on" in text
    assert re.search(r"line \d+, in train_input\n    ctypes\.string_at\(0\)\nits last lines:", text)
    assert text.endswith("its last lines:\nW of mine\n")


@pytest.mark.soak
def test_an_error_in_a_graph_of_tensorflow_is_shown_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "data.py").write_text(
        "import tensorflow as tf\n"
        "def train_input():\n"
        "    records = tf.data.TFRecordDataset(['/nowhere/part.tfrecord'])\n"
        "    return records.map(tf.strings.length).repeat().batch(8, drop_remainder=True)\n"
    )
    # TensorFlow takes longer to be imported, which is no sign of hanging.
    code, text = analysis_of(tmp_path, "--time-limit=2", "data.py:train_input")
    assert code == 1
    assert text.endswith("NotFoundError: /nowhere/part.tfrecord; No such file or directory\n")


def test_a_program_that_never_trains(tmp_path: Path) -> None:
    code, text = analyze(tmp_path, "print('evaluated')", tail="")
    assert code == 1
    assert f"the program exited on {socket.gethostname()} without training or compiling" in text
    assert "evaluated" in text


def test_a_program_that_fails_before_its_input_passes_its_exit_code_on(tmp_path: Path) -> None:
    code, text = analyze(tmp_path, "sys.exit('run.py: there is no file params.yaml')", tail="")
    assert code == 1
    code, text = analyze(tmp_path, "print('bad flag', file=sys.stderr); sys.exit(7)", tail="")
    assert code == 7
    assert f"exited with code 7 on {socket.gethostname()} before its input was read" in text
    assert "bad flag" in text


def test_a_program_that_ends_in_its_input_reports_it(tmp_path: Path) -> None:
    code, text = analyze(
        tmp_path,
        """
def train_input(shard):
    yield batch()
    os._exit(7)
""",
    )
    assert code == 7
    assert f"exited with code 7 on {socket.gethostname()} while reading the first batches" in text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--cpus-per-task=0"], "--cpus-per-task: got '0'"),
        (["--cpus_per_task", "1,x"], "--cpus-per-task: got '1,x'"),
        (["--cpus-per-task=100000"], "expected at most"),
        (["--target-samples-per-s=-5"], "--target-samples-per-s: got '-5'"),
        (["--target-samples-per-s=nan"], "expected samples per second above 0, for example 50000"),
        (["--available-nodes=0"], "--available-nodes: got '0'"),
        (["--json=/nowhere/at/all.json"], "folder '/nowhere/at' does not exist"),
        (["--html=/proc/x.html"], "cannot be written"),
        (["--json="], "--json: got no file name"),
        (["--seconds=0"], "--seconds: got '0', expected seconds above 0, at most 86400"),
        (["--time_limit", "0"], "--time-limit: got '0', expected seconds above 0"),
        (["--time=nonsense"], "--time: got 'nonsense', expected a time limit as MINUTES"),
        (["--apply-dry-run", "--json=a.json"], "--apply-dry-run with --json"),
        (["--memory=0"], "--memory: got '0', expected GiB above 0, for example 16"),
        (["--json=a", "--html=./a"], "--json=a with --html=a: both are the same file"),
        (["--target"], "unknown flag '--target'"),
        (["--cold=/nowhere"], "--cold: got '/nowhere', expected existing directories"),
        (["--cold=."], "--cold: there is no file below '.'"),
        (["--cold=/", "--apply-dry-run"], "--apply-dry-run with --cold"),
        (["--apply", "--yes", "--html=a.html"], "--apply with --html"),
        (["--apply", "--apply-dry-run"], "--apply with --apply-dry-run"),
        (["--yes"], "--yes without --apply"),
        (["--apply"], "--apply without a terminal"),
    ],
)
def test_flags_that_cannot_be_used(tmp_path: Path, flags: list[str], said: str) -> None:
    command = [ANALYZER, *flags, "python", "run.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert said in done.stderr


def test_no_command_at_all(tmp_path: Path) -> None:
    done = subprocess.run([ANALYZER], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no command to run" in done.stderr


@pytest.mark.parametrize(
    ("signum", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
)
def test_nothing_outlives_the_analyzer(tmp_path: Path, signum: int, code: int) -> None:
    (tmp_path / "run.py").write_text(DAEMON, encoding="utf-8")
    command = [ANALYZER, "--json=a.json", "python", "run.py"]
    with tempfile.TemporaryDirectory() as name:
        folder, environment = Path(name), {**os.environ, "TMPDIR": name}
        with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path, env=environment) as process:
            wait_until(lambda: (tmp_path / "daemon").exists())
            assert list(folder.iterdir())
            process.send_signal(signum)
            assert process.wait(20) == code
            said = process.stderr.read().decode().splitlines()[-1] if process.stderr and code > 0 else ""
        if code > 0:
            key = " (Ctrl-C)" if signum == signal.SIGINT else ""
            told = f"ended by {signal.Signals(signum).name}{key} before the analysis was complete"
            assert said == f"cs_input_analyzer: {told}"
        wait_until(lambda: not inside(tmp_path) and not list(folder.iterdir()))
    assert not (tmp_path / "a.json").exists()


def test_what_a_failed_program_has_started_is_ended_too(tmp_path: Path) -> None:
    code, text = analyze(tmp_path, DAEMON.replace("time.sleep(600)  # the program", "sys.exit(7)"), tail="")
    assert code == 7, text


DAEMON = """
import os, subprocess, sys, time
from pathlib import Path
# In a new session, and its parent ends: nothing but its environment leads back to the program.
sleeps = "import time; from pathlib import Path; Path('daemon').touch(); time.sleep(600)"
starts = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
subprocess.run([sys.executable, "-c", starts, sys.executable, "-c", sleeps], check=True)
while not Path("daemon").exists():
    time.sleep(0.01)
time.sleep(600)  # the program
"""
