"""The control plane on a network with listeners, and with bits that change on the way."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest

from cs_system.authentication import CallSigner
from cs_system.client import SystemClient, join_run, parse_address
from cs_system.errors import InputRefusedError, TensorDamagedError
from cs_system.proto import cs_system_pb2 as pb
from cs_system.proto import cs_system_pb2_grpc
from cs_system.transport import client_metadata, error_from_metadata

# The bytes of a tensor that the proxies look for.
MARK = bytes(range(101, 117))


class Wire:
    """A proxy that records all bytes to the system, and changes a bit of a mark wherever it is told to.

    Args:
        address: HOST:PORT of the system.
    """

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.sent = bytearray()
        self.flip_to_system: list[int] = []
        self.flip_to_client: list[int] = []
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                for order in (
                    (near, far, self.flip_to_system, self.sent),
                    (far, near, self.flip_to_client, None),
                ):
                    threading.Thread(target=self._forward, args=order, daemon=True).start()

    @staticmethod
    def _forward(
        source: socket.socket, sink: socket.socket, flips: list[int], record: bytearray | None
    ) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                if record is not None:
                    record += data
                at = data.find(MARK)
                if flips and at >= 0:
                    bit = flips.pop(0)
                    data[at + bit // 8] ^= 1 << bit % 8
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        for sock in self._sockets:
            sock.close()


@pytest.fixture
def wire(system) -> Iterator[Wire]:
    wire = Wire(system.address)
    yield wire
    wire.close()


@pytest.fixture
def marked(linear) -> dict[str, np.ndarray]:
    """The state of the step, whose weight is the mark."""
    return linear.state() | {"state.model.w": np.frombuffer(MARK, np.float32).reshape(4, 1)}


def test_each_bit_of_a_state_that_changes_on_the_way_is_an_error_of_its_tensor(wire, linear, marked, helpers):
    with SystemClient(parse_address(wire.address)) as client, client.reserve("job", helpers.token) as held:
        held.load(linear.artifact)
        held.program()
        for bit in range(0, 128, 3):
            wire.flip_to_system.append(bit)
            with pytest.raises(
                TensorDamagedError, match=r"tensor 'state\.model\.w' was changed in transit"
            ) as error:
                held.put_state(marked)
            assert "start the job again" in str(error.value)
        held.put_state(marked)
        np.testing.assert_array_equal(held.fetch_state()["state.model.w"], marked["state.model.w"])


def test_a_fetched_tensor_that_changes_on_the_way_is_fetched_again(wire, linear, marked, helpers, caplog):
    caplog.set_level(logging.WARNING, logger="cs_system.client")
    with SystemClient(parse_address(wire.address)) as client, client.reserve("job", helpers.token) as held:
        held.load(linear.artifact)
        held.program()
        held.put_state(marked)
        for bit in range(0, 128, 3):
            wire.flip_to_client.append(bit)
            np.testing.assert_array_equal(held.fetch_state()["state.model.w"], marked["state.model.w"])
        assert len([line for line in caplog.messages if "it is fetched once more" in line]) == 43
        wire.flip_to_client += [1, 2]
        with pytest.raises(TensorDamagedError, match=r"tensor 'state\.model\.w'"):
            held.fetch_state()


def refusal(call: Callable[[], object]) -> str:
    """The code of the error with which the system refuses a call."""
    with pytest.raises(grpc.RpcError) as refused:
        call()
    error = error_from_metadata(refused.value.trailing_metadata())
    return "" if error is None else error.code


def test_who_has_read_the_reservation_can_neither_stop_the_run_nor_change_its_state(
    system, workers, linear, helpers
):
    with SystemClient(parse_address(system.address)) as client, client.reserve("job", helpers.token) as held:
        held.load(linear.artifact)
        held.program()
        held.put_state(linear.state())
        held.open_input(1, helpers.identity, 0)
        workers.start([linear.batches(0, 1)])
        recorded: list[tuple[str, object, tuple[tuple[str, str], ...]]] = []
        sign = held._sign

        def sign_and_record(rpc, request):
            call, metadata = sign(rpc, request)
            recorded.append((rpc, request, metadata))
            return call, metadata

        held._sign = sign_and_record
        held.wait_workers(20.0)
        outputs = list(held.run_steps(5))
        held.pause_steps()
        with grpc.insecure_channel(system.address) as channel:
            stub = cs_system_pb2_grpc.CsSystemStub(channel)
            known = client_metadata(held._id)
            made_up = client_metadata(held._id, "nonce.99.0123")
            for metadata in (known, made_up):
                stop = pb.StopRequest(reason="enough", release=True)
                assert refusal(lambda m=metadata, s=stop: stub.StopRun(s, metadata=m)) == "call_refused"
                assert refusal(lambda m=metadata: stub.PutState(iter([]), metadata=m)) == "call_refused"
                fetch = pb.FetchStateRequest()
                assert (
                    refusal(lambda m=metadata, f=fetch: list(stub.FetchState(f, metadata=m)))
                    == "call_refused"
                )
            # The calls of the chief, repeated bit for bit.
            assert [rpc for rpc, _, _ in recorded] == ["WatchInput", "RunSteps", "PauseSteps"]
            for rpc, request, metadata in recorded:
                repeated = getattr(stub, rpc)
                if rpc == "PauseSteps":
                    assert (
                        refusal(lambda c=repeated, r=request, m=metadata: c(r, metadata=m)) == "call_refused"
                    )
                else:
                    assert (
                        refusal(lambda c=repeated, r=request, m=metadata: list(c(r, metadata=m)))
                        == "call_refused"
                    )
        assert sum(span.count for span in outputs + list(held.run_steps(5))) == 10


def test_the_token_is_in_no_byte_of_the_connection_and_a_repeated_join_is_refused(
    wire, system, workers, linear, helpers
):
    token = "a token that nobody guesses"
    with SystemClient(parse_address(wire.address)) as client, client.reserve("job", token) as held:
        held.load(linear.artifact)
        held.program()
        held.put_state(linear.state())
        held.open_input(1, helpers.identity, 0)
        join_run(parse_address(wire.address), "job", token, 5.0, helpers.identity)
        with pytest.raises(InputRefusedError, match="the worker's token is not that of job job"):
            join_run(parse_address(system.address), "job", "a guess", 5.0, helpers.identity)
        with grpc.insecure_channel(system.address) as channel:
            stub = cs_system_pb2_grpc.CsSystemStub(channel)
            request = pb.JoinRequest(job="job", timeout_s=5.0)
            nonce = stub.Info(pb.InfoRequest(), metadata=client_metadata()).nonce
            _, proof = CallSigner(token, nonce).sign("JoinRun", "", request)
            metadata = client_metadata(proof=proof)
            assert stub.JoinRun(request, metadata=metadata).data_port
            assert refusal(lambda: stub.JoinRun(request, metadata=metadata)) == "input_refused"
    assert b"a token" not in wire.sent
    # HTTP/2 carries short ASCII texts as they are, or with Huffman coding; the name of the job is a message.
    assert b"job" in wire.sent


@pytest.mark.parametrize(
    "request_",
    [
        pb.JoinRequest(job="j" * 201, timeout_s=5.0),
        pb.JoinRequest(job="a\x1b[2J", timeout_s=5.0),
        pb.JoinRequest(job="job", timeout_s=5.0, worker="w" * (1 << 16)),
        pb.ReleaseRequest(job="j" * 201),
        pb.ReleaseRequest(job="a\nb"),
    ],
    ids=["long", "control", "large", "long release", "line"],
)
def test_a_name_or_request_over_the_limits_is_refused_before_it_waits(system, request_):
    with grpc.insecure_channel(system.address) as channel:
        stub = cs_system_pb2_grpc.CsSystemStub(channel)
        call = stub.JoinRun if isinstance(request_, pb.JoinRequest) else stub.Release
        assert refusal(lambda: call(request_, metadata=client_metadata())) == "input_refused"
