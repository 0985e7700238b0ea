"""The client of a CS system, for the chief of a job and for the workers that look for its run.

    with SystemClient(parse_address("127.0.0.1:9000")) as client:
        with client.reserve(job, token) as reservation:
            reservation.load(artifact)
            reservation.program()
            reservation.put_state(state)
            reservation.open_input(num_workers=2, identity=identity, first_step=0)
            reservation.wait_workers(timeout_s=60)
            for outputs in reservation.run_steps(1000):
                ...
            state = reservation.fetch_state()

Importing this module imports neither JAX nor a framework. A client is not thread-safe.
"""

from __future__ import annotations

import os
import pwd
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from cs_stream.order import InputPosition
from cs_system.address import SystemAddress, parse_address
from cs_system.authentication import CallSigner
from cs_system.client.connection import Connection
from cs_system.client.reservation import OnWait, Reservation, StateStream, StepOutputs, StepStream
from cs_system.errors import (
    ConnectionLostError,
    InputRefusedError,
    JoinTimeoutError,
    SystemBusyError,
    clock_text,
)
from cs_system.messages import InputIdentity, identity_to_wire, position_from_wire
from cs_system.proto import cs_system_pb2 as pb
from cs_system.status import Admission, SystemInfo, admission_from_wire, read_info
from cs_system.transport import client_metadata
from cs_system.usage import GroupBy, UsageSum
from cs_toolkit.network.liveness import peer_timeout_s
from cs_toolkit.security.proofs import is_proof
from cs_toolkit.security.sealing import seal
from cs_toolkit.security.tls import Credentials
from cs_toolkit.spans import ClockSample

__all__ = [
    "Reservation",
    "RunTicket",
    "StateStream",
    "StepOutputs",
    "StepStream",
    "SystemAddress",
    "SystemClient",
    "SystemInfo",
    "join_run",
    "parse_address",
]

# Short: a refused or silent address must show before the user has waited for the imports of a framework.
CONNECT_TIMEOUT_S = 5.0
# Interval at which a worker that waits for its chief asks again, and gets the cause of the wait.
_JOIN_SLICE_S = 2.0
QUEUE_TIMEOUT_S = 24 * 3600.0
# A release waits until the device has finished its steps.
_RELEASE_S = 60.0
# The log of years is read.
_USAGE_S = 120.0


@dataclass(frozen=True)
class RunTicket:
    """Where a worker delivers its batches.

    Attributes:
        data_host, data_port: Address of the data plane.
        first_step: Global step at which the chief has opened the input.
        position: Place in the input at that step.
        credentials: For TLS with the data plane; None: without TLS.
    """

    data_host: str
    data_port: int
    first_step: int
    position: InputPosition
    credentials: Credentials | None = None


class SystemClient:
    """A connection to a CS system.

    Args:
        address: The system's address, from `parse_address`.
        timeout_s: Limit for the first answer of the system.

    Raises:
        SystemUnreachableError: nothing answers at the address.
        NotACsSystemError: something other than a CS system answers.
        ProtocolMismatchError: the system's toolkit has another version.
    """

    def __init__(self, address: SystemAddress, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._connection = Connection(address, timeout_s)

    @property
    def address(self) -> SystemAddress:
        """Address of the system."""
        return self._connection.address

    def info(self) -> SystemInfo:
        """Return the state of the system and of its current run."""
        message = self._connection.call("Info", pb.InfoRequest(), timeout_s=self._timeout_s)
        return read_info(message, self.address)

    def reserve(
        self,
        job: str,
        token: str,
        wait: bool = False,
        on_wait: OnWait | None = None,
        timeout_s: float = QUEUE_TIMEOUT_S,
    ) -> Reservation:
        """Reserve the system for a job, until the reservation is closed or this process ends.

        Args:
            job: Name of the job, shown to others.
            token: The job's secret, which its workers must know.
            wait: Queue for the system, first come first served, instead of failing if another job holds it.
            on_wait: Called with a sentence about the queue at every change, and every two seconds.
            timeout_s: How long to queue.

        Raises:
            SystemBusyError: another job holds the system, and `wait` is false or `timeout_s` has passed.
            SystemStoppingError: the system is shutting down.
        """
        connection = self._connection
        sealed_token = seal(token.encode("utf-8", "surrogateescape"), connection.public_key)
        request = pb.ReserveRequest(job=job, sealed_token=sealed_token, wait=wait, owner=this_user())
        heartbeats = connection.start_heartbeats()
        lease = connection.stream("Reserve", request)
        deadline = time.monotonic() + timeout_s
        try:
            with connection.errors():
                for event in lease:
                    if event.WhichOneof("event") == "granted":
                        signer = CallSigner(token, connection.nonce)
                        return Reservation(connection, lease, event.granted.reservation, signer, heartbeats)
                    if time.monotonic() > deadline:
                        held_by = event.queued.held_by or "nobody, because it is drained,"
                        raise SystemBusyError.of(held_by, event.queued.since, timeout_s)
                    if on_wait is not None:
                        queued = event.queued
                        state = f"held by {queued.held_by}" if queued.held_by else "drained"
                        on_wait(
                            f"waiting for the CS system at {self.address}: {state} since "
                            f"{clock_text(queued.since)}, place {queued.position} in the queue"
                        )
        except BaseException:
            lease.cancel()
            heartbeats.close()
            raise
        raise ConnectionLostError(f"the CS system at {self.address} ended the reservation before granting it")

    def read_clock(self) -> tuple[str, ClockSample]:
        """Return the id of the system's clock, and an estimate of its offset from that of this process."""
        return self._connection.read_clock()

    def release(self, job: str = "") -> tuple[str, str]:
        """End the reservation of a job, or its place in the queue; an empty name means the current holder.

        Returns:
            Name and owner of the job.

        Raises:
            NoSuchJobError: no such job holds the system or waits for it.
            NotAllowedError: it is another user's, and the caller is no administrator.
        """
        reply = self._connection.call("Release", pb.ReleaseRequest(job=job, caller=this_user()), _RELEASE_S)
        return reply.job, reply.owner

    def set_admission(self, drained: bool | None = None, modes: Sequence[str] = ()) -> Admission:
        """Change the jobs that the system takes, as an administrator.

        Args:
            drained: True to take no new jobs, False to take them again; None changes nothing.
            modes: Execution modes of the programs that it takes; none changes nothing.

        Raises:
            NotAllowedError: the caller is no administrator.
        """
        request = pb.AdmissionRequest(caller=this_user(), drained=drained, modes=modes)
        return admission_from_wire(self._connection.call("SetAdmission", request, self._timeout_s).admission)

    def usage(self, since: float, until: float, by: GroupBy) -> list[UsageSum]:
        """Return what users or jobs have used between two times, in seconds since the epoch."""
        request = pb.UsageRequest(since=since, until=until, by=by)
        stream = self._connection.stream("Usage", request, _USAGE_S)
        with self._connection.errors():
            return [
                UsageSum(one.name, one.owner, one.reservations, one.wafer_s, one.steps, one.samples)
                for reply in stream
                for one in reply.sums
            ]

    def close(self) -> None:
        """Close the connection, and with it any reservation made over it."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def this_user() -> str:
    """Return USER@HOST of this process, as a system shows the owner of a job."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # in a container, which may not know the user
        user = f"uid{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def join_run(
    address: SystemAddress,
    job: str,
    token: str,
    timeout_s: float,
    identity: InputIdentity | None = None,
    worker: str = "a worker",
    on_wait: OnWait | None = None,
) -> RunTicket:
    """Wait, as a worker, until the chief of the job has opened the input.

    Args:
        address: Address of the system.
        job: Name of the job.
        token: The job's secret.
        timeout_s: How long to wait.
        identity: The worker's input; waits for the run with its number. None joins any input of the job.
        worker: Name of this worker in messages.
        on_wait: Called every two seconds with a sentence that names the cause of the wait.

    Raises:
        InputRefusedError: `token` is not the one of the job's chief.
        InputMismatchError: the chief has opened another input.
        RunOverError: the chief is in a later run of the program.
        JoinTimeoutError: the input was not opened in time.
        SystemUnreachableError, NotACsSystemError: no CS system is at the address.
    """
    request = pb.JoinRequest(
        job=job, identity=None if identity is None else identity_to_wire(identity), worker=worker
    )
    deadline = time.monotonic() + timeout_s
    connection = Connection(address, peer_timeout_s(os.environ))
    signer = CallSigner(token, connection.nonce)
    try:
        connection.start_heartbeats()
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            request.timeout_s = min(_JOIN_SLICE_S, left_s)
            try:
                call, proof = signer.sign("JoinRun", "", request)
                reply = connection.call("JoinRun", request, metadata=client_metadata(proof=proof))
            except JoinTimeoutError as error:
                if left_s <= _JOIN_SLICE_S:
                    raise JoinTimeoutError.after(job, timeout_s, error.fields["state"]) from None
                if on_wait is not None:
                    waited_s = timeout_s - (deadline - time.monotonic())
                    on_wait(
                        f"waiting for the chief of job {job} to open the input, for {waited_s:.0f} s: "
                        f"{error.fields['state']}"
                    )
                continue
            given, reply.proof = reply.proof, ""
            if not is_proof(given, call.prove_answer(reply)):
                raise InputRefusedError(
                    f"{address} does not prove that it knows the token of job {job}: its answer was changed "
                    "on the way, or it is no system of this job"
                )
            host, position = reply.data_host or address.host, position_from_wire(reply.position)
            return RunTicket(host, reply.data_port, reply.first_step, position, connection.credentials)
    finally:
        connection.close()
