"""cs_input_analyzer: time of an analysis, cost of its instrumentation, compared with TensorFlow's profiler.

    python -m benchmarks.input_analysis [time] [overhead] [peers] [NAME ...]

A name of an example program or of a pipeline chooses among the rows.

The peer is the profiler's page "input_pipeline_analyzer", read from a trace with the package xprof. That is
needed only here (`pip install xprof`; it may be in another environment, whose Python XPROF_PYTHON names);
without it the profiler's side of the table is empty.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, table
from benchmarks.input_reader import PARAMS, RATES_VARIABLE

ROOT = Path(__file__).resolve().parent.parent
ANALYZER = str(ROOT / "bin" / "cs_input_analyzer")
MOST_S = 60.0
MOST_OVERHEAD = 0.03
ROUNDS = 61
WARM_UP_ROUNDS = 5
OVERHEAD_MODELS = ("fc_mnist", "bert")
"""One with large batches that cost little, one with many small components."""


@dataclass(frozen=True)
class Truth:
    """Expectations about a pipeline of `input_pipelines`.

    Attributes:
        stage: The slowest one, as our analysis names it.
        operation: A pattern of the path by which the profiler names it.
    """

    stage: str
    operation: str


TRUTH = {
    "computing_map": Truth("map", r"Map\w*$"),
    "after_batch": Truth("map_2", r"Root::Prefetch::(Parallel)?Map(V2)?$"),
    "waiting_files": Truth("interleave", r"Interleave"),
    "second_of_two": Truth("map_2", r"Zip\[1\]::.*Map"),
    "large_records": Truth("batch", r"Batch\w*$"),
    "photographs": Truth("map_2", r"Root::Prefetch(::Batch\w*)?::(MapAndBatch|ParallelMapV2)$"),
    "generator": Truth("from_generator", r"Generator$"),
    "cached": Truth("map_2", r"Root::Prefetch(::Batch\w*)?::(MapAndBatch|ParallelMapV2)$"),
    "filtered": Truth("map", r"Filter::.*Map"),
}
_WAITING = re.compile(r"Iterator::Root(::Prefetch)?$")
"""What the reader of a pipeline waits in: not a stage that could be made faster."""


# -- time of an analysis ---------------------------------------------------------------------------------


def time_rows(names: Collection[str] = ()) -> list[Row]:
    """The whole command on every example program."""
    return [_time_row(model) for model in names or PARAMS]


def _time_row(model: str) -> Row:
    program = str(ROOT / "models" / model / "tf" / "run.py")
    with tempfile.TemporaryDirectory() as folder:
        found, seconds = _analysis(
            ["--target-samples-per-s=1e6", "python", program, "--mode=train", "-o", folder], folder
        )
    findings = len(found["findings"])
    return Row(
        f"input analysis of {model}",
        f"{seconds:.0f} s, {len(found['stages'])} stages, {findings or 'no'} findings",
        "",
        None,
        f"< {MOST_S:.0f} s",
        seconds < MOST_S and not findings,
    )


def _analysis(words: list[str], folder: str) -> tuple[dict[str, Any], float]:
    """The JSON of an analysis, and the seconds of the whole command."""
    file = Path(folder) / "analysis.json"
    began = time.monotonic()
    done = subprocess.run(
        [ANALYZER, f"--json={file}", *words], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"cs_input_analyzer {' '.join(words)} failed:\n{done.stderr}")
    return json.loads(file.read_text(encoding="utf-8")), time.monotonic() - began


# -- what the instrumentation costs ----------------------------------------------------------------------


def overhead_rows(names: Collection[str] = ()) -> list[Row]:
    """The rate of an input function that the analyzer reads, against a bare loop over it."""
    return [_overhead_row(model) for model in names or OVERHEAD_MODELS]


def _overhead_row(model: str) -> Row:
    pairs = _rates(model)[WARM_UP_ROUNDS:]
    overhead = statistics.median(bare / ours for bare, ours in pairs) - 1
    bare, instrumented = (statistics.median(values) for values in zip(*pairs, strict=True))
    return Row(
        f"input analysis: reading {model}'s input instrumented",
        f"{instrumented:,.0f} samples/s, overhead {100 * overhead:.1f} %",
        f"bare loop {bare:,.0f} samples/s",
        None,
        f"< {100 * MOST_OVERHEAD:.0f} %",
        overhead < MOST_OVERHEAD,
    )


def _rates(model: str) -> list[tuple[float, float]]:
    """Rates of a bare loop and of a copy of an analysis, which this process watches over, interleaved."""
    from input_analyzer.measure.copies import Copies, Launch
    from input_analyzer.measure.link import RUN, Order

    words = (sys.executable, "-m", "benchmarks.input_reader", model)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rates"
        environment = {**os.environ, "PYTHONPATH": str(ROOT), RATES_VARIABLE: str(file)}
        launch = Launch(words, environment, 120.0, None, "here")
        with Copies(launch, [Order(purpose="copy", socket="")]) as copies:
            while copies.all[0].link is None:
                list(copies.messages())
            copies.all[0].send_command(RUN)
            lines: list[str] = []
            while len(lines) < WARM_UP_ROUNDS + ROUNDS:
                list(copies.messages())
                lines = file.read_text().splitlines() if file.exists() else []
        return [(float(line.split()[0]), float(line.split()[1])) for line in lines[:-1]]


# -- TensorFlow's profiler -------------------------------------------------------------------------------


def peer_rows(names: Collection[str] = ()) -> list[Row]:
    """Both on pipelines whose slowest stage is known, and how often each named it."""
    from benchmarks.input_pipelines import FOLDER_VARIABLE, write_photographs

    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER_VARIABLE] = folder
        write_photographs(Path(folder))
        pairs = [_peer_row(name, TRUTH[name]) for name in names or TRUTH]
    rows = [row for row, _ in pairs]
    ours = sum(row.met for row in rows)
    known = [right for _, right in pairs if right is not None]
    theirs = f"TensorFlow's profiler {sum(known)} of {len(known)}" if known else ""
    every = len(rows)
    return [*rows, Row("slowest stage named", f"{ours} of {every}", theirs, None, f"{every}", ours == every)]


def _peer_row(name: str, truth: Truth) -> tuple[Row, bool | None]:
    with tempfile.TemporaryDirectory() as folder:
        found, seconds = _analysis([f"{ROOT / 'benchmarks' / 'input_pipelines.py'}:{name}"], folder)
    theirs = _profile(name)
    stage = found["bottleneck"]["stage"]
    row = Row(
        f"input, slowest is `{truth.stage}`: {name}",
        f"`{stage}`, {seconds:.0f} s; {advice(found)}",
        "" if theirs is None else theirs.text(truth),
        None,
        "named",
        stage == truth.stage,
    )
    return row, None if theirs is None else theirs.right(truth)


def advice(found: dict[str, Any]) -> str:
    """The recommendations of an analysis about its bottleneck with their gains, and the layout."""
    stage = next(one for one in found["stages"] if one["name"] == found["bottleneck"]["stage"])
    called = stage["op"], stage["source"]
    about = [_format_recommendation(one) for one in found["findings"] if (one["op"], one["source"]) == called]
    listed = "; ".join(dict.fromkeys(about)) or "nothing to change in it"
    return "{0}; layout {nodes} x {tasks_per_node} x {cpus_per_task}".format(
        listed, **found["recommendation"]
    )


def _format_recommendation(finding: dict[str, Any]) -> str:
    gain = finding["gain"]
    told = f"{gain['kind'].replace('-', ' ')}: {gain['text']}" if gain else "gain not known"
    return f"`{finding['recommended']}` ({told})"


@dataclass(frozen=True)
class Profiled:
    """The findings of the profiler.

    Attributes:
        operation: The one with the largest self time, except those that only wait.
        conclusion: The sentence that its page begins with.
        advice: Its hint for the kind of work that took longest.
        seconds: Of both processes, the one that reads and the one that analyzes.
    """

    operation: str
    conclusion: str
    advice: str
    seconds: float

    def right(self, truth: Truth) -> bool:
        """Return whether it is the slowest stage."""
        return re.search(truth.operation, self.operation) is not None

    def text(self, truth: Truth) -> str:
        """A cell of the table."""
        path = self.operation.removeprefix("Iterator::Root::")
        bound = next(iter(re.findall(r"(\w+) input-bound", self.conclusion)), "not")
        verdict = "" if self.right(truth) else " (wrong)"
        hint = f'"{self.advice}" (gain not told)' if self.advice else "nothing to change"
        return f"profiler: `{path}`{verdict}, {self.seconds:.0f} s; {bound.lower()} input-bound; {hint}"


def _profile(name: str) -> Profiled | None:
    """None where the package that reads a trace is not installed."""
    python = os.environ.get("XPROF_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import xprof"], capture_output=True, check=False).returncode:
        return None
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        words = ["-m", "benchmarks.input_profile"]
        subprocess.run(
            [sys.executable, *words, "record", name, folder],
            cwd=ROOT,
            env=quiet,
            capture_output=True,
            check=True,
        )
        done = subprocess.run(
            [python, *words, "analyze", folder],
            cwd=ROOT,
            env=quiet,
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = time.monotonic() - began
    found = json.loads(done.stdout)
    operations = [path for path, _ in found["operations"] if not _WAITING.match(path)]
    return Profiled(operations[0], found["conclusion"], found["advice"], seconds)


GROUPS: dict[str, Callable[[Collection[str]], list[Row]]] = {
    "time": time_rows,
    "overhead": overhead_rows,
    "peers": peer_rows,
}


def rows() -> list[Row]:
    """All of them."""
    return [row for group in GROUPS.values() for row in group(())]


_KNOWN: dict[str, Collection[str]] = {"time": PARAMS, "overhead": PARAMS, "peers": TRUTH}
"""By group the names that choose among its rows."""


def chosen(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the rows that arguments select, by group; all rows of a group if none is selected.

    Names without a group choose in all groups that know them.

    Raises:
        ValueError: a word is neither a group nor a name of a row of a group that is chosen.
    """
    groups = [word for word in words if word in GROUPS] or list(GROUPS)
    names = [word for word in words if word not in GROUPS]
    known = list(dict.fromkeys(name for group in groups for name in _KNOWN[group]))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"unknown word {unknown[0]!r}; expected {', '.join(GROUPS)}, or of {', '.join(groups)} one of "
            f"{', '.join(known)}"
        )
    rows = {group: [name for name in names if name in _KNOWN[group]] for group in groups}
    return {group: of_group for group, of_group in rows.items() if of_group or not names}


def main() -> None:
    """Prints the rows of the groups that are named, or of all."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.input_analysis",
        description="Measures cs_input_analyzer; see the module's text.",
    )
    help_text = "time, overhead, peers; a name of an example program or of a pipeline; without any: all"
    parser.add_argument("words", nargs="*", metavar="GROUP|NAME", help=help_text)
    try:
        groups = chosen(parser.parse_args().words)
    except ValueError as error:
        parser.error(str(error))
    for group, names in groups.items():
        print(table(GROUPS[group](names)), flush=True)


if __name__ == "__main__":
    main()
