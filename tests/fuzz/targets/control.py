"""The messages of the control plane, after gRPC has decoded them."""

from __future__ import annotations

import json
from itertools import chain

import numpy as np
from google.protobuf.message import DecodeError, Message

from cs_stream.batches import BatchLayout
from cs_stream.errors import StreamingError
from cs_stream.first_ready import make_state
from cs_stream.order import InputPosition, pack_schedule
from cs_stream.run_state import RunSpec
from cs_system.address import SystemAddress
from cs_system.authentication import Call, CallVerifier
from cs_system.errors import CsSystemError, SystemBusyError, WireFormatError
from cs_system.messages import (
    InputIdentity,
    TensorAssembler,
    documents_from_wire,
    identity_from_wire,
    identity_to_wire,
    pack_tensors,
    position_from_wire,
    position_to_wire,
    share_from_wire,
    step_from_wire,
    step_to_wire,
)
from cs_system.proto import cs_system_pb2 as pb
from cs_system.server.artifacts import ExecutableStore, Offer
from cs_system.server.engines import check_step
from cs_system.server.run import step_traffic
from cs_system.status import read_info, render, render_table
from cs_system.transport import ERROR_KEY, error_from_metadata, error_metadata
from cs_toolkit.security.sealing import SealError, SealingKey, seal
from cs_toolkit.step import CompiledStep, Executable, StepInterface, TensorSpec
from tests.fuzz.target import Target
from tests.fuzz.targets.schedules import FLOORPLAN, SCHEDULES

TOKEN = "token"
CALL = Call(TOKEN, "the system's nonce", "a nonce", 1)
INTERFACE = StepInterface(
    (TensorSpec("x", "float32", (2, 3)),),
    (TensorSpec("state.model.w", "bfloat16", (3,)), TensorSpec("state.global_step", "int64", ())),
    (TensorSpec("output_loss", "float32", ()),),
    ("state.model.w",),
)
DIGEST = "0" * 64
STEPS = (
    CompiledStep(
        DIGEST,
        "cs2",
        "pipelined",
        INTERFACE,
        (Executable("step", INTERFACE, DIGEST, 8),),
        "",
        FLOORPLAN.to_json(),
    ),
    CompiledStep(
        DIGEST,
        "cs2",
        "weight_streaming",
        StepInterface(
            INTERFACE.inputs, tuple(TensorSpec(n, "float32", ()) for n in SCHEDULES[0].state), (), ()
        ),
        tuple(Executable(f"f{number}", INTERFACE, f"{number:064x}", 8) for number in range(5)),
        SCHEDULES[0].to_json(),
    ),
)
STATE = {"w": np.arange(600, dtype=np.float32), "step": np.array(7), "none": np.empty((0, 3), np.uint8)}
KEY = SealingKey()


def parse_offer(data: bytes) -> None:
    message = pb.ArtifactOffer.FromString(data)
    step, share = step_from_wire(message), share_from_wire(message)
    offer = Offer(step, "cs2", ExecutableStore(None, 0), share)
    for sha256 in offer.look_up():
        offer.add(sha256, bytes(4))
    check_step(step, share.wafers)
    step_traffic(step)


def parse_tensors(data: bytes) -> None:
    """The chunks have the tags of a client that knows the token."""
    chunks = pb.StateChunk.FromString(data).tensors
    tags = CALL.requested_tensors()
    for chunk in chunks:
        tags.add(chunk, chunk.data)
    expected = {name: (array.dtype.name, array.shape) for name, array in STATE.items()}

    def accept(name: str, dtype: str, shape: tuple[int, ...]) -> None:
        if expected.get(name) != (dtype, shape):
            raise CsSystemError(f"tensor {name} is unknown")

    assembler = TensorAssembler(CALL.requested_tensors(), accept)
    assembler.add(chunks)
    assembler.finish()


def parse_input(data: bytes) -> None:
    message = pb.OpenInputRequest.FromString(data)
    position = position_from_wire(message.position)
    state = make_state(
        RunSpec(
            "job",
            TOKEN,
            message.num_workers,
            BatchLayout.of_step(INTERFACE.inputs),
            identity_from_wire(message.identity).digest,
            first_position=position.position,
            shards=position.shards,
            first_step=message.first_step,
            digest=position.digest,
            cursors=position.cursors,
            schedule=position.schedule,
        ),
        "run",
    )
    state.stats(0.0)


def parse_status(data: bytes) -> None:
    info = read_info(pb.SystemInfo.FromString(data), SystemAddress("127.0.0.1", 9000))
    render(info, 1e9)
    render_table([info], 1e9)


def parse_error(data: bytes) -> None:
    error = error_from_metadata([("other", "text"), (ERROR_KEY, data)])
    if error is not None:
        str(error)
        error_metadata(error)


def parse_proof(data: bytes) -> None:
    CallVerifier(TOKEN, "the system's nonce").verify(data.decode("latin1"), "Load", "1", None)


def encode(message: Message) -> bytes:
    found: bytes = message.SerializeToString(deterministic=True)
    return found


def input_seeds() -> list[bytes]:
    identity = identity_to_wire(InputIdentity(1, {"program": "run.py", "seed": "7"}))
    positions = InputPosition(4, 8, "00"), InputPosition(4, 8, "", (2, 2, 2, 2), pack_schedule([0, 1, 3]))
    return [
        encode(
            pb.OpenInputRequest(
                num_workers=2, identity=identity, first_step=8, position=position_to_wire(position)
            )
        )
        for position in positions
    ]


def status_seeds() -> list[bytes]:
    workers = [pb.WorkerStatus(worker=n, phase="connected", host="host", batches=7) for n in range(2)]
    run = pb.RunInfo(
        job="job",
        since=1e9,
        step=7,
        owner="user@host",
        artifact=DIGEST,
        execution="pipelined",
        input=pb.InputStatus(workers=workers, waiting_for=[1]),
        wafers=[pb.WaferWork(computing=0.5)],
        loss=0.5,
    )
    info = pb.SystemInfo(
        name="cs",
        version="1",
        state="RUNNING",
        fabric="cs2",
        fabric_json=json.dumps({"name": "cs2"}),
        data_port=9001,
        run=run,
        queue=[pb.QueuedJob(job="other", owner="user", since=1e9)],
        waiting_jobs=1,
    )
    return [encode(info), encode(pb.SystemInfo(fabric_json="{}"))]


TARGETS = [
    Target(
        "control.offer",
        parse_offer,
        (DecodeError, CsSystemError),
        lambda: [encode(step_to_wire(step)) for step in STEPS],
    ),
    Target(
        "control.tensors",
        parse_tensors,
        (DecodeError, CsSystemError),
        lambda: [encode(pb.StateChunk(tensors=chain(*pack_tensors(STATE, CALL.requested_tensors(), 1000))))],
    ),
    Target("control.input", parse_input, (DecodeError, StreamingError), input_seeds),
    Target("control.status", parse_status, (DecodeError, CsSystemError), status_seeds),
    Target(
        "control.proof",
        parse_proof,
        (CsSystemError,),
        lambda: [f"{CALL.nonce}.{CALL.number}.{CALL.prove('Load', '1', None)}".encode()],
    ),
    Target("control.error", parse_error, (), lambda: [error_metadata(SystemBusyError("busy"))[0][1]]),
    Target("control.spans", documents_from_wire, (WireFormatError,), lambda: [b'[{"process": "CS system"}]']),
    Target("control.sealed", KEY.open, (SealError,), lambda: [seal(b"secret", KEY.public)]),
]
