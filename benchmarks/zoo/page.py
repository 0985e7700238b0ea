"""Writes docs/models.md from results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from statistics import median
from typing import Any

TEXT = """# Models of libraries

Written by `make zoo`, which trains the architectures of three libraries and compares them with
their own framework.

* Every type of model of transformers with a head that has a loss, where it has one, else its base
  model; one variant of each family of timm; every class of `keras.applications`.
* A configuration is shrunk by a rule on the names of its fields (`benchmarks/zoo/tiny.py`): widths
  of 16 to 128, two layers or one of each type, 128 tokens, images of 32 to 128 pixels. Random numbers
  are switched off.
* Five steps of gradient descent with momentum, from the same weights and batches, padded samples
  among them. The loss is the model's own where random labels fit it, else the mean square of its
  outputs.
* *Losses* is the largest relative difference of the loss of a step. *Updates* is the largest of what
  all steps have added to a tensor. *Compile* is the CPU seconds of the program: tracing, compiling
  and the five steps, without those of the CS system.
* Every tenth architecture also trains by weight streaming (*ws*), and in a job of `csrun_wse` with
  two workers (*2w*).

Packages: {packages}.

{summary}

{tables}
"""


def text(results: Sequence[Mapping[str, Any]]) -> str:
    """The page.

    Args:
        results: As of `benchmarks.zoo.run.Result.as_dict`, one for each architecture and way.
    """
    packages = ", ".join(
        f"{name} {metadata.version(name)}"
        for name in ("transformers", "timm", "torch", "keras", "tensorflow-cpu")
    )
    libraries = list(dict.fromkeys(result["library"] for result in results))
    tables = "\n\n".join(
        _table(library, [r for r in results if r["library"] == library]) for library in libraries
    )
    return TEXT.format(packages=packages, summary=_summary(results), tables=tables)


def _summary(results: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| library | way | trained | ok | refused | wrong | crashed | timeout | skipped | compile, median |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for library, way in dict.fromkeys((r["library"], r["way"]) for r in results):
        part = [r for r in results if (r["library"], r["way"]) == (library, way)]
        counts = Counter(r["status"] for r in part)
        trained = len(part) - counts["skipped"]
        share = f" ({counts['ok'] / trained:.0%})" if trained else ""
        seconds = [r["compile_s"] for r in part if r["status"] == "ok"]
        cells = [str(counts[status]) for status in ("refused", "wrong", "crashed", "timeout", "skipped")]
        middle = f"{median(seconds):.1f} s" if seconds else ""
        lines.append(
            f"| {library} | {way} | {trained} | {counts['ok']}{share} | {' | '.join(cells)} | {middle} |"
        )
    return "\n".join(lines)


def _table(library: str, results: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        f"## {library}",
        "",
        "| architecture | trained | result | losses | updates | compile |",
        "|---|---|---|---|---|---|",
    ]
    ways = {"pipelined": "", "weight_streaming": " (ws)", "workers": " (2w)"}
    for result in sorted(results, key=lambda r: (r["name"], list(ways).index(r["way"]))):
        status = result["status"]
        reason = "" if status == "ok" else f": {_one_line(result['reason'])}"
        seconds = "" if result["compile_s"] is None else f"{result['compile_s']:.1f} s"
        lines.append(
            f"| {result['name']}{ways[result['way']]} | {result['about']} | {status}{reason} | "
            f"{_figure(result['losses'])} | {_figure(result['updates'])} | {seconds} |"
        )
    return "\n".join(lines)


def _one_line(reason: str) -> str:
    line = next(iter(reason.strip().splitlines()), "")
    return line.replace("|", "\\|").replace("<", "&lt;")[:200]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"
