"""What the figures of a compile report mean, in the words of its page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Definition:
    """A figure: its name, unit and meaning."""

    term: str
    unit: str
    text: str


DEFINITIONS: Mapping[str, Definition] = MappingProxyType(
    {
        "samples_per_s": Definition(
            "Samples/s",
            "samples per second",
            "How many samples pass through the whole pipeline in a second: the clock divided by the "
            "cycles per sample. Of a kernel: what it would reach alone; the pipeline runs at the speed of"
            " the slowest. Of several copies of the model: of all of them, less the time of their exchange.",
        ),
        "compute_samples_per_s": Definition(
            "Compute samples/s",
            "samples per second",
            "The rate if arithmetic alone limited the speed: the clock divided by the compute cycles.",
        ),
        "transmission_samples_per_s": Definition(
            "Transmission samples/s",
            "samples per second",
            "The rate if moving data alone limited the speed: the clock divided by the transmission cycles.",
        ),
        "active_pes": Definition(
            "Active PEs",
            "processing elements",
            "How many processing elements (PEs: small cores with memory and a router each) the kernels' "
            "rectangles cover, those for adapters and fans and unused ones inside a rectangle included.",
        ),
        "active_pes_percent": Definition(
            "Active PEs, share",
            "% of the fabric",
            "Active PEs divided by all PEs that kernels can be placed on.",
        ),
        "compute_utilization_percent": Definition(
            "Compute utilization",
            "% of the time",
            "The share of the time in which the active PEs run a kernel's code while the pipeline keeps "
            "its pace. The rest is waiting: for slower kernels, for data, or because a PE of the "
            "rectangle has no part of the work.",
        ),
        "deltat_cycles": Definition(
            "Cycles per sample (delta_t)",
            "clock cycles",
            "From one sample leaving the pipeline (of one copy of the model) to the next. The slowest "
            "kernel sets it, or the host's "
            "input if samples arrive more slowly than that, or the memory for activations if samples wait "
            "for room. Compute and transmission overlap, so the "
            "larger one counts.",
        ),
        "compute_cycles": Definition(
            "Compute cycles",
            "cycles per sample",
            "What the busiest PE of the kernel computes for one sample.",
        ),
        "transmission_cycles": Definition(
            "Transmission cycles",
            "cycles per sample",
            "How long the busiest link of the kernel is occupied for one sample; of the pipeline also the"
            " Ethernet links to the hosts.",
        ),
        "memory_per_pe_bytes": Definition(
            "Memory per PE",
            "bytes",
            "Memory that the fullest PE of the kernel needs for code, weights, optimizer state and "
            "activations.",
        ),
        "rectangle": Definition(
            "Rectangle",
            "PEs",
            "Width x height of the kernel and, after @, the column and row of its first PE, counted from "
            "0 at the top left corner of the floorplan.",
        ),
        "family": Definition(
            "Family",
            "",
            "The kind of kernel; it decides how work is spread over a rectangle and what it costs.",
        ),
        "origin": Definition(
            "Origin",
            "",
            "Matched: a kernel of the library fits these operations. Generated: none does, and the kernel"
            " was made from the operations' loops.",
        ),
        "source": Definition(
            "Source line",
            "",
            "The line of your program that the kernel's first operation is from.",
        ),
    }
)
