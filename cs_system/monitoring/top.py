"""`cs_system top`: the figures of systems in a terminal, and as lines where there is none."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cs_system.errors import duration_text
from cs_system.monitoring.numbers import figure, si
from cs_system.status import RunInfo, SystemInfo, render_table
from cs_toolkit.figures import format_share

_HISTORY = 60
_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = "_.-=*#"
_BAR_CELLS = 6
_VERDICT_CELLS = len("limits the run")
# Of the table of workers with bars: seven columns, and a space after each.
_WIDTH_WITHOUT_HOSTS = 72
_EVENTS = 5
_WORKERS = 32

ReadStatuses = Callable[[], Sequence[SystemInfo]]


def show(read: ReadStatuses, *, as_json: bool, once: bool, interval_s: float) -> None:
    """Show the systems that `read` returns until the user ends it.

    Args:
        read: Asks the systems for their status.
        as_json: Print a line of JSON for each system instead.
        once: Print the figures once, and end.
        interval_s: Time between two updates.
    """
    if as_json or not (once or sys.stdout.isatty()):
        _print_lines(read, as_json=as_json, once=once, interval_s=interval_s)
        return
    view = View()
    if once:
        Console().print(view.render(read(), time.time()))
        return

    def render() -> Group:
        return Group(view.render(read(), time.time()), Text("q or Ctrl-C ends", style="dim"))

    with (
        _keys() as is_pressed,
        Live(render(), console=Console(), screen=True, auto_refresh=False) as live,
    ):
        while not is_pressed("q", interval_s):
            live.update(render(), refresh=True)


def _print_lines(read: ReadStatuses, *, as_json: bool, once: bool, interval_s: float) -> None:
    while True:
        infos = read()
        if as_json:
            for info in infos:
                click.echo(json.dumps(info.to_json()))
        else:
            click.echo(render_table(infos, time.time()))
        if once:
            return
        time.sleep(interval_s)


@contextmanager
def _keys() -> Iterator[Callable[[str, float], bool]]:
    """Read keys without Enter in the body; yields a function that waits for a key, up to a time limit."""
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):

        def sleep(key: str, limit_s: float) -> bool:
            time.sleep(limit_s)
            return False

        yield sleep
        return

    def is_pressed(key: str, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while (left_s := deadline - time.monotonic()) > 0:
            if select.select([descriptor], [], [], left_s)[0]:
                typed = os.read(descriptor, 64).decode(errors="replace")
                if not typed or key in typed.lower():
                    return True
        return False

    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield is_pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class View:
    """The figures of systems as renderables of rich, with the history of rate and loss since it was made."""

    def __init__(self, *, ascii_only: bool | None = None) -> None:
        encoding = (sys.stdout.encoding or "ascii").lower()
        self._blocks = _ASCII_BLOCKS if (ascii_only or not encoding.startswith("utf")) else _BLOCKS
        self._history: dict[tuple[str, str], deque[tuple[float, float | None]]] = {}

    def render(self, infos: Sequence[SystemInfo], now_s: float) -> RenderableType:
        """Render the systems at a time in seconds since the epoch."""
        return Group(*(self._system(info, now_s) for info in infos))

    def _system(self, info: SystemInfo, now_s: float) -> Panel:
        run = info.run
        style = {"RUNNING": "green", "WAITING FOR INPUT": "yellow", "DRAINED": "yellow"}.get(info.state, "")
        state = Text.assemble((info.state, f"bold {style}"))
        if info.admission.drained_by and run is not None:
            state.append(f", drained by {info.admission.drained_by}", "yellow")
        parts: list[RenderableType] = [state]
        if run is not None:
            parts += self._run(info, run, now_s)
        for number, job in enumerate(info.queue, 1):
            waits = duration_text(now_s - job.since)
            parts.append(Text(f"queue {number}: {job.job} {_of(job.owner)}for {waits}"))
        parts += [
            Text(
                f"{time.strftime('%H:%M:%S', time.localtime(event.time))} {event.text}",
                style="dim" if event.level in ("INFO", "DEBUG") else "yellow",
                no_wrap=True,
                overflow="ellipsis",
            )
            for event in info.events[-_EVENTS:]
        ]
        up = duration_text(info.uptime_s)
        return Panel(Group(*parts), title=Text(f"{info.address}, up {up}"), title_align="left")

    def _run(self, info: SystemInfo, run: RunInfo, now_s: float) -> list[RenderableType]:
        history = self._history.setdefault((info.address, run.job), deque(maxlen=_HISTORY))
        history.append((run.steps_per_s, run.loss))
        job = Text(f"job {run.job} {_of(run.owner)}for {duration_text(now_s - run.since)}")
        loss = "none" if run.loss is None else figure(run.loss)
        lines: list[RenderableType] = [
            job,
            Text(
                f"step {run.step:,}   {si(run.samples_per_s)} samples/s   "
                f"{si(run.input_bytes_per_s, 'B/s')} input"
            ),
            Text(f"steps/s {figure(run.steps_per_s):>8} {self._spark([rate for rate, _ in history])}"),
            Text(f"loss    {loss:>8} {self._spark([value for _, value in history])}"),
        ]
        if run.input_bound:
            waits = f"input-bound: {format_share(run.input_wait)} of the time without a batch"
            lines.append(Text(waits, style="yellow"))
        lines += [Text(text, style="yellow") for text in (run.late, run.slow) if text]
        if run.bound_by:
            names = ", ".join(run.bound_by[:5])
            lines.append(Text(f"program cs_{run.artifact[:12]}, bound by {names}", overflow="ellipsis"))
        if run.weights is not None:
            lines.append(
                Text(
                    f"MemoryX {si(run.weights.to_wafer_bytes_per_s, 'B/s')} to the wafer, "
                    f"{si(run.weights.to_memory_bytes_per_s, 'B/s')} back"
                )
            )
        lines += [
            Text(
                f"csx {number}: computes {format_share(w.computing)}, "
                f"gets weights {format_share(w.receiving)} of the time"
            )
            for number, w in enumerate(run.wafers, 1)
        ]
        if run.workers:
            lines.append(self._workers(run))
        return lines

    def _workers(self, run: RunInfo) -> _Fitted:
        hosts = max(len("host"), *(len(worker.host) for worker in run.workers[:_WORKERS]))
        return _Fitted(lambda width: self._worker_table(run, has_bars=width >= _WIDTH_WITHOUT_HOSTS + hosts))

    def _worker_table(self, run: RunInfo, *, has_bars: bool) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        credit, wait = ("credit wait", "input wait") if has_bars else ("credit\nwait", "input\nwait")
        for name, width in (
            ("worker", None),
            ("host", 0),  # only a host may be cut, in a narrow terminal
            ("batches/s", None),
            ("input", len("9.99 MB/s")),
            ("queue", None),
            (credit, None),
            (wait, None),
            ("", _VERDICT_CELLS),
        ):
            right = name in ("batches/s", "input", "queue") or "\n" in name
            widest = max(map(len, name.split("\n"))) if width is None else width
            table.add_column(name, justify="right" if right else "left", no_wrap=True, min_width=widest)
        for worker in run.workers[:_WORKERS]:
            if worker.phase not in ("connected", "ended"):
                verdict = Text(worker.phase, style="red")
            else:
                verdict = Text("limits the run", style="yellow") if worker.limits_run else Text("keeps up")
            parts = (worker.credit_wait, worker.input_wait)
            table.add_row(
                Text(str(worker.worker)),
                Text(worker.host),
                figure(worker.batches_per_s),
                si(worker.bytes_per_s, "B/s"),
                str(worker.queue),
                *(self._bar(part) if has_bars else f"{part:.0%}" for part in parts),
                verdict,
            )
        if len(run.workers) > _WORKERS:
            table.add_row(Text("..."), Text(f"and {len(run.workers) - _WORKERS} more"))
        return table

    def _bar(self, part: float) -> Text:
        cells = round(_BAR_CELLS * part)
        full, empty = self._blocks[-1], self._blocks[0]
        return Text(f"{full * cells}{empty * (_BAR_CELLS - cells)} {part:4.0%}")

    def _spark(self, values: Sequence[float | None]) -> str:
        finite = [value for value in values if value is not None and abs(value) < float("inf")]
        if not finite:
            return ""
        low, high = min(finite), max(finite)
        steps = len(self._blocks) - 1
        return "".join(
            " " if value is None or not abs(value) < float("inf")
            # Level values are in the middle.
            else self._blocks[round(steps * ((value - low) / (high - low) if high > low else 0.5))]
            for value in values
        )  # fmt: skip


@dataclass(frozen=True)
class _Fitted:
    """A renderable that depends on the width that it gets."""

    render: Callable[[int], RenderableType]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.render(options.max_width)


def _of(owner: str) -> str:
    return f"of {owner} " if owner else ""
