"""Errors between a client and a CS system.

An error that occurs on the server is sent as (code, message, fields) and raised in the client as the same
class with the same message. Exit codes: 1 an expected failure, 2 bad input of the caller, 3 a bug.
"""

from __future__ import annotations

import errno
import math
import resource
import signal
from collections.abc import Iterable, Mapping
from datetime import datetime

from cs_system.memory import MemoryUse
from cs_toolkit.errors import EXIT_BUG, ToolkitError
from cs_toolkit.subclasses import retrieve_all_subclasses

RESUME_ADVICE = "start the job again: training resumes from its last checkpoint"
"""What a user can do after an error that ends a run."""


class CsSystemError(ToolkitError):
    """Base class; raised itself for a failure on the server that has no class.

    Attributes:
        code: Name of the class on the wire.
        fields: The facts in the message, for programs.
    """

    code = "failed"

    def __init__(self, message: str, **fields: str) -> None:
        super().__init__(message)
        self.fields = fields


class BadAddressError(CsSystemError):
    """A malformed address."""

    exit_code = 2
    code = "bad_address"

    def __init__(self, value: str, problem: str) -> None:
        super().__init__(
            f"cs_ip={value!r}: {problem}; expected IP, IP:PORT or IP:PORT:9000 "
            "(examples: 10.0.0.5, 127.0.0.1:9000, [::1]:9000)",
            value=value,
        )


class SystemUnreachableError(CsSystemError):
    """Nothing answers at the address."""

    code = "unreachable"

    @classmethod
    def at(cls, address: object, tried: str, cause: str) -> SystemUnreachableError:
        """Make the error; `tried` is the failed operation, `cause` the answer of the network."""
        return cls(
            f"no CS system answers at {address}: {tried}: {cause}; check cs_ip, "
            "and that the system runs (`cs_system serve` starts a simulated one)",
            address=str(address),
        )


class NotACsSystemError(CsSystemError):
    """Something listens at the address, but it is not the control plane of a CS system."""

    code = "not_a_cs_system"

    @classmethod
    def at(cls, address: object, got: str) -> NotACsSystemError:
        """Make the error; `got` describes the listener's answer."""
        return cls(
            f"{address} is not the control plane of a CS system: {got}; check the port "
            "in cs_ip (`cs_system serve` prints the address of a simulated system)",
            address=str(address),
        )


class TlsFailedError(CsSystemError):
    """Only one side uses TLS, or one does not accept the certificate of the other."""

    code = "tls_failed"

    @classmethod
    def at(cls, address: object, problem: str) -> TlsFailedError:
        """Make the error; `problem` completes "no TLS connection with ...:"."""
        return cls(
            f"no TLS connection with the CS system at {address}: {problem}",
            address=str(address),
        )


class NotAllowedError(CsSystemError):
    """The caller's role does not allow the call."""

    code = "not_allowed"

    @classmethod
    def of(cls, name: str, action: str) -> NotAllowedError:
        """Make the error for a caller, empty if not identified, and the action that it requested."""
        who = f"the certificate is that of {name}" if name else "the caller has no certificate"
        return cls(
            f"not allowed to {action}: {who}; expected the owner's, or an administrator's "
            "(`cs_system certs issue --admin`), or a call from the system's own machine without TLS"
        )


class ProtocolMismatchError(CsSystemError):
    """Client and server have toolkits of incompatible versions."""

    code = "protocol_mismatch"

    @classmethod
    def between(
        cls, client: object, client_toolkit: str, server: object, server_toolkit: str
    ) -> ProtocolMismatchError:
        """Make the error, from the protocol and toolkit versions of both sides."""
        return cls(
            f"the client speaks control protocol {client} (toolkit {client_toolkit}), the CS system speaks "
            f"{server} (toolkit {server_toolkit}); install the same version of the toolkit on both sides, or "
            "neighboring minor versions from 0.3 on"
        )


class ConnectionLostError(CsSystemError):
    """The connection broke in the middle of a call."""

    code = "connection_lost"


class SystemBusyError(CsSystemError):
    """Another job holds the system."""

    code = "busy"

    @classmethod
    def of(cls, job: str, since_s: float, queued_s: float | None = None) -> SystemBusyError:
        """Make the error.

        Args:
            job: The job that holds the system.
            since_s: When it got the system, in seconds since the epoch.
            queued_s: How long the caller has queued; None if it has not.
        """
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


class TooManyWaitingError(CsSystemError):
    """The system has the maximum number of waiting callers."""

    code = "too_many_waiting"


class SystemDrainedError(CsSystemError):
    """The system takes no new jobs."""

    code = "drained"

    @classmethod
    def of(cls, by: str, since_s: float) -> SystemDrainedError:
        """Make the error from the name of the administrator and the time, in seconds since the epoch."""
        return cls(
            f"the CS system takes no new jobs: drained by {by} since {clock_text(since_s)}; use another "
            "system, or try again after `cs_system resume`",
            by=by,
        )


class NoSuchJobError(CsSystemError):
    """No job of this name holds the system or waits for it."""

    exit_code = 2
    code = "no_such_job"


class ReservationLostError(CsSystemError):
    """The reservation has ended, so the call is refused."""

    code = "reservation_lost"

    @classmethod
    def because(cls, reason: str) -> ReservationLostError:
        """Make the error; `reason` is why it has ended."""
        return cls(f"the reservation of the CS system has ended: {reason}")


class CallRefusedError(CsSystemError):
    """A call that does not prove that it comes from the job that holds the system."""

    code = "call_refused"

    @classmethod
    def of(cls, rpc: str) -> CallRefusedError:
        """Make the error; `rpc` is the name of the call."""
        return cls(
            f"the call {rpc} is not one of the job that holds the CS system, or was changed or repeated in "
            f"transit; if it was yours, check the network to the system, and {RESUME_ADVICE}"
        )


class TensorDamagedError(CsSystemError):
    """A tensor that was changed in transit between client and system."""

    code = "tensor_damaged"

    @classmethod
    def of(cls, name: str) -> TensorDamagedError:
        """Make the error for a tensor."""
        return cls(
            f"tensor {name!r} was changed in transit between the chief and the CS system, its digest is that "
            f"of other bytes; check the network between them, and {RESUME_ADVICE}",
            tensor=name,
        )


class WrongOrderError(CsSystemError):
    """A call that does not fit the state of the run, such as running steps before programming."""

    code = "wrong_order"


class ArtifactRefusedError(CsSystemError):
    """The system cannot run this artifact."""

    code = "artifact_refused"


class ProgramError(CsSystemError):
    """The executable of an artifact could not be made to run on this system."""

    code = "program_failed"


class ExecutableError(ProgramError):
    """Bytes that are not an executable, or one that is refused or cannot run on this platform."""

    code = "executable_refused"


class StateMismatchError(CsSystemError):
    """State whose names, dtypes or shapes are not those of the program."""

    exit_code = 2
    code = "state_mismatch"

    @classmethod
    def of(cls, problems: Iterable[str]) -> StateMismatchError:
        """Make the error; lists one problem a line."""
        return cls(
            "the state does not fit the compiled program:\n  "
            + "\n  ".join(problems)
            + "\nrestore a checkpoint of this model, or compile again"
        )


class WireFormatError(CsSystemError):
    """A peer sent chunks that do not form tensors."""

    code = "wire_format"


class InputRefusedError(CsSystemError):
    """The input of the run cannot be opened or joined as requested."""

    code = "input_refused"


class InputMismatchError(CsSystemError):
    """A worker's input is not the one that the chief has opened; raised in both, it ends the job."""

    code = "input_mismatch"

    @classmethod
    def of(cls, worker: str, differences: Iterable[str]) -> InputMismatchError:
        """Make the error; `worker` is the worker's name in messages."""
        return cls(
            f"{worker} has another input than the chief: {'; '.join(differences)}. All tasks of a job must "
            "make the same calls with the same program; look for anything that depends on the task, the "
            "machine or the current files",
            worker=worker,
        )


class JoinTimeoutError(CsSystemError):
    """The chief of a worker's job did not open the input in time.

    `fields["state"]` is the cause of the wait.
    """

    code = "join_timeout"

    @classmethod
    def after(cls, job: str, timeout_s: float, state: str) -> JoinTimeoutError:
        """Make the error; `state` is the reason why the input is not open."""
        return cls(
            f"no input of job {job} to join within {timeout_s:g} s: {state}; look at the chief's log",
            state=state,
        )


class RunOverError(CsSystemError):
    """A worker asks for a run that has ended: the chief of its job is in a later one."""

    code = "run_over"


class WorkersTimeoutError(CsSystemError):
    """Workers did not connect, or sent no first batch, in time."""

    code = "workers_timeout"


class WorkerLostError(CsSystemError):
    """A worker's connection broke before the end of its input, and it did not reconnect."""

    code = "worker_lost"


class InputFailedError(CsSystemError):
    """The input of the run failed, on a worker or in transit."""

    code = "input_failed"


class ExecutionError(CsSystemError):
    """The device reported a failure while it computed steps; the state on it is lost."""

    code = "execution_failed"


class DeviceMemoryError(CsSystemError):
    """The program, its state or its batches do not fit into the memory of the system."""

    code = "out_of_memory"


# Executables come from any client, and LLVM's reader may crash or loop on damaged bytes. A process that has
# used this CPU time for reading one is ended by the signal; an executable of BERT takes 0.2 s a MiB.
READ_LIMIT_SIGNAL = signal.SIGPROF
READ_LIMIT_S, READ_LIMIT_S_PER_MIB = 3.0, 1.0


def _describe_loss(
    process: str, owner: str, code: int | None, memory: MemoryUse | None, *, has_state: bool
) -> str:
    """Describe the end of a process that computes, from its exit code: -N for signal N, None if unknown."""
    cause = None if code is None or code >= 0 else signal.Signals(-code)
    if cause == READ_LIMIT_SIGNAL:
        return (
            f"{process} has not read an executable within {READ_LIMIT_S:g} s of CPU time and "
            f"{READ_LIMIT_S_PER_MIB:g} s for each MiB, and is ended: the executable is damaged; compile again"
        )
    how = "ended" if cause is None else f"was ended by {cause.name} ({signal.strsignal(cause)})"
    why = ""
    if cause == signal.SIGKILL:
        why = _describe_kill(memory)
    elif cause == signal.SIGABRT:
        why = " (libraries do this when they get no more memory; see `ulimit -v`)"
    advice = (
        f"The state is lost, {RESUME_ADVICE}"
        if has_state
        else "Start the job again; if that fails, too, the executable may be damaged: compile again"
    )
    return f"{process} {how}{why}; the log of {owner} has its last output. {advice}"


def _describe_kill(memory: MemoryUse | None) -> str:
    use = ""
    if memory is not None and memory.peak_bytes and memory.limit_bytes:
        peak, limit = memory.peak_bytes / 1e9, memory.limit_bytes / 1e9
        use = f"; it used up to {peak:.2f} GB, and {memory.limited_by} has {limit:.2f} GB"
    if memory is not None and memory.is_killed_for_memory:
        return f" (by the kernel, for lack of memory{use}: choose a smaller batch, or give it more memory)"
    return f" (the kernel does this when the machine or its cgroup is out of memory{use})"


def _describe_failed_start(process: str, owner: str, reason: str) -> str:
    return (
        f"{owner} cannot start {process} ({reason}); its machine or cgroup has no more processes, files or "
        "memory: start the job again when some are free"
    )


class MemoryxError(CsSystemError):
    """MemoryX is gone, unreachable, or does not understand the wafer; the state there is lost."""

    code = "memoryx_failed"

    @classmethod
    def process_ended(cls, code: int | None, memory: MemoryUse | None, *, has_state: bool) -> MemoryxError:
        """Make the error for the process of a model that has ended; see `EngineLostError.ended`."""
        process = "the process that updates the weights"
        return cls(_describe_loss(process, "MemoryX", code, memory, has_state=has_state))

    @classmethod
    def not_started(cls, reason: str) -> MemoryxError:
        """Make the error for the process of a model that could not be started."""
        return cls(_describe_failed_start("the process that updates the weights", "MemoryX", reason))


class WaferLostError(CsSystemError):
    """A CS system of a group is gone; the state is lost."""

    code = "wafer_lost"

    @classmethod
    def of(cls, rank: int, count: int, host: str = "") -> WaferLostError:
        """Make the error.

        Args:
            rank: Number of the system in its group, from 0.
            count: Number of systems.
            host: Its host, if that is another one.
        """
        place = f" ({host})" if host else ""
        return cls(f"CS system {rank + 1} of {count}{place} has gone; the state is lost, {RESUME_ADVICE}")

    @classmethod
    def at_start(cls, rank: int, count: int, code: int | None, host: str = "") -> WaferLostError:
        """Make the error for one that ended before it was ready; `code` is its exit code, -N for signal N."""
        where = f"on {host or 'this machine'}"
        how = where if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"
        return cls(
            f"CS system {rank + 1} of {count} has ended while it started ({how}); the log of the system at "
            "this address says why; start the job again"
        )

    @classmethod
    def silent(cls, rank: int, count: int, seconds: float) -> WaferLostError:
        """Make the error for one that is connected but does not answer."""
        return cls(
            f"CS system {rank + 1} of {count} has not answered for {seconds:.0f} s and is ended; the state "
            f"is lost, {RESUME_ADVICE}"
        )


class EngineLostError(CsSystemError):
    """The process that computes a job has ended, or does not follow its protocol."""

    code = "engine_lost"

    @classmethod
    def ended(
        cls, doing: str, code: int | None, memory: MemoryUse | None, *, has_state: bool
    ) -> EngineLostError:
        """Make the error for a process that has ended.

        Args:
            doing: The requested operation.
            code: Its exit code, -N for signal N; None if that is not known.
            memory: Its memory, if it was killed.
            has_state: Whether state is lost.
        """
        process = "the process that computes the job"
        loss = _describe_loss(process, "the CS system", code, memory, has_state=has_state)
        return cls(f"{doing} failed: {loss}")

    @classmethod
    def not_started(cls, doing: str, reason: str) -> EngineLostError:
        """Make the error for a process that could not be started."""
        process = "the process that computes the job"
        return cls(f"{doing} failed: {_describe_failed_start(process, 'the CS system', reason)}")

    @classmethod
    def broken(cls, doing: str, got: str) -> EngineLostError:
        """Make the error for a process that sends something unexpected."""
        return cls(
            f"{doing} failed: the process that computes the job does not follow its protocol ({got}) and is "
            f"ended; {RESUME_ADVICE}"
        )


class GroupError(CsSystemError):
    """Systems of a group on several hosts do not find each other, or some are missing."""

    code = "group_failed"


class StorageFullError(CsSystemError):
    """MemoryX has no space for state and gradients."""

    code = "storage_full"

    @classmethod
    def of(cls, directory: object, required_bytes: int, free_bytes: int) -> StorageFullError:
        """Make the error, from the size required in a directory and the size available."""
        return cls(
            f"MemoryX needs {required_bytes:,} bytes in {directory}, where {free_bytes:,} are free; free "
            "some, or name another directory with --memoryx-dir"
        )


class SystemBugError(CsSystemError):
    """An unexpected exception in the system's own code; its log has the traceback."""

    code = "bug"
    exit_code = EXIT_BUG


class ResourceLimitError(CsSystemError):
    """A process of the system may not take more files or memory."""

    code = "resource_limit"


def unexpected_error(part: str, error: Exception) -> CsSystemError:
    """Return the error to report for an exception that is no `CsSystemError`.

    Args:
        part: The part of the system in which it was raised, such as "the CS system".
        error: The exception.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        allowed = f" of {limit}" if number == errno.EMFILE else ""
        return ResourceLimitError(
            f"{part} has reached the limit{allowed} for open files: raise it (`ulimit -n`, or LimitNOFILE in "
            "a systemd unit), and start the system and the job again"
        )
    if isinstance(error, MemoryError) or number == errno.ENOMEM:
        return ResourceLimitError(
            f"{part} gets no more memory: end other programs of its machine, or raise its limit (`ulimit "
            "-v`, or MemoryMax in a systemd unit), and start the job again"
        )
    return SystemBugError(
        f"internal error of {part}: {type(error).__name__}: {error}; its log has the traceback"
    )


class SystemStoppingError(CsSystemError):
    """The system is shutting down."""

    code = "stopping"


class PortInUseError(CsSystemError):
    """The server cannot listen on the requested address."""

    code = "cannot_listen"

    @classmethod
    def at(cls, host: str, port: int, option: str, cause: str) -> PortInUseError:
        """Make the error; `option` is the flag that sets the port."""
        return cls(
            f"cannot listen on {host}:{port}: {cause}; stop the program that uses the port, or "
            f"choose another with {option} (0: any free port)"
        )


class BadOptionError(CsSystemError):
    """An unusable value of a command-line option."""

    exit_code = 2
    code = "bad_option"


def clock_text(seconds: float) -> str:
    """Format seconds since the epoch as local date and time."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    except (ValueError, OverflowError, OSError):  # of a peer whose clock is wrong
        return "an unknown time"


def from_wire(code: str, message: str, fields: Mapping[str, str]) -> CsSystemError:
    """Return the error that the server raised; an unknown code (from a newer server) gives the base class."""
    # Attributes of the error itself: a foreign peer may send any name.
    fields = {name: text for name, text in fields.items() if name not in ("self", "message")}
    kinds = {kind.code: kind for kind in retrieve_all_subclasses(CsSystemError)}
    kind = kinds.get(code, CsSystemError)
    error = kind.__new__(kind)
    CsSystemError.__init__(error, message, **fields)
    return error


def duration_text(seconds: float) -> str:
    """Format a duration: `45 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if not math.isfinite(seconds):  # of a peer whose clock is wrong
        return "an unknown time"
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{left} s"
