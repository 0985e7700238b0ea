"""Errors of the data plane.

    StreamingError              (in parentheses: where the cause is)
        LayoutError          a batch layout or run specification that cannot be used (the caller)
        BatchShapeError      a batch that does not have the layout (the input function)
        ConnectError         the data port was not reached in time (the environment)
        ListenError          the data port could not be opened (the environment)
        RefusedError         the system does not accept this worker (the job's set-up)
        ReplacedError        another process took over this worker's place (the launcher)
        ProtocolError        a frame that is not allowed in this state (a bug, or a foreign peer)
            ChecksumError    a payload that differs from the one sent (the network)
            UnprovedError    a peer that does not prove that it knows the job's token
        WorkerLostError      a worker's connection is gone and nobody reconnected (the environment)
        WorkerFailedError    a worker's input function raised (the input function)
        StallError           no batch within the caller's time limit (the input function)
        RingClosedError      the run's ring was closed (the caller)
        EndOfInputError      every worker has ended: the normal end of a finite input

Every class has an ``exit_code``: 1 for an expected failure, 2 for bad input.
"""

from cs_toolkit.errors import ToolkitError
from cs_toolkit.network.frames import FrameError


class StreamingError(ToolkitError):
    """Base class of all errors of the data plane."""


class LayoutError(StreamingError):
    """A layout or a run specification cannot be used."""

    exit_code = 2


class BatchShapeError(StreamingError):
    """The input function yielded a batch without the layout that the program was compiled for."""

    exit_code = 2


class ConnectError(StreamingError):
    """The data port was not reached, or had no run of this job, within the time limit."""


class ListenError(StreamingError):
    """The data port could not be opened."""


class RefusedError(StreamingError):
    """A worker does not belong to the run; raised in the worker, and in the system if it is waiting for it.

    Attributes:
        worker: Name of the worker in messages.
        differences: The differences, each with field, got and expected.
    """

    def __init__(self, message: str, worker: str = "", differences: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.worker = worker
        self.differences = differences


class ReplacedError(StreamingError):
    """Another process connected as this worker, which fences this one off."""


class ProtocolError(StreamingError, FrameError):
    """The peer violated the protocol; the connection is closed."""


class ChecksumError(ProtocolError):
    """The fields of a batch arrived with other bytes than the worker sent."""


class UnprovedError(ProtocolError):
    """The peer has not proved that it knows the job's token: it is no part of the job, or bytes changed."""


class WorkerLostError(StreamingError):
    """A worker's connection is gone and no process took its place within ``reconnect_s``.

    Attributes:
        worker: Index of the worker.
    """

    def __init__(self, message: str, worker: int) -> None:
        super().__init__(message)
        self.worker = worker


class WorkerFailedError(StreamingError):
    """A worker reported that its input failed.

    Attributes:
        worker: Index of the worker.
        detail: The traceback of the user's code as the worker sent it; may be empty.
    """

    def __init__(self, message: str, worker: int, detail: str = "") -> None:
        super().__init__(message)
        self.worker = worker
        self.detail = detail


class StallError(StreamingError):
    """No batch came within the caller's time limit.

    Attributes:
        worker: Index of the worker that the caller is waiting for.
    """

    def __init__(self, message: str, worker: int) -> None:
        super().__init__(message)
        self.worker = worker


class RingClosedError(StreamingError):
    """The ring was closed; it returns no more batches."""


class EndOfInputError(StreamingError):
    """Every worker has ended its input and every batch has been taken."""

    exit_code = 0


EndOfInput = EndOfInputError
