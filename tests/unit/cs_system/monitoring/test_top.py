from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from cs_system.monitoring.top import View
from cs_system.status import Admission
from tests.unit.cs_system.monitoring.snapshots import IDLE, INFO, NOW, RUN


def rendered(view: View, *infos, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, legacy_windows=False)
    console.print(view.render(infos, NOW))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def test_a_run_shows_the_figures_of_the_status():
    text = rendered(View(), INFO)
    for part in (
        "RUNNING",
        "job job-7 of ada@login1 for 1 min 30 s",
        "step 1,200   548 k samples/s   1.2 MB/s input",
        "input-bound: 40% of the time",
        "bound by fc1",
        "MemoryX 1 kB/s to the wafer, 400 B/s back",
        "csx 2: computes 25%",
        "queue 1: job-8 of bob@login2 for 30 s",
        "worker 1 is lost",
        "lost",
    ):
        assert part in text, part


@pytest.mark.parametrize(("host", "width", "has_bars"), [("n1", 80, True), ("cs-node-0017", 80, False)])
def test_a_terminal_of_80_columns_cuts_no_figure(host: str, width: int, has_bars: bool):
    workers = tuple(replace(worker, host=host, bytes_per_s=999e6) for worker in RUN.workers)
    text = rendered(View(), replace(INFO, run=replace(RUN, workers=workers)), width=width)
    table = text[text.index("csx 2") : text.index("│ queue 1")]
    assert "…" not in table
    for part in ("host", host, "batches/s", "999 MB/s", "queue", "90%", "40%", "credit"):
        assert part in table, part
    assert ("█" in table) == has_bars


def test_the_history_becomes_a_line_of_blocks():
    view = View(ascii_only=True)
    for rate in (1.0, 2.0, 4.0, 6.0):
        text = rendered(view, replace(INFO, run=replace(RUN, steps_per_s=rate, loss=float("nan"))))
    assert "steps/s        6 _.=#" in text
    # Losses that are no numbers leave a gap.
    assert "loss         nan     " in text


def test_names_of_strangers_are_no_markup():
    name = "[bold red]x[/bold red]"
    run = replace(RUN, job=name, owner=name, bound_by=(name,), late=name)
    assert rendered(View(), replace(INFO, run=run)).count(name) == 4


def test_an_idle_and_a_drained_system():
    drained = replace(IDLE.info, state="DRAINED", admission=Admission("ada@host", NOW))
    text = rendered(View(), IDLE.info, drained)
    assert "IDLE" in text
    assert "DRAINED" in text
    running = replace(INFO, admission=Admission("ada@host", NOW))
    assert "RUNNING, drained by ada@host" in rendered(View(), running)


def test_many_workers_are_cut():
    workers = tuple(replace(RUN.workers[0], worker=index) for index in range(100))
    assert "and 68 more" in rendered(View(), replace(INFO, run=replace(RUN, workers=workers)))
