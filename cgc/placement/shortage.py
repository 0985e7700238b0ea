"""What a fabric lacks for kernels that do not fit, as figures and as a message."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cgc.errors import PlacementError, Shortage
from cgc.kernels.configurations import Configurations, Ints
from cgc.kernels.families import configurations
from cgc.kernels.graph import Kernel
from cs_toolkit.fabric import Fabric

Mask = NDArray[np.bool_]


def fits_on(layouts: Configurations, fabric: Fabric) -> Mask:
    """Which layouts fit on the fabric, turned by 90 degrees or not."""
    upright: Mask = (layouts.width <= fabric.width) & (layouts.height <= fabric.height)
    turned: Mask = (layouts.width <= fabric.height) & (layouts.height <= fabric.width)
    return upright | turned


def room_for_activations(layouts: Configurations, fabric: Fabric) -> Ints:
    """Bytes that a rectangle has free beside what it holds; negative where a PE holds too much."""
    free: Ints = layouts.area * fabric.memory_per_pe_bytes - layouts.held
    room: Ints = np.where(layouts.memory_per_pe_bytes <= fabric.memory_per_pe_bytes, free, -1)
    return room


def _needed_bytes(kernel: Kernel) -> Ints:
    """Bytes of the fullest PE of each layout, with the activations of one sample."""
    layouts = configurations(kernel)
    spread = -(-(layouts.held + kernel.stash_bytes(0)) // layouts.area)
    needed: Ints = np.maximum(layouts.memory_per_pe_bytes, spread)
    return needed


def shortage(kernels: Sequence[Kernel], fabric: Fabric) -> Shortage:
    """The figures of a graph that does not fit, with one sample at a time."""
    needs: dict[tuple[int, int], tuple[int, int]] = {}
    keys = [(id(configurations(kernel)), kernel.stash_bytes(0)) for kernel in kernels]
    for key, kernel in zip(keys, kernels, strict=True):
        if key not in needs:
            needs[key] = _least(kernel, fabric)
    largest = max(range(len(kernels)), key=lambda index: needs[keys[index]][0])
    fullest = max(range(len(kernels)), key=lambda index: needs[keys[index]][1])
    return Shortage(
        needed_pes=sum(needs[key][0] for key in keys),
        available_pes=fabric.processing_elements,
        largest_kernel=kernels[largest].name,
        largest_kernel_pes=needs[keys[largest]][0],
        fullest_kernel=kernels[fullest].name,
        needed_bytes_per_pe=needs[keys[fullest]][1],
        available_bytes_per_pe=fabric.memory_per_pe_bytes,
    )


def _least(kernel: Kernel, fabric: Fabric) -> tuple[int, int]:
    """The least PEs of a kernel, and the least bytes of its fullest PE.

    Where no layout respects the memory, the PEs are what its memory comes to.
    """
    layouts, needed = configurations(kernel), _needed_bytes(kernel)
    overfull = np.maximum(1.0, needed / fabric.memory_per_pe_bytes)
    fitting = overfull == 1.0
    area = np.where(fitting, layouts.area, np.inf) if fitting.any() else np.ceil(layouts.area * overfull)
    usable = fits_on(layouts, fabric)
    return int(area.min()), int(needed[usable].min() if usable.any() else needed.min())


def kernel_too_large(kernel: Kernel, kernels: Sequence[Kernel], fabric: Fabric) -> PlacementError:
    """The error for a kernel of which no layout fits."""
    layouts = configurations(kernel)
    usable = layouts.where(fits_on(layouts, fabric))
    figures = shortage(kernels, fabric)
    if len(usable) == 0:
        smallest = layouts[int(np.argmin(layouts.area))]
        what = f"its smallest rectangle is {smallest.width} x {smallest.height} PEs, available are "
        advice = "split the layer"
    else:
        needed = _needed_bytes(kernel)[fits_on(layouts, fabric)]
        best = usable[int(np.argmin(needed))]
        what = (
            f"spread over {best.width} x {best.height} PEs it needs {needed.min():,} bytes per "
            f"PE, available are {fabric.memory_per_pe_bytes:,} on "
        )
        advice = "make the layer smaller, or use 16-bit parameters"
    size = f"{fabric.width} x {fabric.height} PEs of {fabric.name}"
    return PlacementError(
        f"kernel {kernel.name}{_line_of(kernel)} does not fit: {what}{size}{_together(kernels, figures)}; "
        f"{advice}",
        figures,
        kernel.name,
        kernel.source,
    )


def _together(kernels: Sequence[Kernel], figures: Shortage) -> str:
    if figures.needed_pes <= figures.available_pes or len(kernels) == 1:
        return ""
    times = figures.needed_pes / figures.available_pes
    return (
        f"; all {len(kernels):,} kernels together take at least {figures.needed_pes:,} PEs, {times:.1f} "
        f"times the {figures.available_pes:,} of the fabric"
    )


def graph_too_large(kernels: Sequence[Kernel], fabric: Fabric) -> PlacementError:
    """The error for kernels that fit one by one, but not together."""
    figures = shortage(kernels, fabric)
    largest = next(kernel for kernel in kernels if kernel.name == figures.largest_kernel)
    times = figures.needed_pes / figures.available_pes
    room = f"; {times:.1f} times as many are needed" if times > 1 else "; no way to place all was found"
    return PlacementError(
        f"the {len(kernels):,} kernels do not fit together: at their smallest they take "
        f"{figures.needed_pes:,} PEs, available are {figures.available_pes:,} ({fabric.width} x "
        f"{fabric.height}) on {fabric.name}{room}; the largest is {largest.name}{_line_of(largest)} with "
        f"{figures.largest_kernel_pes:,} PEs; make the model smaller: fewer or narrower layers, shorter "
        "sequences",
        figures,
        largest.name,
        largest.source,
    )


def _line_of(kernel: Kernel) -> str:
    return f" ({kernel.source})" if kernel.source else ""
