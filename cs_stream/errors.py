"""Errors of the data plane.

    StreamingError              (in brackets: whose matter it is)
        LayoutError          a batch layout or run specification that cannot be used (the caller)
        BatchShapeError      a batch that is not of the layout (the input function)
        ConnectError         the data port was not reached in time (the environment)
        ListenError          the data port could not be opened (the environment)
        RefusedError         the system does not take this worker (the job's set-up)
        ReplacedError        another process took over this worker's place (the launcher)
        ProtocolError        bytes that are not CSBS/1, or not in this state (a bug, or a stranger)
            ChecksumError    a payload that is not what was sent (the network)
        WorkerLostError      a worker's connection is gone and nobody came back (the environment)
        WorkerFailedError    a worker's input function raised (the input function)
        StallError           no batch within the caller's time (the input function)
        RingClosedError      the run's ring was closed (the caller)
        EndOfInputError      every worker has ended: the normal end of a finite input

Every class carries ``exit_code``: 1 for an expected failure, 2 for bad input.
"""

from cs_toolkit.errors import ToolkitError


class StreamingError(ToolkitError):
    """Base of all errors of the data plane."""


class LayoutError(StreamingError):
    """A layout or a run specification cannot be used."""

    exit_code = 2


class BatchShapeError(StreamingError):
    """The input function gave a batch that is not of the layout the program was compiled for."""

    exit_code = 2


class ConnectError(StreamingError):
    """The data port was not reached, or held no run of this job, within the time given."""


class ListenError(StreamingError):
    """The data port could not be opened."""


class RefusedError(StreamingError):
    """A worker does not belong to the run; raised in the worker, and in the system where it waits for it.

    Attributes:
        worker: what messages call the worker.
        differences: what differs, each with field, got and expected.
    """

    def __init__(self, message: str, worker: str = "", differences: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.worker = worker
        self.differences = differences


class ReplacedError(StreamingError):
    """Another process connected as this worker, and this one is fenced off."""


class ProtocolError(StreamingError):
    """The peer sent something that the protocol does not allow; the connection is closed."""


class ChecksumError(ProtocolError):
    """A payload arrived with another xxh3_64 digest than its header says."""


class WorkerLostError(StreamingError):
    """A worker's connection is gone and no process took its place within ``reconnect_s``.

    Attributes:
        worker: index of the worker.
    """

    def __init__(self, message: str, worker: int) -> None:
        super().__init__(message)
        self.worker = worker


class WorkerFailedError(StreamingError):
    """A worker told that its input failed.

    Attributes:
        worker: index of the worker.
        detail: the traceback of the user's code as the worker sent it; may be empty.
    """

    def __init__(self, message: str, worker: int, detail: str = "") -> None:
        super().__init__(message)
        self.worker = worker
        self.detail = detail


class StallError(StreamingError):
    """No batch came within the time the caller gave.

    Attributes:
        worker: index of the worker that is waited for.
    """

    def __init__(self, message: str, worker: int) -> None:
        super().__init__(message)
        self.worker = worker


class RingClosedError(StreamingError):
    """The ring was closed; it gives no more batches."""


class EndOfInputError(StreamingError):
    """Every worker has ended its input and every batch has been taken."""

    exit_code = 0


EndOfInput = EndOfInputError
