"""Writes docs/reference/models.md from results."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from statistics import median
from typing import Any

from benchmarks.zoo.run import STATUSES, VALIDATE, WAYS

_WAYS = {
    "pipelined": "trained",
    "weight_streaming": "trained, weight streaming",
    "workers": "trained, two workers",
    VALIDATE: "checked",
}

TEXT = """# Models of libraries

`make zoo` trains the architectures of three libraries on a simulated CS system, compares each with
its own framework, and writes this page. Results are kept in `docs/reference/models.jsonl`: a run
trains the architectures without a result, can be stopped with Ctrl-C, and continues when it is
started again. `make zoo ZOO="bert t5*"` repeats some of them, `make zoo ZOO=--fresh` deletes all
results and starts from the beginning, `make zoo ZOO=--help` lists other options.

* **Architectures**: every model type of transformers, with a head that has a loss, or its base
  model if there is none; one variant of each family of timm (a module and the first word of a
  name); every class of `keras.applications`.
* **Tiny models**: `benchmarks/zoo/tiny.py` reduces the fields of a configuration by their names, to
  widths of 16 to 128, two layers or one of each type, 128 tokens and images of 32 to 128 pixels.
  Dropout is off, because two frameworks draw different random numbers.
* **Training**: five steps of gradient descent with momentum on random batches with padded samples.
  The loss is the model's own if it accepts labels of the shape of its logits, else the mean square
  of its outputs. The framework starts from the same weights, on a CPU. Some models are trained in
  evaluation mode, in Keras with fixed statistics of batch normalization: those that draw random
  numbers or overflow in training mode, and those where rounding changes updates by more than 2 %,
  for example because few values are normalized.
* **Losses** is the largest relative difference of the loss of a step. **Updates** is the largest
  relative difference of the total change of a tensor. A result is *ok* with losses up to 1e-3 and
  updates up to 2e-2, or up to ten times the effect of rounding if that is larger: of one bit in
  each weight, or of float32 instead of float64 in the framework.
* **Compile** is CPU seconds of the program for tracing, compiling and five steps, without those of
  the CS system. The speeds of the machines that measured them differ by a factor of 2.5.
* *Checked* means that the step was traced and imported, but did not run.
* *Refused* is an error message of the toolkit, *crashed* any other error. *Skipped* architectures
  have no tiny model that their own framework can train; shares do not include them.
* Every tenth architecture has rows for weight streaming and for a job with two workers.

Packages: {packages}.

{coverage}

{summary}

{tables}
"""


def text(results: Sequence[Mapping[str, Any]], totals: Mapping[str, int]) -> str:
    """The page.

    Args:
        results: As of `benchmarks.zoo.run.Result.as_dict`, one for each architecture and way. One that was
            trained is not listed as checked.
        totals: The number of architectures of each library.
    """
    trained = {(r["library"], r["name"]) for r in results if r["way"] in WAYS}
    shown = [r for r in results if r["way"] in WAYS or (r["library"], r["name"]) not in trained]
    names = ("transformers", "timm", "torch", "keras", "tensorflow-cpu")
    packages = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    libraries = sorted({r["library"] for r in shown})
    tables = "\n\n".join(
        _table(library, [r for r in shown if r["library"] == library]) for library in libraries
    )
    return TEXT.format(
        packages=packages, coverage=_coverage(shown, totals), summary=_summary(shown), tables=tables
    )


def _coverage(results: Sequence[Mapping[str, Any]], totals: Mapping[str, int]) -> str:
    """A line for each library: what became of its architectures, each counted once."""
    first = {}
    for result in sorted(results, key=lambda r: list(_WAYS).index(r["way"])):
        first.setdefault((result["library"], result["name"]), result)
    lines = []
    for library, total in totals.items():
        found = [r for (owner, _), r in first.items() if owner == library]
        trained = sum(r["status"] == "ok" and r["way"] != VALIDATE for r in found)
        checked = sum(r["status"] == "ok" and r["way"] == VALIDATE for r in found)
        counts = Counter(r["status"] for r in found)
        others = "".join(
            f", {counts[status]} {status}" for status in STATUSES if status != "ok" and counts[status]
        )
        line = (
            f"* **{library}**: {total} architectures, {trained} trained with the framework's numbers, "
            f"{checked} only checked{others}, {total - len(found)} not tried"
        )
        lines.append(textwrap.fill(line, 100, subsequent_indent="  "))
    return "\n".join(lines)


def _summary(results: Sequence[Mapping[str, Any]]) -> str:
    counted = [status for status in STATUSES if status != "skipped"]
    lines = [
        f"| library | how | {' | '.join(counted)} | share ok | skipped | compile, median | longest |",
        "|---" * (len(counted) + 6) + "|",
    ]
    for library, way in sorted({(r["library"], r["way"]) for r in results}, key=_place):
        part = [r for r in results if (r["library"], r["way"]) == (library, way)]
        counts = Counter(r["status"] for r in part)
        tried = len(part) - counts["skipped"]
        seconds = [r["compile_s"] for r in part if r["status"] == "ok"]
        cells = [
            library,
            _WAYS[way],
            *(str(counts[status]) for status in counted),
            f"{counts['ok'] / tried:.0%}" if tried else "",
            str(counts["skipped"]),
            f"{median(seconds):.1f} s" if seconds else "",
            f"{max(seconds):.1f} s" if seconds else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _place(key: tuple[str, str]) -> tuple[str, int]:
    return key[0], list(_WAYS).index(key[1])


def _table(library: str, results: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        f"## {library}",
        "",
        "| architecture | how | class and loss | result | losses | updates | compile |",
        "|---|---|---|---|---|---|---|",
    ]
    ordered = sorted(results, key=lambda r: (r["name"].lower(), list(_WAYS).index(r["way"])))
    for result in ordered:
        status = result["status"]
        if status == "skipped":
            continue
        cells = [
            result["name"],
            _WAYS[result["way"]],
            result["about"],
            status if status == "ok" else f"{status}: {_one_line(result['reason'])}",
            _figure(result["losses"]),
            _figure(result["updates"]),
            "" if result["compile_s"] is None else f"{result['compile_s']:.1f} s",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    skipped = {r["name"]: _one_line(r["reason"])[:120] for r in ordered if r["status"] == "skipped"}
    if skipped:
        lines += ["", "| skipped | reason |", "|---|---|"]
        lines += [f"| {name} | {reason} |" for name, reason in skipped.items()]
    return "\n".join(lines)


def _one_line(reason: str) -> str:
    """The reason in a table: operations by name where the first line only announces them."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or [""]
    if lines[0].endswith(":") and len(lines) > 1:
        operations = [line.partition(": ")[0] for line in lines[1:] if not line.startswith("what to do")]
        lines = ["no rule for " + ", ".join(dict.fromkeys(operations))]
    return _escape(without_folders(lines[0]))[:240]


def without_folders(text: str) -> str:
    """Leave out the folders of this machine before the files of the zoo."""
    return _FOLDERS.sub("", text)


_FOLDERS = re.compile(r"/\S*/(?=benchmarks/zoo/)")
"""Folders of this machine before a path."""


def _escape(line: str) -> str:
    return line.replace("|", "/").replace("<", "(").replace(">", ")").replace("[", "(").replace("]", ")")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"
