from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading

import pytest

from cs_runtime import terminal
from cs_runtime.terminal import (
    PACKAGES,
    WaitLog,
    configure_logging,
    format_by_family,
    log_while_blocked,
    shorten_report,
)
from cs_toolkit.log_lines import FIRST_LINE_S, WaitLines

LOOPS = """\
Generated kernels, from loop nests; all others are kernels of the library:
  exp1 (elementwise)
    for i in 0..512: 1 arith op
    for j in 0..512: 2 arith ops
  reduce1 (reduction)
    for i in 0..512: 1 arith op, reduce over i"""


def layer_table(times_ms: list[float]) -> str:
    rule = "+------------+------------+"
    rows = [f"| layer{number:<5} | {ms:10,.1f} |" for number, ms in enumerate(times_ms)]
    rows.append(f"| all        | {sum(times_ms):10,.1f} |")
    return "\n".join([rule, "| Layer      | Compute ms |", rule, *rows, rule])


def test_a_terminal_has_neither_loops_nor_advice() -> None:
    notes = "All figures are estimates of time on the wafer.\nActive PEs: share of the fabric.\n"
    compiled = "Model:     model_fn\nPrecision: float32"
    advice = "To go faster, predicted:\n  buy another wafer\n\nWhy it is not faster:\n  it is slow"
    shown = shorten_report(f"head\n\n{compiled}\n\n{LOOPS}\n\nVerdict: good.\n\n{advice}\n\n{notes}")
    assert shown == f"head\nVerdict: good.\n{notes.splitlines()[0]}\n"


def test_of_many_layers_the_longest_are_shown() -> None:
    times_ms = [float(number * 37 % 50) for number in range(49)] + [1234.0]
    shown = shorten_report(f"head\n\n{layer_table(times_ms)}\n", rows=3)
    names = [line.split()[0] for line in shown.splitlines() if line.startswith("layer")]
    slowest = sorted(range(50), key=lambda number: -times_ms[number])[:3]
    assert names == [f"layer{number}" for number in sorted(slowest)]
    note, total = shown.splitlines()[-2:]
    assert note.startswith("... and 47 faster ones")
    assert total.split() == ["all", f"{sum(times_ms):,.1f}"]


def test_of_replicas_the_chosen_number_is_shown() -> None:
    copies = "Replicas: 4 copies of the model\n  One copy:   9.0 samples/s"
    tried = "Numbers of replicas that divide the batch:\n+---+\n| 4 |\n+---+"
    assert shorten_report(f"head\n\n{copies}\n{tried}\n\nVerdict: good.\n").splitlines() == [
        "head",
        "",
        *copies.splitlines(),
        "Verdict: good.",
    ]


def test_a_validation_lists_the_kernels_by_family() -> None:
    kernels = [("fc", False, 3), ("add", False, 1), ("fc", True, 10), ("add", False, 1)]
    assert format_by_family(kernels, "model_dir/kernels.txt").splitlines() == [
        "4 kernels for 15 ops, by family:",
        "  add     2 for 2 ops",
        "  fc      2 for 13 ops, 1 of them generated",
        "all of them, with your source lines: model_dir/kernels.txt",
    ]


def test_logging_of_the_program_is_unchanged() -> None:
    root = logging.getLogger()
    levels = {name: logging.getLogger(name).level for name in ("estimator", *PACKAGES)}
    handlers = list(root.handlers)
    assert handlers, "pytest has its own handlers"
    configure_logging("estimator")
    assert root.handlers == handlers
    assert {name: logging.getLogger(name).level for name in ("estimator", *PACKAGES)} == levels


def test_a_program_may_configure_logging_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs that need to know their task do this; from there on the lines are in their format."""
    root, log = logging.getLogger(), logging.getLogger("cs_runtime")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(logging, "lastResort", None)
    monkeypatch.setattr(log, "level", log.level)
    configure_logging("estimator")
    log.info("before")
    logging.basicConfig(format="theirs: %(message)s")
    log.info("afterwards")
    before, afterwards = capsys.readouterr().err.splitlines()
    assert before.endswith("INFO: before")
    assert afterwards == "theirs: afterwards"


class Clock:
    """Continues when it gets a signal."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(terminal, "time", made)
    return made


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cs_runtime")


def test_a_short_wait_is_no_line_and_a_long_one_few(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    log = WaitLog()
    clock.now_s += FIRST_LINE_S - 1
    assert not log("short")
    assert not caplog.records
    clock.now_s += 1
    assert log("long")
    clock.now_s += 30
    assert not log("long")
    assert log("another reason")
    assert [r.getMessage() for r in caplog.records] == ["long", "another reason"]
    clock.now_s += 60
    log.reset()
    log("another wait")
    assert len(caplog.records) == 2


def test_the_first_line_is_logged_immediately(caplog: pytest.LogCaptureFixture, clock: Clock) -> None:
    log = WaitLog(log_first=True)
    log("queued")
    log("queued")
    assert [r.getMessage() for r in caplog.records] == ["queued"]


def test_a_call_that_blocks_is_announced_until_it_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "_CHECK_EVERY_S", 0.05)
    monkeypatch.setattr(WaitLines, "is_due", lambda *_: True)
    two_lines = threading.Event()
    monkeypatch.setattr(caplog.handler, "emit", _then(caplog.handler.emit, caplog, two_lines))

    def block() -> None:
        with log_while_blocked("program the fabric"):
            two_lines.wait()
            raise ValueError("ended")

    with pytest.raises(ValueError, match="ended"):
        block()
    said = [r.getMessage() for r in caplog.records]
    assert said[0].startswith("waiting for the CS system to program the fabric, for ")
    assert "wait-log" not in [thread.name for thread in threading.enumerate()]


def _then(emit: object, caplog: pytest.LogCaptureFixture, two_lines: threading.Event) -> object:
    def noted(record: logging.LogRecord) -> None:
        emit(record)  # type: ignore[operator]
        if len(caplog.records) >= 2:
            two_lines.set()

    return noted


def test_lines_of_a_task_are_json_on_request() -> None:
    script = (
        "import logging\n"
        "from cs_runtime.progress import record_step\n"
        "from cs_runtime.terminal import configure_logging\n"
        "configure_logging('estimator')\n"
        "logging.getLogger('cs_runtime').info('starting')\n"
        "record_step(120)\n"
        "logging.getLogger('cs_runtime').warning('%d workers', 4)\n"
    )
    variables = {"CS_LOG_FORMAT": "json", "CSRUN_JOB_ID": "job-7", "CSRUN_RANK": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **variables},
    )
    first, second = (json.loads(line) for line in done.stderr.splitlines())
    assert (first["message"], first["job"], first["task"], "step" in first) == ("starting", "job-7", 2, False)
    assert (second["message"], second["level"], second["step"]) == ("4 workers", "WARNING", 120)
    assert second["time"].endswith("Z")
