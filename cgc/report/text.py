"""The compile report for people: `compile_report.txt`, and the kernel list of a validation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from cgc.kernels.graph import Kernel, KernelGraph
from cgc.manifest import Provenance
from cgc.placement.shapes import AREA_PER_SPEED
from cgc.report.families import sum_families, sum_layer_families
from cgc.report.limit import Reason
from cgc.report.model import CompileReport, PipelinedPart, ReplicaReport, StreamedPart
from cgc.report.suggestions import Suggestion
from cs_toolkit.fabric import Fabric
from cs_toolkit.figures import (
    format_percent,
    format_rate,
    format_share,
    format_table_rate,
    format_whole_percent,
)

_TITLE = "Estimated Overall Performance"
_RULE = "-" * 31
_LABEL_WIDTH = 47
_COLUMNS = (
    "Kernel Name",
    "Samples/s",
    "Compute Samples/s",
    "Transmission Samples/s",
    "Active PEs",
    "Compute Utilization",
)
SUGGESTION_COLUMNS = ("Change", "Samples/s", "Times as fast", "How")
_LAYER_COLUMNS = (
    "Layer",
    "Compute ms",
    "Weights MB",
    "Exposed transfer ms",
    "Activations MB",
    "Copies",
    "Active PEs",
)
_REPLICA_COLUMNS = (
    "Replicas",
    "Samples/s",
    "Samples/s of one",
    "PEs of one",
    "Active PEs",
    "Cycles per sample",
    "Emptying and exchange",
)
_PIPELINED_NOTES = """
Active PEs: share of the fabric that the kernels' rectangles cover.
Compute Utilization: share of the time in which the active PEs run kernel code."""
_STREAMED_NOTES = """
Compute: forward and backward part of the layer, all samples of a step.
Weights: sent to the wafer for the forward part; many are sent again for the backward part.
Exposed transfer: weights and gradients that compute does not hide.
Activations: values kept for the backward pass; all: the peak.
Copies: of the layer, side by side on the wafer; each computes its own samples.
Sets the pace: compute of the layers whose slowest kernel is of this family.
PE time: share of the kernels' PEs, each for as long as its layer computes."""


def render_text(report: CompileReport, made: Provenance | None = None) -> str:
    """Render `compile_report.txt`.

    Args:
        report: all figures.
        made: provenance of the compile, if known.
    """
    fabric, pipelined, streamed = report.fabric, report.pipelined, report.streamed
    sections = [_render_head(report), _render_compilation(report, made)]
    notes = (
        f"All figures are estimates of time on the wafer ({fabric.name}, {fabric.processing_elements:,} PEs, "
        f"{fabric.clock_hz / 1e6:.0f} MHz), not of the simulator."
    )
    if pipelined is not None:
        sections += [_render_kernels(pipelined), _render_families(pipelined)]
        sections += _render_loops([row.kernel for row in pipelined.kernels])
        if pipelined.replicas is not None:
            sections.append(_render_replicas(pipelined.replicas, fabric))
        notes += _PIPELINED_NOTES
    if streamed is not None:
        sections += [_render_times(streamed), _render_layers(report, streamed)]
        sections.append(_render_layer_families(streamed))
        notes += _STREAMED_NOTES
    sections += [render_verdict(report), _render_suggestions(report, (made or Provenance()).front_end)]
    if report.explanations:
        sections.append("\n".join(["Why it is not faster:", *(f"  {one}" for one in report.explanations)]))
    sections += [*report.notices, notes]
    return "\n\n".join(sections) + "\n"


def render_verdict(report: CompileReport) -> str:
    """Render a sentence with what bounds the speed, its figures and its cause."""
    if report.pipelined is not None:
        return _render_pipelined_verdict(report.pipelined, report.fabric)
    assert report.streamed is not None
    return _render_streamed_verdict(report, report.streamed)


def _render_pipelined_verdict(part: PipelinedPart, fabric: Fabric) -> str:
    cycles = part.performance.overall.deltat_cycles
    slowest = part.bottleneck
    if slowest is None:
        of_each_copy = f" of each of the {part.copies:,} copies" if part.copies > 1 else ""
        return (
            f"Verdict: the host input bounds the speed: {fabric.io_links} Ethernet links need "
            f"{cycles:,} cycles per sample{of_each_copy} (transmission)."
        )
    kernel = slowest.kernel
    where = f" at {kernel.source}" if kernel.source else ""
    if part.limit.reason is Reason.ACTIVATIONS:
        return (
            f"Verdict: memory for activations bounds the speed: a sample is admitted every {cycles:,} "
            f"cycles, the kernels would take one every {part.placement.target_cycles:,}; kernel "
            f"{kernel.name}{where} holds the most."
        )
    named = [row.kernel.name for row in part.as_slow[:3]]
    if len(part.as_slow) > len(named):
        named.append(f"{len(part.as_slow) - len(named):,} more")
    others = f" (just as slow: {', '.join(named)})" if named else ""
    line = (
        f"Verdict: kernel {kernel.name}{where}{others} bounds the speed: {part.limit.kind} limits it to "
        f"{cycles:,} cycles per sample"
    )
    if part.limit.reason is Reason.WAFER_FULL:
        share = part.performance.overall.active_pes_percent
        line += f"; the kernels take {_brief(share)} of the fabric, larger ones do not fit together"
    if part.limit.reason is Reason.FASTEST_LAYOUT:
        line += "; no layout of it is faster, whatever its area"
    if part.limit.reason is Reason.AREA_TOO_DEAR:
        line += f"; a percent of speed would cost more than {AREA_PER_SPEED:.0f} percent of area"
    return f"{line}."


def _render_streamed_verdict(report: CompileReport, part: StreamedPart) -> str:
    performance = part.performance
    share = format_share(performance.parts[performance.bound_by] / performance.step_s)
    step = f"{1e3 * performance.step_s:.3g} ms"
    start = f"Verdict: {performance.bound_by} bounds the rate: {share} of a step of {step}"
    helping = next(iter(report.suggestions), None)
    remark = f"; {helping.change}: {format_rate(helping.samples_per_s)} samples/s" if helping else ""
    match performance.bound_by:
        case "compute":
            return f"{start}; layer {part.slowest.placed.name} computes the longest."
        case "latency":
            return f"{start} is the start of {len(part.layers):,} layers, whatever the batch{remark}."
        case "weight bandwidth":
            layer, link = part.most_exposed.placed.name, report.fabric.io_bytes_per_s / 1e9
            return (
                f"{start} are transfers at {link:.0f} GB/s that compute does not hide, most of them in layer "
                f"{layer}{remark}."
            )
        case "activation memory" if performance.fits_unsplit:
            return (
                f"{start} is spent on passes after the first: the program asks for "
                f"{performance.micro_batches:,} micro-batches, of {_mb(performance.activation_bytes)} MB of "
                f"activations each, and the wafer has room for {_mb(performance.activation_room_bytes)} MB."
            )
        case "activation memory":
            return (
                f"{start} is spent on passes after the first: activations of a batch take "
                f"{_mb(performance.activation_bytes)} MB, the wafer has room for "
                f"{_mb(performance.activation_room_bytes)} MB, so a batch is split into "
                f"{performance.micro_batches:,}"
                f"{'; 16-bit activations take less' if report.precision == 'float32' else ''}."
            )
        case "update":
            return f"{start} is the update of the weights at MemoryX{remark}."


def render_kernel_list(graph: KernelGraph) -> str:
    """Render the kernels that a validation found, one row each, with the user's source line."""
    rows = [
        (
            kernel.name,
            kernel.family,
            "generated" if kernel.generated else "matched",
            str(len(kernel.ops)),
            kernel.source or "--",
        )
        for kernel in graph.kernels
    ]
    ops = sum(len(kernel.ops) for kernel in graph.kernels)
    title = f"{len(graph.kernels)} kernels for {ops} ops, {graph.batch_size} samples per step"
    header = ("Kernel Name", "Family", "Origin", "Ops", "Source")
    return "\n\n".join([title, table(header, rows, left=(0, 1, 2, 4)), *_render_loops(graph.kernels)]) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Render a bordered table, without a newline at the end.

    Args:
        header: column titles.
        rows: cells, one for each title.
        left: indices of the columns that are flush left; the others are flush right.
    """
    widths = [max(len(row[index]) for row in (header, *rows)) for index in range(len(header))]
    lines = []
    for row in (header, *rows):
        padded = [
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("| " + " | ".join(padded) + " |")
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def _render_head(report: CompileReport) -> str:
    values: tuple[tuple[str, str], ...] = ()
    share = 100 * report.active_pes / report.fabric.processing_elements
    if report.pipelined is not None:
        overall = report.pipelined.performance.overall
        # Published reports have this head, with whole percentages.
        values = (
            ("Samples/s", format_table_rate(overall.samples_per_s)),
            ("Compute Samples/s", format_table_rate(overall.compute_samples_per_s)),
            ("Transmission Samples/s", format_table_rate(overall.transmission_samples_per_s)),
            ("Active PEs", format_whole_percent(share)),
            ("Compute Utilization", format_whole_percent(overall.compute_utilization_percent)),
        )
    if report.streamed is not None:
        part, micro_batches = report.streamed, report.streamed.performance.micro_batches
        values = (
            ("Samples/s", format_table_rate(report.samples_per_s)),
            ("Execution", "weight streaming"),
            ("Layers", f"{len(part.layers):,}"),
            ("Micro-batches", f"{micro_batches:,} of {part.performance.samples_per_micro_batch:,} samples"),
            ("Recomputed layers", f"{len(part.recomputed):,}"),
            ("Active PEs", format_whole_percent(share)),
        )
    return "\n".join([_TITLE, _RULE, *(_render_label(label, value) for label, value in values)])


def _render_label(label: str, value: str) -> str:
    return f"{label + ':':<{_LABEL_WIDTH}}{value}"


def _render_compilation(report: CompileReport, made: Provenance | None) -> str:
    """Render the known facts about the program, and the settings of its compile."""
    known, fabric = dict((made or Provenance()).lines()), report.fabric
    size = f"{fabric.name}, {fabric.width:,} x {fabric.height:,} PEs at {fabric.clock_hz / 1e6:,.0f} MHz"
    program = {label: known.pop(label) for label in ("Model", "Program", "Command") if label in known}
    lines = {
        **program,
        "Precision": str(report.precision),
        "Batch": f"{report.batch_size:,} samples a step",
        "Fabric": size,
        **known,
    }
    return "\n".join(_render_label(label, text) for label, text in lines.items())


def _render_suggestions(report: CompileReport, front_end: str) -> str:
    """Render a table of the changes that make the step faster, or a sentence on why none does."""
    if not report.suggestions:
        return f"To go faster: {explain_no_change(report)}"
    rows = [
        (one.change, format_table_rate(one.samples_per_s), format_times(one), one.describe_how(front_end))
        for one in report.suggestions
    ]
    return "\n".join(
        ["To go faster, each change by itself, predicted:", table(SUGGESTION_COLUMNS, rows, left=(0, 3))]
    )


def format_times(suggestion: Suggestion) -> str:
    """Format how many times as fast a step would be."""
    return f"{suggestion.times:.2f}" if suggestion.times < 100 else f"{suggestion.times:,.0f}"


def explain_no_change(report: CompileReport) -> str:
    """Render a sentence on the law because of which no change of the table makes a step faster."""
    start = "no change of replicas, precision, batch or sizes is predicted to be faster"
    if report.pipelined is None:
        assert report.streamed is not None
        return f"{start}; {report.streamed.performance.bound_by} bounds the rate."
    law = {
        Reason.HOST_INPUT: "the links to the hosts bound the speed",
        Reason.ACTIVATIONS: "the memory for activations bounds the speed",
        Reason.WAFER_FULL: "the area of the wafer bounds the speed",
        Reason.FASTEST_LAYOUT: f"no layout of {report.pipelined.performance.bottleneck} is faster",
        Reason.AREA_TOO_DEAR: f"a percent of speed costs more than {AREA_PER_SPEED:.0f} percent of area",
    }
    return f"{start}; {law[report.pipelined.limit.reason]}."


def _render_loops(kernels: Iterable[Kernel]) -> list[str]:
    """Render the generated kernels with a line for each loop nest; an empty list if none is generated."""
    lines = []
    for kernel in kernels:
        if kernel.loops is not None:
            lines += [
                f"  {kernel.name} ({kernel.family})",
                *(f"    {nest}" for nest in kernel.loops.describe()),
            ]
    if not lines:
        return []
    return ["\n".join(["Generated kernels, from loop nests; all others are kernels of the library:", *lines])]


def _render_kernels(part: PipelinedPart) -> str:
    """Render a row for each kernel and one for all."""
    overall = part.performance.overall
    named = [(row.kernel.name, row.figures, "") for row in part.kernels]
    rows = [
        (
            name,
            format_table_rate(figures.samples_per_s),
            format_table_rate(figures.compute_samples_per_s),
            format_table_rate(figures.transmission_samples_per_s),
            f"{figures.active_pes}{share}",
            _share(figures.compute_utilization_percent),
        )
        for name, figures, share in [*named, ("overall", overall, f" ({_share(overall.active_pes_percent)})")]
    ]
    return table(_COLUMNS, rows)


def _render_families(part: PipelinedPart) -> str:
    rows = [
        (
            one.family,
            f"{one.kernels}",
            f"{one.active_pes} ({_share(one.active_pes_percent)})",
            format_table_rate(one.samples_per_s),
            _share(one.compute_utilization_percent),
        )
        for one in sum_families(part.kernels)
    ]
    return table(("Family", "Kernels", "Active PEs", "Slowest Samples/s", "Compute Utilization"), rows)


def _render_replicas(replicas: ReplicaReport, fabric: Fabric) -> str:
    """Render rate, area and exchange of the copies, and a table of the counts that were compared."""
    copies, boxes = replicas.copies, replicas.copies.boxes
    title = (
        f"{copies.count:,} copies of the model, {boxes.columns:,} x {boxes.rows:,} boxes of "
        f"{boxes.width:,} x {boxes.height:,} PEs, {copies.samples:,} samples a step in each"
        if copies.count > 1
        else "one copy of the model"
    )
    lines = [f"Replicas: {title}"]
    lines += [f"  {label + ':':<12}{text}" for label, text in summarize_replicas(replicas, fabric)]
    if copies.count > 1:
        lines.append("  The kernels, the verdict and the suggestions are those of one copy.")
    if len(replicas.tried) > 1:
        rows = [
            (
                f"{other.count}",
                format_table_rate(overall.samples_per_s),
                format_table_rate(other.per_replica.samples_per_s),
                f"{other.per_replica.active_pes}",
                f"{overall.active_pes} ({_share(overall.active_pes_percent)})",
                f"{other.per_replica.deltat_cycles}",
                f"{other.exchange.cycles} cycles",
            )
            for other, overall in ((other, other.performance.overall) for other in replicas.tried)
        ]
        lines += ["Numbers of replicas that divide the batch:", table(_REPLICA_COLUMNS, rows, left=())]
    return "\n".join(lines)


def summarize_replicas(replicas: ReplicaReport, fabric: Fabric) -> list[tuple[str, str]]:
    """Return (label, figures) of one copy, all copies and their exchange."""
    copies = replicas.copies
    one, overall, exchange = copies.per_replica, copies.performance.overall, copies.exchange
    area_of_one = f"on {one.active_pes:,} PEs ({_share(one.active_pes_percent)})"
    if copies.count == 1:
        return [
            ("One copy", f"{format_rate(one.samples_per_s)} samples/s {area_of_one}, without an exchange")
        ]
    times = overall.samples_per_s / one.samples_per_s
    lines = [
        ("One copy", f"{format_rate(one.samples_per_s)} samples/s without the exchange, {area_of_one}"),
        (
            "All copies",
            f"{format_rate(overall.samples_per_s)} samples/s, {times:.2f} times the rate of one copy, on "
            f"{overall.active_pes:,} PEs ({_share(overall.active_pes_percent)})",
        ),
    ]
    if not exchange.cycles:
        return [*lines, ("Exchange", "none, an evaluation has no gradients")]
    return [
        *lines,
        (
            "Exchange",
            f"{exchange.gradient_bytes:,} bytes of gradients of each copy, {exchange.exchange_cycles:,} "
            f"cycles ({_us(exchange.exchange_cycles, fabric)}) a step",
        ),
        (
            "Emptying",
            f"{exchange.emptying_cycles:,} cycles ({_us(exchange.emptying_cycles, fabric)}) a step, until "
            f"the last samples have passed; both together {_brief(replicas.exchange_percent)} of a step of "
            f"{copies.step_cycles:,} cycles",
        ),
    ]


def _share(percent: float) -> str:
    """Format a share as published reports do."""
    return format_percent(percent, 2, "%")


def _brief(percent: float) -> str:
    return format_percent(percent, unit="%")


def _us(cycles: int, fabric: Fabric) -> str:
    return f"{1e6 * cycles / fabric.clock_hz:.1f} us"


def _render_times(part: StreamedPart) -> str:
    """Render the parts of a step's time and their sum."""
    step_s = part.performance.step_s
    rows = [
        (name, f"{1e3 * seconds:.3f}", _share(100 * seconds / step_s))
        for name, seconds in [*part.performance.parts.items(), ("step", step_s)]
    ]
    return table(("Time of a step", "ms", "Share"), rows)


def _render_layers(report: CompileReport, part: StreamedPart) -> str:
    """Render a row for each layer and one for all."""
    rows = [
        (
            layer.placed.name + (" (recomputed)" if layer.recomputed else ""),
            f"{1e3 * layer.time.compute_s:.3f}",
            _mb(layer.traffic.weights),
            f"{1e3 * layer.time.exposed_s:.3f}",
            _mb(layer.traffic.stash),
            str(layer.placed.plan.copies.count if layer.placed.plan.copies else 0),
            str(layer.placed.plan.active_pes),
        )
        for layer in part.layers
    ]
    time, traffic = [layer.time for layer in part.layers], [layer.traffic for layer in part.layers]
    rows.append(
        (
            "all",
            f"{1e3 * sum(one.compute_s for one in time):.3f}",
            _mb(sum(one.weights for one in traffic)),
            f"{1e3 * sum(one.exposed_s for one in time):.3f}",
            _mb(part.performance.activation_bytes),
            "",
            str(report.active_pes),
        )
    )
    return table(_LAYER_COLUMNS, rows)


def _render_layer_families(part: StreamedPart) -> str:
    rows = [
        (
            one.family,
            f"{one.kernels:,}",
            f"{one.layers:,}",
            f"{1e3 * one.pace_s:.3f}",
            _share(one.pe_time_percent),
            _share(one.compute_utilization_percent),
        )
        for one in sum_layer_families(part.layers)
    ]
    return table(("Family", "Kernels", "Layers", "Sets the pace ms", "PE time", "Compute Utilization"), rows)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f}"
