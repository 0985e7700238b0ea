"""Run all benchmarks, print their tables, and write the pages on benchmarks and on the performance model."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from textwrap import fill

from benchmarks import (
    checkpoints,
    commands,
    compile_time,
    fc_mnist,
    input_analysis,
    launcher,
    performance_model,
    placement,
    recurrences,
    slurm_launch,
    step_time,
    streaming_offload,
    streaming_rates,
    streaming_scaling,
    streaming_throughput,
    torch_examples,
    torch_step_time,
    training_checkpoints,
    training_jobs,
    weight_streaming,
)
from benchmarks.harness import Row, machine, table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "benchmarks.md"


GROUPS: dict[str, Callable[[], list[Row]]] = {
    "launcher": launcher.rows,
    "commands": commands.rows,
    "slurm": slurm_launch.rows,
    "step_time": step_time.rows,  # first of those that use TensorFlow: it sets the threads
    "compile_time": compile_time.rows,
    "recurrences": recurrences.rows,
    "placement": placement.rows,
    "checkpoints": checkpoints.rows,
    "torch_step_time": torch_step_time.rows,
    "torch_examples": torch_examples.rows,
    "weight_streaming": weight_streaming.rows,
    "streaming_scaling": streaming_scaling.rows,
    "streaming_offload": streaming_offload.rows,
    "streaming_rates": streaming_rates.rows,
    "data_plane": streaming_throughput.rows,
    "engine": fc_mnist.engine_rows,
    "jobs": training_jobs.rows,
    "training_checkpoints": training_checkpoints.rows,
    "input_analysis": input_analysis.rows,
}

TEXT = """# Benchmarks

`make bench` writes this page; run it again to measure your machine. The contenders of a row run
interleaved, in rounds. Figures are medians, and a ratio is the median of the ratios of all rounds,
so that other load on the machine affects both sides equally. Absolute figures are of this machine:

{machine}

{table}

* *data plane*: sender processes and one receiver over loopback, which keeps 4 to 48 batches of each
  sender. CPU seconds are those of all processes. The contenders compute no digests and pass nothing
  to a consumer; with TLS, plain sockets are blocking ones of Python's `ssl`. Arrow Flight needs
  `pip install pyarrow`, which the toolkit does not depend on.
  `python -m benchmarks.streaming_throughput --sizes=1MiB` measures only some rows.
* *Slurm*: a private cluster of emulated nodes on this machine. The contender is srun with the same
  components, nodes and tasks. `csrun_wse` starts an agent next to each task and waits until all are
  connected.
* *compile_only, training of one step*: the whole command as a user types it, in a new folder, until
  it exits. The parts of a compile end with the lines "compiling for" (launcher,
  imports, parameters), "Starting Cerebras Compilation" (Input Function Report, `model_fn` in
  TensorFlow, import of its graph) and "Cerebras Compilation Completed"; the rest is the report on
  the screen and the exit of the process. CPU seconds are those of all processes of the command.
  `python -m benchmarks.commands` measures only these rows.
* *compiling*: from the traced step to the artifact on disk, including the export of the executable.
  The time that XLA needs for the executable belongs to the CS system.
  `python -m benchmarks.compile_time --stages` prints every stage and pass.
* *until it trains*: CPU seconds to trace a PyTorch network with unrolled time steps, to compile it
  and to program the engine, including the work of XLA; *unrolled* is without loops for its time
  steps.
* *engine fed from memory*: the compiled step in the engine of the CS system, without a network,
  against the same graph in a plain `tf.compat.v1` session and in `tf.function(jit_compile=True)`.
  All read batches from memory.
* *training step*: milliseconds of one step of an example program with its tiny parameter file, and
  of programs of each family that are 10 to 100 times as large (names that end in `_mid`, sizes in
  `benchmarks/step_time.py`). The compiled program in the engine of the CS system is compared with
  the same model_fn in a session, in `tf.function` and in `tf.function(jit_compile=True)`, all with
  batches in memory and on the same cores. The ratio is our time over the best of the others, so
  less is better.
* *ISPD 2020*: graphs of the wafer-scale placement contest. The objective is the time of the slowest
  kernel plus the weighted length of the wires. The area bound is the time at which the smallest
  rectangles fill the fabric. With a wire weight of 4 no solution may come near it, so the target is
  relative to the bound of time and wires if that is higher.
* *placing*: rectangles for all kernels of a synthetic Transformer on a CS-2; a wire is an edge of
  its graph.
* *checkpoint*: `cstorch.save` to disk and `load` from the page cache, float32. The ratio is to
  PyTorch; safetensors is listed for comparison. The GPT has 740 tensors. HDF5 needs about 0.15 ms
  to save and to load a tensor, PyTorch 0.04 and 0.07 ms, so thousands of tensors of a few kilobytes
  take longer than with PyTorch.
* *a checkpoint every 100 steps*: samples per second of an example program against those of the same
  program with one checkpoint at the end. The CS system runs on the same cores.
  `python -m benchmarks.training_checkpoints` measures only these rows.
* *PyTorch training step*: one core for all; AdamW and clipping at 1.0, PyTorch's AdamW fused.
* *capturing*: from the call of a PyTorch training step to the module that the compiler gets.
* *PyTorch, loss after the training*: example programs as a user types them, `--mode=train` and
  `--mode=eval`, with a CS system on the same cores. The loss is that of an evaluation on data that
  is not used for training.
* *weight streaming*: GPTs of width 512 and growing depth, each measured in a separate process: the
  time of a step from the first call to its last output, and the largest resident memory of the
  wafer's process, including the work of XLA, against the pipelined execution of the same step.
  MemoryX is another process on the same cores; its CPU time is included. *Transfer that compute
  hides*: the rest is an upper bound of the time for which weights are in transit and the wafer is
  idle; the first layer of a step waits for its update. *Activations recomputed*: every layer
  recomputes its forward part in the backward pass, so that one activation per layer is stored;
  otherwise all that the backward pass reads are stored. *Compiling*: CPU seconds of the compiler,
  from the traced step to the artifact, in a new process. Equal layers share their kernels, their
  places on the wafer and their executables, and repeated blocks are rewritten once; the time to
  read, cut and print the ops of the step still grows with the number of layers. Before that,
  TensorFlow traces the user's Python and the graph is imported: the seconds in parentheses. *Update
  rate*: bytes of weights, moments and gradients that AdamW must read and write per second, against
  a STREAM triad of XLA on the same cores; the median of five processes, because the triad of one
  may be 1.7 times that of another.
* *efficiency of communication*: the systems of a group share the cores of this machine, so N
  systems take at least N times the CPU time of one. The excess is weights that are sent to each
  system, sums of gradients, and waiting threads. *192 systems on paper*: SwarmX sums in a tree, so
  each doubling of the number of systems is assumed to add the same time to a step, the mean of the
  measurements here; the batch per system is constant.
* *weight streaming on paper*: the compiler's estimate for one CS-2, of the whole network with
  embeddings and head, against published training rates. N systems are assumed to have N times the
  rate of one. The latency of a layer was fitted to steps with batches of 128, nothing else was.
  Releases and sites differ by about 25 %.
* *weight streaming against offload*: an example program in PyTorch. FSDP2 gathers the weights of a
  block before it computes, and offloads them to memory. Both use all cores; waiting threads of
  PyTorch sleep.
* *job, N worker(s)*: a job of `csrun_wse` on this machine, with the steps of an example program and
  without checkpoints. Its engine computes with one thread on a core that no other process of the
  job uses, and so does the contender, the same artifact with batches in memory. The system's own
  process, the chief and the workers share the other cores. *Input wait* is the fraction of the time
  in which the engine waited for a batch: then the workers have too few cores. On shared cores a job
  cannot be faster than the sum of the CPU times allows. *TLS* compares two systems that take all
  batches through sockets. `python -m benchmarks.training_jobs` measures only these rows.
* *input analysis*: the whole command `cs_input_analyzer` on an example program with its default
  parameters. *Instrumented* is a copy of an analysis, which checks its batches and reports them to
  a monitoring process; the *bare loop* only counts. Both read one iterator in turns in one process,
  because the choices of autotune differ between processes by more than the effect.
* *input, slowest is*: pipelines in which one stage costs several times as much as the others
  (`benchmarks/input_pipelines.py`): the stage that each tool names as the slowest, the time until
  it does, and its advice. Ours takes the function and measures layouts too. TensorFlow's profiler
  needs a loop that reads, which here does nothing else. The page *input_pipeline_analyzer* is made
  from its trace (package `xprof`, only if it is installed), and the operation with the largest self
  time is taken; `Root` and `Prefetch` only wait. The profiler also covers a whole training run with
  its device, which is not compared here.
"""


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("group", nargs="*", help=f"one of {', '.join(GROUPS)}; all by default")
    wanted = parser.parse_args().group
    if unknown := sorted(set(wanted) - GROUPS.keys()):
        parser.error(f"no group {', '.join(unknown)}; expected some of {', '.join(GROUPS)}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    rows: list[Row] = []
    for name, group in GROUPS.items():
        if not wanted or name in wanted:
            rows += group()
            print(table(rows).splitlines()[-1], flush=True)
    print(f"\n{machine()}\n\n{table(rows)}")
    before = PAGE.read_text(encoding="utf-8") if wanted else ""
    PAGE.write_text(TEXT.format(machine=fill(machine(), 100), table=updated(before, rows)), encoding="utf-8")
    if not wanted:
        print(f"\n{performance_model.run()}")


def updated(page: str, rows: list[Row]) -> str:
    """The table with new rows: those of the page with the same names are replaced, others follow at its end.

    Args:
        page: as it was written before; empty for none.
        rows: what was measured now.
    """
    measured = table(rows).splitlines()
    old = [line for line in page.splitlines() if line.startswith("|")]
    known, new = set(map(_name, old)), {_name(line): line for line in measured}
    kept = [new.get(_name(line), line) for line in old]
    return "\n".join(kept + [line for line in measured if _name(line) not in known])


def _name(line: str) -> str:
    return line.split("|")[1].strip()


if __name__ == "__main__":
    main()
