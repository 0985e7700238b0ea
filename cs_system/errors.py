"""What can go wrong between a client and a CS system.

An error that happens on the server travels as (code, message, fields) and is raised in the client as the same
class with the same message. Exit codes: 1 an expected failure, 2 bad input of the caller, 3 a bug.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from cs_toolkit.errors import EXIT_BUG, ToolkitError


class CsSystemError(ToolkitError):
    """Base class; raised itself for a failure on the server that has no class of its own.

    Attributes:
        code: Name of the class on the wire.
        fields: What the message says, for programs.
    """

    code = "failed"

    def __init__(self, message: str, **fields: str) -> None:
        super().__init__(message)
        self.fields = fields


class BadAddressError(CsSystemError):
    """An address that has not the form of one."""

    exit_code = 2
    code = "bad_address"

    def __init__(self, value: str, fault: str) -> None:
        super().__init__(
            f"cs_ip={value!r}: {fault}; expected IP, IP:PORT or IP:PORT:9000 "
            "(examples: 10.0.0.5, 127.0.0.1:9000, [::1]:9000)",
            value=value,
        )


class SystemUnreachableError(CsSystemError):
    """Nothing answers at the address."""

    code = "unreachable"

    @classmethod
    def at(cls, address: object, tried: str, cause: str) -> SystemUnreachableError:
        """`tried` is what was done, `cause` what the network answered."""
        return cls(
            f"no CS system answers at {address}: {tried}: {cause}; check cs_ip, "
            "and that the system runs (`cs_system serve` starts a simulated one)",
            address=str(address),
        )


class NotACsSystemError(CsSystemError):
    """Something listens at the address, and it is no control plane of a CS system."""

    code = "not_a_cs_system"

    @classmethod
    def at(cls, address: object, got: str) -> NotACsSystemError:
        """`got` says what the listener did."""
        return cls(
            f"{address} speaks something else than a CS system's control plane: {got}; check the port "
            "in cs_ip (`cs_system serve` prints the address of a simulated system)",
            address=str(address),
        )


class ProtocolMismatchError(CsSystemError):
    """Client and server come from toolkits that do not understand each other."""

    code = "protocol_mismatch"

    @classmethod
    def between(
        cls, client: object, client_toolkit: str, server: object, server_toolkit: str
    ) -> ProtocolMismatchError:
        """The protocol and toolkit versions of both sides."""
        return cls(
            f"the client speaks control protocol {client} (toolkit {client_toolkit}), the CS system speaks "
            f"{server} (toolkit {server_toolkit}); install the same version of the toolkit on both sides"
        )


class ConnectionLostError(CsSystemError):
    """The connection broke in the middle of a call."""

    code = "connection_lost"


class SystemBusyError(CsSystemError):
    """Another job holds the system."""

    code = "busy"

    @classmethod
    def held(cls, job: str, since_s: float, queued_s: float | None = None) -> SystemBusyError:
        """`since_s` is in seconds since the epoch; `queued_s` is how long the caller has queued for it."""
        since = clock_text(since_s)
        queued = "" if queued_s is None else f" and still after {queued_s:g} s in the queue"
        advice = "try again later" + (", or queue for it with csrun_wse --wait" if queued_s is None else "")
        return cls(
            f"the CS system is busy: held by {job} since {since}{queued}; {advice}",
            job=job,
            since=since,
        )

    @property
    def job(self) -> str:
        """The job that holds the system."""
        return self.fields["job"]


class ReservationLostError(CsSystemError):
    """The reservation has ended, so the call cannot be done."""

    code = "reservation_lost"


class WrongOrderError(CsSystemError):
    """A call that does not fit the state of the run, such as running steps before programming."""

    code = "wrong_order"


class ArtifactRefusedError(CsSystemError):
    """The system cannot run this artifact."""

    code = "artifact_refused"


class ProgramError(CsSystemError):
    """The executable of an artifact could not be made to run on this system."""

    code = "program_failed"


class StateMismatchError(CsSystemError):
    """State whose names, dtypes or shapes are not those of the program."""

    exit_code = 2
    code = "state_mismatch"

    @classmethod
    def of(cls, faults: Iterable[str]) -> StateMismatchError:
        """One fault a line."""
        return cls(
            "the state does not fit the compiled program:\n  "
            + "\n  ".join(faults)
            + "\nrestore a checkpoint of this model, or compile again"
        )


class WireFormatError(CsSystemError):
    """A peer sent chunks that do not make up tensors."""

    code = "wire_format"


class InputRefusedError(CsSystemError):
    """The input of the run cannot be opened or joined as asked for."""

    code = "input_refused"


class InputMismatchError(CsSystemError):
    """A worker's input is not the one that the chief has opened; told to both, and it ends the job."""

    code = "input_mismatch"

    @classmethod
    def of(cls, worker: str, differences: Iterable[str]) -> InputMismatchError:
        """`worker` is what messages call it; `differences` says one thing each."""
        return cls(
            f"{worker} has another input than the chief: {'; '.join(differences)}. All tasks of a job must "
            "make the same calls with the same program; look for what depends on the task, the machine or "
            "the files that are there at the moment",
            worker=worker,
        )


class JoinTimeoutError(CsSystemError):
    """The chief of a worker's job did not open the input in time.

    `fields["state"]` says what the worker waits for.
    """

    code = "join_timeout"

    @classmethod
    def after(cls, job: str, timeout_s: float, state: str) -> JoinTimeoutError:
        """`state` is why the input is not open."""
        return cls(
            f"no input of job {job} to join within {timeout_s:g} s: {state}; look at the chief's log",
            state=state,
        )


class WorkersTimeoutError(CsSystemError):
    """Workers did not connect, or sent no first batch, in time."""

    code = "workers_timeout"


class WorkerLostError(CsSystemError):
    """A worker's connection broke before the end of its input and did not come back."""

    code = "worker_lost"


class InputFailedError(CsSystemError):
    """The input of the run failed, on a worker or on the way."""

    code = "input_failed"


class ExecutionError(CsSystemError):
    """The device reported a failure while it computed steps; the state on it is lost."""

    code = "execution_failed"


class DeviceMemoryError(CsSystemError):
    """The program, its state or its batches do not fit into the memory of the system."""

    code = "out_of_memory"


class MemoryxError(CsSystemError):
    """MemoryX has gone, cannot be reached, or does not understand the wafer; the state there is lost."""

    code = "memoryx_failed"


class WaferLostError(CsSystemError):
    """One of the CS systems of a group has gone; the state is lost."""

    code = "wafer_lost"

    @classmethod
    def of(cls, rank: int, count: int, host: str = "") -> WaferLostError:
        """The number of the system in its group, from 0, and its host where that is another one."""
        place = f" ({host})" if host else ""
        return cls(
            f"CS system {rank + 1} of {count}{place} has gone; the state is lost, start the job again: a "
            "training continues from its last checkpoint"
        )

    @classmethod
    def at_start(cls, rank: int, count: int, code: int | None, host: str = "") -> WaferLostError:
        """One that ended before it was there; `code` is its exit code if known, of a signal negative."""
        where = f"on {host or 'this machine'}"
        how = where if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
        return cls(
            f"CS system {rank + 1} of {count} has ended while it started ({how}); the log of the system at "
            "this address says why; start the job again"
        )

    @classmethod
    def silent(cls, rank: int, count: int, seconds: float) -> WaferLostError:
        """One that is there and says nothing."""
        return cls(
            f"CS system {rank + 1} of {count} has not answered for {seconds:.0f} s and is ended; the state "
            "is lost, start the job again: a training continues from its last checkpoint"
        )


class GroupError(CsSystemError):
    """Systems of a group on several hosts do not find each other, or not all of them are there."""

    code = "group_failed"


class StorageFullError(CsSystemError):
    """MemoryX has no room for state and gradients."""

    code = "storage_full"

    @classmethod
    def of(cls, directory: object, wanted_bytes: int, free_bytes: int) -> StorageFullError:
        """How much was asked for in a directory, and how much there is."""
        return cls(
            f"MemoryX needs {wanted_bytes:,} bytes in {directory}, where {free_bytes:,} are free; free some, "
            "or name another directory with --memoryx-dir"
        )


class SystemBugError(CsSystemError):
    """The system's own code raised what it never should; its log has the traceback."""

    code = "bug"
    exit_code = EXIT_BUG


class SystemStoppingError(CsSystemError):
    """The system is shutting down."""

    code = "stopping"


class PortInUseError(CsSystemError):
    """The server cannot listen where it was told to."""

    code = "cannot_listen"

    @classmethod
    def at(cls, host: str, port: int, option: str, cause: str) -> PortInUseError:
        """`option` is the flag that chose the port."""
        return cls(
            f"cannot listen on {host}:{port}: {cause}; stop the program that uses the port, or "
            f"choose another with {option} (0: any free port)"
        )


class BadOptionError(CsSystemError):
    """A value of a command-line option that cannot be used."""

    exit_code = 2
    code = "bad_option"


def clock_text(seconds: float) -> str:
    """Local date and time of a moment in seconds since the epoch."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _classes() -> dict[str, type[CsSystemError]]:
    kinds: list[type[CsSystemError]] = [CsSystemError, *CsSystemError.__subclasses__()]
    return {kind.code: kind for kind in kinds}


def from_wire(code: str, message: str, fields: Mapping[str, str]) -> CsSystemError:
    """The error that the server raised; an unknown code (a newer server) becomes the base class."""
    kind = _classes().get(code, CsSystemError)
    error = kind.__new__(kind)
    CsSystemError.__init__(error, message, **fields)
    return error
