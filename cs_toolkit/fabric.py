"""The fabric that kernels are placed on, read from `configs/<name>.yaml` or a file of the user."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from cs_toolkit import config_file
from cs_toolkit.errors import UsageError
from cs_toolkit.loader import ConfigError, load_model
from cs_toolkit.step import Execution

Count = Annotated[int, Field(gt=0)]


class FabricError(UsageError):
    """A fabric is unknown, or its file has errors."""


class Fabric(BaseModel):
    """A rectangle of equal processing elements (PEs) on a two-dimensional mesh, and its host links.

    Attributes:
        name: the system, e.g. "cs2".
        clock_hz: cycles per second of every PE and router.
        width: PEs in x.
        height: PEs in y.
        memory_per_pe_bytes: SRAM of one PE, for code, weights, optimizer state and activations.
        macs_per_pe_per_cycle: 16-bit multiply-accumulates of one PE per cycle.
        data_bits_per_wavelet: payload of a link per cycle.
        io_links: number of Ethernet links to the hosts.
        io_link_bits_per_s: rate of one link, in each direction.
        streaming_width: PEs in x for one layer at a time, if these are more than for pipelined execution.
        streaming_height: the same in y.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    clock_hz: float = Field(gt=0, allow_inf_nan=False)
    width: Count
    height: Count
    memory_per_pe_bytes: Count
    macs_per_pe_per_cycle: Count
    data_bits_per_wavelet: Count
    io_links: Count
    io_link_bits_per_s: float = Field(gt=0, allow_inf_nan=False)
    streaming_width: Count | None = None
    streaming_height: Count | None = None

    @property
    def processing_elements(self) -> int:
        """Number of PEs, 100 % of "Active PEs"."""
        return self.width * self.height

    @property
    def memory_bytes(self) -> int:
        """SRAM of all PEs."""
        return self.processing_elements * self.memory_per_pe_bytes

    @property
    def io_bytes_per_s(self) -> float:
        """Bandwidth of the host links, in each direction."""
        return self.io_links * self.io_link_bits_per_s / 8

    def for_execution(self, execution: Execution) -> Fabric:
        """Return the fabric for an execution mode; weight streaming may have more PEs."""
        if execution == "pipelined":
            return self
        size = {"width": self.streaming_width or self.width, "height": self.streaming_height or self.height}
        return self.model_copy(update=size)

    def input_cycles(self, size_bytes: int) -> int:
        """Return the number of cycles that the host links need for `size_bytes`, at least 1."""
        bits_per_cycle = self.io_links * self.io_link_bits_per_s / self.clock_hz
        return max(1, math.ceil(size_bytes * 8 / bits_per_cycle))


def load_fabric(name_or_path: str | Path = "cs2") -> Fabric:
    """Load a fabric of the toolkit by its name, or another one from a YAML file.

    Raises:
        FabricError: the name is unknown, the file is missing, or a key is missing, unknown or invalid
            (file:line).
    """
    known = fabric_names()
    path = Path(name_or_path)
    if str(name_or_path) not in known and path.suffix not in (".yaml", ".yml"):
        raise FabricError(
            f"fabric is {str(name_or_path)!r}, expected one of {', '.join(known)} or the path of a .yaml file"
        )
    try:
        if str(name_or_path) not in known:
            return load_model(path, Fabric)
        return load_model(config_file(f"{name_or_path}.yaml"), Fabric)
    except ConfigError as error:
        raise FabricError(str(error)) from None


def fabric_names() -> tuple[str, ...]:
    """Return the names of the toolkit's fabrics, sorted."""
    return ("cs1", "cs2")
