"""Run in a process of the user's program: examine its input, read it on command, or compare changes."""

from __future__ import annotations

import atexit
import errno
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from cs_toolkit.errors import EXIT_BUG, exit_code_of
from csrun.schedulers.registry import node_name
from input_analyzer.batch_forms import FORMS
from input_analyzer.errors import lost_a_worker, users_traceback
from input_analyzer.measure.examine import Shapes, check_length
from input_analyzer.measure.link import END, PAUSE, RUN, Link, Order, read_order
from input_rules.input_export import InputProgram, Shard

# Minimum interval of reports, which take about 20 us each.
REPORT_S = 0.02

EXIT_INPUT_FAILED = 1


def serve(program: InputProgram, order_file: Path, compiles: bool) -> None:
    """Carry out the order and end the process, except before a compile that the analyzer needs."""
    order, link = begin(order_file)
    keep_files_apart(order)
    try:
        if order.purpose == "examine":
            from input_analyzer.measure.examine import examine

            compile_next = compiles and order.compile
            link.send(event="examined", compiles=compile_next, **examine(program, order, link))
            if compile_next:
                return
        elif order.purpose == "compare":
            from input_analyzer.gains import compare_all

            if program.framework == "torch":
                from input_analyzer.torch.compare import choose_form, compare
            else:
                from input_analyzer.tf.compare import choose_form, compare

            def say(doing: str) -> None:
                link.send(event="alive", doing=doing)

            findings, form, files = dict(order.findings), None, dict[str, str]()
            if order.source_forms:
                say("trying the input with whole batches")
                form = choose_form(program, order.source_forms)
                if form is None:
                    findings = {name: value for name, value in findings.items() if name not in FORMS}
                else:
                    files = order.source_forms[form]
            found = compare_all(
                findings,
                lambda some, alive: compare(
                    program, some, order.stage_seconds, alive, {} if FORMS.keys().isdisjoint(some) else files
                ),
                say,
            )
            link.send(event="compared", form=form, **asdict(found))
        else:
            read_on_command(program, order, link)
    except BaseException as error:
        with suppress(ValueError):  # only possible in the main thread
            # torch would raise in here when another worker process exits.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _report_failure(link, error)
    _exit(0)


def keep_files_apart(order: Order) -> None:
    """From now on, write caches of datasets to the folder of the analysis; see `tf.private_files`."""
    # A program that has not imported TensorFlow has no such dataset, or calls this after the import.
    if "tensorflow" in sys.modules:
        from input_analyzer.tf.private_files import keep_apart

        keep_apart(Path(order.socket).parent / f"files{order.copy_index}")


def refuse(order_file: Path, error: BaseException) -> NoReturn:
    """Report an error to the analyzer before the input function was exported, and end the process."""
    _report_failure(begin(order_file)[1], error)


@cache
def begin(order_file: Path) -> tuple[Order, Link]:
    """Read the order and connect to the analyzer, once."""
    order = read_order(order_file)
    link = Link.connect(order.socket)
    if order.stacks:
        # Stays open: the handler writes to its descriptor.
        stacks = Path(order.stacks).open("w", encoding="utf-8")  # noqa: SIM115
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        faulthandler.enable(file=stacks)
    link.send(event="hello", copy=order.copy_index, pid=os.getpid(), host=node_name(os.environ))
    return order, link


def _report_failure(link: Link, error: BaseException) -> NoReturn:
    """Report an expected error by its message, our bugs in full, else the user's frames; then exit."""
    expected, bug = hasattr(error, "exit_code"), exit_code_of(error) == EXIT_BUG
    if expected:
        text = str(error)
    else:
        text = "".join(traceback.format_exception(error)) if bug else users_traceback(error)
    if lost_a_worker(error):
        text += (
            "\nthis error of a DataLoader's queue means that a worker process has exited by itself; "
            "expected one that delivers batches: num_workers=0 shows the line at which it exits"
        )
    with suppress(OSError):  # the analyzer may have exited
        link.send(
            event="failed",
            kind=type(error).__name__,
            text=text,
            expected=expected,
            bug=bug,
            exit_code=getattr(error, "exit_code", EXIT_INPUT_FAILED),
            memory=is_for_want_of_memory(error),
            host=node_name(os.environ),
        )
    # Free the objects that frames of the traceback hold: a DataLoader then ends its workers, which clean up.
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__context__
    _exit(EXIT_INPUT_FAILED)


def is_for_want_of_memory(error: BaseException) -> bool:
    """Return True if an error means that memory ran out."""
    # TensorFlow raises the same error if a disk is full, for example that of a cache.
    exhausted = type(error).__name__ == "ResourceExhaustedError"
    return isinstance(error, MemoryError) or (exhausted and os.strerror(errno.ENOSPC) not in str(error))


def _exit(code: int) -> NoReturn:
    """End the process after its exit handlers, without waiting for its threads."""
    # The handlers remove files of the program and of TensorFlow in /tmp; the analyzer kills a process that
    # hangs in them. A normal exit would wait for the threads of the pipeline, which may hang or hold locks.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def read_on_command(program: InputProgram, order: Order, link: Link) -> None:
    """Read batches while the analyzer commands it, and report their number.

    Reports have `t` (CLOCK_MONOTONIC, which all processes of a machine share), `active` (seconds of reading
    so far), `samples`, `bytes`, `batches` and `restarts`, all counted from the start. An input that ends is
    rebuilt, which does not count as reading.
    """
    shard = Shard(order.copies, order.copy_index)
    counts = _Counts()
    batches: Iterator[tuple[Any, ...]] = iter(())
    shapes = Shapes(program.component_names, program.batch_size)
    fresh = True
    link.send(event="ready")  # loading the program would disturb the measurement of other copies
    while True:
        while (command := _last_command(link.receive(None))) in (None, PAUSE):
            pass
        if command != RUN:
            return
        if fresh:  # not built earlier: a paused copy must not fill its buffers while others run
            batches, fresh = program.batches(shard), False
        counts.resume()
        link.send(event="report", **counts.values())
        last = time.monotonic()
        while True:
            batch = next(batches, None)
            if batch is None:
                counts.pause()
                link.send(event="report", **counts.values())
                check_length(counts.batches_since_restart, counts.samples, shard, program.framework)
                batches = program.batches(shard)
                counts.restart()
                counts.resume()
            else:
                counts.add(*shapes.check(batch))
            now = time.monotonic()
            if now - last >= REPORT_S:
                last = now
                link.send(event="report", **counts.values())
                command = _last_command(link.receive())
                if command == END:
                    return
                if command == PAUSE:
                    break
        counts.pause()
        link.send(event="paused", **counts.values())


class _Counts:
    """Counters of everything that was read, and the time spent reading."""

    def __init__(self) -> None:
        self.samples = self.bytes = self.batches = self.restarts = self.batches_since_restart = 0
        self._active_s = 0.0
        self._since: float | None = None

    def add(self, samples: int, size: int) -> None:
        self.samples += samples
        self.bytes += size
        self.batches += 1
        self.batches_since_restart += 1

    def resume(self) -> None:
        self._since = time.monotonic()

    def pause(self) -> None:
        if self._since is not None:
            self._active_s += time.monotonic() - self._since
        self._since = None

    def restart(self) -> None:
        self.restarts += 1
        self.batches_since_restart = 0

    def values(self) -> dict[str, float]:
        now = time.monotonic()
        running = 0.0 if self._since is None else now - self._since
        return {
            "t": now,
            "active": self._active_s + running,
            "samples": self.samples,
            "bytes": self.bytes,
            "batches": self.batches,
            "restarts": self.restarts,
        }


def _last_command(messages: list[dict[str, Any]]) -> str | None:
    return str(messages[-1]["do"]) if messages else None
