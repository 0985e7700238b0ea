"""Errors of the graph compiler.

Every error says what was got, what was expected and what to do. `exit_code` is the exit status of a command
line tool that ends with the error: 1 for an expected failure, 2 for bad usage or input.
"""

from __future__ import annotations

from xdsl.utils.exceptions import VerifyException


class CompileError(Exception):
    """Base of all errors that the compiler raises on purpose."""

    exit_code = 1


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
    """A framework's graph that cannot become CIRH; the message lists everything that is wrong with it.

    Attributes:
        faults: one line of text per fault.
    """

    def __init__(self, message: str, faults: tuple[str, ...] = ()) -> None:
        self.faults = faults or (message,)
        super().__init__(message)


class UnsupportedOpsError(GraphImportError):
    """Operations of the graph that the compiler does not know."""


class GraphTypeError(GraphImportError, UnsupportedTypeError):
    """Tensors of the graph with an element type that CIRH does not have."""


class DynamicShapeError(GraphImportError):
    """Tensors of the graph whose shape is not known before the run."""


class LoweringError(CompileError):
    """An op, or a value in it, that the device cannot execute."""


class ExecutableError(CompileError):
    """Bytes that are not an executable of this jax, or arguments that do not fit the executable."""


class CorruptArtifactError(CompileError):
    """An artifact directory with something missing, changed, unreadable or of another format."""


class ArtifactWriteError(CompileError):
    """An artifact that could not be written (disk full, no permission); nothing half-written is left."""


class ArtifactLockError(CompileError):
    """Another task has been compiling the same program for longer than this one is willing to wait."""


class FabricError(CompileError):
    """A fabric that is not known, or a fabric file that cannot be used."""

    exit_code = 2


class KernelGraphError(CompileError):
    """Kernels that cannot be sized: an unknown family, a missing or impossible size, two of one name."""


class PlacementError(CompileError):
    """Kernels that do not fit on the fabric: which one, what it needs, what there is."""
