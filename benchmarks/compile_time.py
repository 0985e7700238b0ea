"""Compile time of BERT-base training, with and without a cached artifact, and by stage.

    python -m benchmarks.compile_time            # the rows of `make bench`
    python -m benchmarks.compile_time --stages   # seconds and microseconds per op of every stage and pass

The step is traced by TensorFlow once; a measurement begins with the module and ends with the artifact on
disk, the export of the executable included. What XLA does with the executable is the CS system's time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp

from benchmarks.example_step import example_step
from benchmarks.harness import Row
from cgc.cirh.interface import graph_function
from cgc.driver import compile_step
from cgc.execution.compilation import CompileOptions
from cgc.passes import DEFAULT_PIPELINE
from cgc.passes.pipeline import run_pipeline
from cs_toolkit.fabric import load_fabric

ROUNDS = 3
TARGET_S = 20.0
CACHED_TARGET_S = 1.0


def bert_base() -> ModuleOp:
    """The training step of BERT-base: 12 layers, sentences of 128 tokens."""
    return example_step("bert", "params_bert_base.yaml")


def rows() -> list[Row]:
    """A compilation from nothing and one that finds its artifact."""
    module = bert_base()
    new, cached = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            compilation = partial(_compile, module, Path(folder))
            new.append(_seconds(compilation))
            cached.append(_seconds(compilation))
    name = f"compiling BERT-base training, {_ops(module):,} ops"
    return [
        _row(name, new, TARGET_S),
        _row(f"{name}, cached", cached, CACHED_TARGET_S),
        *(Row(f"pass `{n}`", f"{us:.0f} us per op", "", None, "", True) for n, us in passes(module)),
    ]


def stages() -> str:
    """Seconds and microseconds per op of every stage of one compilation, and microseconds of every pass."""
    module = bert_base()
    ops = _ops(module)
    begun: list[tuple[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        compile_step(
            module,
            Path(folder),
            CompileOptions(),
            load_fabric(),
            lambda stage, _done, _total: begun.append((stage, time.perf_counter())),
        )
    lines = [f"{ops:,} ops"]
    for (stage, start), (_, end) in pairwise(begun):
        lines.append(_stage_line(stage, end - start, ops))
    lines += [f"  {name:<26}{us:20.1f} us/op" for name, us in passes(module)]
    return "\n".join(lines)


def passes(module: ModuleOp) -> list[tuple[str, float]]:
    """Name and microseconds per op of each pass of the default pipeline; the module is not changed."""
    found = []
    rewritten = module.clone()
    for name in DEFAULT_PIPELINE.split(","):
        ops = _ops(rewritten)
        found.append((name, _seconds(partial(run_pipeline, rewritten, name)) / ops * 1e6))
    return found


def _compile(module: ModuleOp, folder: Path) -> None:
    compile_step(module, folder, CompileOptions(), load_fabric())


def _seconds(function: Callable[[], None]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _ops(module: ModuleOp) -> int:
    return len(graph_function(module).body.block.ops)


def _row(name: str, seconds: list[float], target_s: float) -> Row:
    median = statistics.median(seconds)
    return Row(name, f"{median:.2f} s", "", None, f"< {target_s:g} s", median < target_s)


def _stage_line(name: str, seconds: float, ops: int) -> str:
    return f"{name:<28}{seconds:8.2f} s{seconds / ops * 1e6:10.1f} us/op"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--stages", action="store_true", help="every stage and pass of one compilation")
    if parser.parse_args().stages:
        print(stages())
    else:
        for row in rows():
            print(row.name, row.ours, row.target)


if __name__ == "__main__":
    main()
