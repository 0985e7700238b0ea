"""Errors of the graph compiler.

Messages contain the actual and the expected value, and advice. `exit_code` is the exit status of a command
line tool that ends with the error: 1 for an expected failure, 2 for bad usage or input.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.utils.exceptions import VerifyException

from cs_toolkit.errors import ProgramFault, ToolkitError, WriteError


class CompileError(ToolkitError):
    """Base of all errors that the compiler raises on purpose."""


class InvalidOpError(CompileError, VerifyException):
    """An op whose operands, attributes or results do not fit together.

    It is a `VerifyException` as well, so that xDSL's verifier and parser report it at the op.
    """


class InvalidModuleError(CompileError):
    """A module that breaks a rule which no single op can check: names, aliases, the one `@graph` function."""


class UnsupportedTypeError(CompileError):
    """An element type or a shape that CIRH does not have."""


class ModuleSyntaxError(CompileError):
    """Text that is not a module; the message starts with file:line:column."""

    exit_code = 2


class PipelineError(CompileError):
    """An unknown pass, or an option that a pass does not have."""

    exit_code = 2


class GraphImportError(CompileError):
    """A framework's graph that cannot be imported; the message lists all its problems.

    Attributes:
        faults: one line of text per problem.
        details: the same as objects.
    """

    def __init__(
        self, message: str, faults: tuple[str, ...] = (), details: tuple[ProgramFault, ...] = ()
    ) -> None:
        self.faults = faults or (message,)
        self.details = details
        super().__init__(message)


class UnsupportedOpsError(GraphImportError):
    """Operations of the graph that the compiler does not know."""


class GraphTypeError(GraphImportError, UnsupportedTypeError):
    """Tensors of the graph with an element type that CIRH does not have."""


class DynamicShapeError(GraphImportError):
    """Tensors of the graph whose shape is not known before the run."""


class LoweringError(CompileError):
    """An op, or a value in it, that the device cannot execute."""


class CorruptArtifactError(CompileError):
    """An artifact directory with something missing, changed, unreadable or of another format."""


class ArtifactWriteError(CompileError, WriteError):
    """An artifact that could not be written (disk full, no permission); no partial artifact is left."""

    def __init__(self, message: str, what_to_do: str) -> None:
        self.fault_fields = {"what_to_do": what_to_do}
        super().__init__(f"{message}; {what_to_do}")


class ArtifactLockError(CompileError):
    """Another task has been compiling the same program for longer than the timeout."""


class KernelGraphError(CompileError):
    """Kernels that cannot be sized: an unknown family, a missing or impossible size, a duplicate name."""


@dataclass(frozen=True)
class Shortage:
    """Resources that a kernel graph needs, and those of the fabric.

    Attributes:
        needed_pes: PEs of all kernels at their smallest and slowest, on a fabric of any size with the same
            memory per PE.
        available_pes: PEs of the fabric.
        largest_kernel: name of the kernel that needs the most PEs.
        largest_kernel_pes: number of its PEs.
        fullest_kernel: name of the kernel that needs the most memory per PE when it is spread over as much of
            the fabric as it can use.
        needed_bytes_per_pe: that memory per PE.
        available_bytes_per_pe: memory of a PE.
    """

    needed_pes: int
    available_pes: int
    largest_kernel: str
    largest_kernel_pes: int
    fullest_kernel: str
    needed_bytes_per_pe: int
    available_bytes_per_pe: int


class ReportError(CompileError):
    """A compile report is missing or cannot be read."""


class ReplicaError(CompileError):
    """Replicas that are impossible: the batch is not divisible by them, or they do not fit the wafer."""

    @property
    def fault_fields(self) -> dict[str, str | None]:
        """The fields of a `ProgramFault`."""
        return {"what_to_do": "choose fewer replicas, a number that divides the batch, or 'auto'"}


class PlacementError(CompileError):
    """Kernels that do not fit on the fabric.

    Attributes:
        shortage: needed and available resources, None for a graph without kernels.
        kernel: the kernel that does not fit; if all together do not fit, the largest.
        source: the user's line of that kernel, if known.
    """

    def __init__(
        self,
        message: str,
        shortage: Shortage | None = None,
        kernel: str | None = None,
        source: str | None = None,
    ) -> None:
        self.shortage = shortage
        self.kernel = kernel
        self.source = source
        super().__init__(message)

    @property
    def fault_fields(self) -> dict[str, str | None]:
        """The fields of a `ProgramFault`."""
        advice = "make the layer or the model smaller: fewer or narrower layers, shorter sequences"
        return {"node": self.kernel, "source": self.source, "what_to_do": advice}
