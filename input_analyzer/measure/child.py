"""What a process of the user's program does for the analyzer: examine its input, or read it as told."""

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
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from cs_toolkit.errors import EXIT_BUG, exit_code_of
from input_analyzer.errors import lost_a_worker, users_traceback
from input_analyzer.measure.examine import Shapes, check_length
from input_analyzer.measure.link import END, PAUSE, RUN, Link, Order, read_order
from input_analyzer.measure.node import host_name
from input_rules.input_export import InputProgram, Shard

REPORT_S = 0.02
"""Batches that are read faster are reported together: a report costs about 20 us."""

EXIT_INPUT_FAILED = 1


def serve(program: InputProgram, order_file: Path, compiles: bool) -> None:
    """Carries out the order; ends the process, except before a compilation that the analyzer wants."""
    order, link = begin(order_file)
    keep_files_apart(order)
    try:
        if _carried_out(program, order, link, compiles):
            return
    except BaseException as error:
        with suppress(ValueError):  # not in the main thread
            # Torch would raise in the middle of this when another worker process ends.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _fail(link, error)
    _leave(0)


def _carried_out(program: InputProgram, order: Order, link: Link, compiles: bool) -> bool:
    """Does what is ordered; whether the program is to go on to its compilation."""
    if order.purpose == "examine":
        from input_analyzer.measure.examine import examine

        go_on = compiles and order.compile
        link.send(event="examined", compiles=go_on, **examine(program, order, link))
        return go_on
    if order.purpose == "compare":
        _compare(program, order, link)
    else:
        read_as_told(program, order, link)
    return False


def _compare(program: InputProgram, order: Order, link: Link) -> None:
    """Measures what changes give."""
    from input_analyzer.gains import compare_all

    if program.framework == "torch":
        from input_analyzer.torch.compare import compare
    else:
        from input_analyzer.tf.compare import compare

    alone, together = compare_all(
        order.findings,
        lambda findings, say: compare(program, findings, order.stage_seconds, say),
        lambda doing: link.send(event="alive", doing=doing),
    )
    link.send(event="compared", alone=alone, together=together)


def keep_files_apart(order: Order) -> None:
    """Caches that a dataset writes go to the folder of the analysis from here on, see `tf.apart`."""
    # What has not imported it builds no such dataset, or will import it later.
    if "tensorflow" in sys.modules:
        from input_analyzer.tf.private_files import keep_apart

        keep_apart(Path(order.socket).parent / f"files{order.copy_index}")


def refuse(order_file: Path, error: BaseException) -> NoReturn:
    """Ends a process that has no input function to hand over, and tells the analyzer why."""
    _fail(begin(order_file)[1], error)


@cache
def begin(order_file: Path) -> tuple[Order, Link]:
    """Reads the order and tells the analyzer that this process is there; once."""
    order = read_order(order_file)
    link = Link.connect(order.socket)
    if order.stacks:
        # Stays open: the handler writes to its descriptor.
        stacks = Path(order.stacks).open("w", encoding="utf-8")  # noqa: SIM115
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
        faulthandler.enable(file=stacks)
    link.send(event="hello", copy=order.copy_index, pid=os.getpid(), host=host_name(os.environ))
    return order, link


def _fail(link: Link, error: BaseException) -> NoReturn:
    """Tells the analyzer: an expected error by its message, a bug of ours whole, else the user's frames."""
    expected, bug = hasattr(error, "exit_code"), exit_code_of(error) == EXIT_BUG
    if expected:
        text = str(error)
    else:
        text = "".join(traceback.format_exception(error)) if bug else users_traceback(error)
    if lost_a_worker(error):
        text += (
            "\nso ends the queue of a DataLoader, a worker process of which has ended by itself; expected "
            "one that delivers batches: with num_workers=0 the line shows at which it ends"
        )
    with suppress(OSError):  # where the analyzer has gone, nobody reads it
        link.send(
            event="failed",
            kind=type(error).__name__,
            text=text,
            expected=expected,
            bug=bug,
            exit_code=getattr(error, "exit_code", EXIT_INPUT_FAILED),
            memory=is_for_want_of_memory(error),
            host=host_name(os.environ),
        )
    _forget(error)
    _leave(EXIT_INPUT_FAILED)


def is_for_want_of_memory(error: BaseException) -> bool:
    """Whether memory was lacking; TensorFlow raises the same for a disk that is full, below a cache say."""
    exhausted = type(error).__name__ == "ResourceExhaustedError"
    return isinstance(error, MemoryError) or (exhausted and os.strerror(errno.ENOSPC) not in str(error))


def _forget(error: BaseException | None) -> None:
    """Frees what the frames of a traceback hold: a DataLoader then ends its workers, which tidy up."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _leave(code: int) -> NoReturn:
    """Ends as a program does, with its exit handlers, which remove what it and TensorFlow keep in /tmp.

    The analyzer ends a process that hangs in them. Threads of the pipeline may hang or hold locks, so it does
    not wait for these, as a normal exit would.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def read_as_told(program: InputProgram, order: Order, link: Link) -> None:
    """Reads batches while the analyzer says so and reports how many there were.

    Reports have `t` (CLOCK_MONOTONIC, which all processes of a machine share), `active` (seconds of reading
    so far), `samples`, `bytes`, `batches` and `restarts`, all counted from the start. An input that ends is
    built again; its building does not count as reading.
    """
    shard = Shard(order.copies, order.copy_index)
    counts = _Counts()
    batches: Iterator[tuple[Any, ...]] = iter(())
    shapes = Shapes(program.component_names, program.batch_size)
    fresh = True
    link.send(event="ready")  # the program has been loaded, which would disturb copies that are measured
    while _wait_for(link) == RUN:
        if fresh:  # built here and not before: a paused copy must not fill its buffers while others run
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
                if (told := _latest(link)) is not None:
                    if told == END:
                        return
                    break
        counts.pause()
        link.send(event="paused", **counts.values())


class _Counts:
    """What has been read, and how long that took."""

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


def _wait_for(link: Link) -> str:
    told = _last_of(link.receive(None))
    while told in (None, PAUSE):
        told = _last_of(link.receive(None))
    return told or END


def _latest(link: Link) -> str | None:
    told = _last_of(link.receive())
    return None if told == RUN else told


def _last_of(messages: list[dict[str, Any]]) -> str | None:
    return str(messages[-1]["do"]) if messages else None
