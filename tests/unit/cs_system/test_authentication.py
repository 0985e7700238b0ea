"""Proofs of calls: who can make them, and how often they are accepted."""

from __future__ import annotations

from random import Random

import pytest

from cs_system.authentication import CallSigner, CallVerifier
from cs_system.errors import CallRefusedError
from cs_system.proto import cs_system_pb2 as pb

REQUEST = pb.RunStepsRequest(steps=100, output_every={"loss": 1, "accuracy": 10})


def sides(token: str = "secret", system: str = "system") -> tuple[CallSigner, CallVerifier]:
    return CallSigner("secret", "system"), CallVerifier(token, system)


def test_a_call_of_the_job_is_accepted_once() -> None:
    signer, verifier = sides()
    call, proof = signer.sign("RunSteps", "reservation", REQUEST)
    assert verifier.verify(proof, "RunSteps", "reservation", REQUEST) == call
    assert verifier.read(proof) == call
    with pytest.raises(CallRefusedError, match="or was changed or repeated in transit"):
        verifier.verify(proof, "RunSteps", "reservation", REQUEST)


@pytest.mark.parametrize(
    ("rpc", "reservation", "request_"),
    [
        ("StopRun", "reservation", REQUEST),
        ("RunSteps", "another", REQUEST),
        ("RunSteps", "reservation", pb.RunStepsRequest(steps=101, output_every={"loss": 1, "accuracy": 10})),
        ("RunSteps", "reservation", pb.RunStepsRequest(steps=100, output_every={"loss": 1})),
        ("RunSteps", "reservation", None),
    ],
)
def test_a_proof_is_for_one_call(rpc: str, reservation: str, request_: object) -> None:
    signer, verifier = sides()
    _, proof = signer.sign("RunSteps", "reservation", REQUEST)
    with pytest.raises(CallRefusedError):
        verifier.verify(proof, rpc, reservation, request_)
    # A refused call uses nothing up.
    verifier.verify(proof, "RunSteps", "reservation", REQUEST)


@pytest.mark.parametrize(("token", "system"), [("secret2", "system"), ("secret", "system2")])
def test_a_proof_is_for_one_secret_and_one_process(token: str, system: str) -> None:
    signer, verifier = sides(token, system)
    with pytest.raises(CallRefusedError):
        verifier.verify(signer.sign("Program", "r", REQUEST)[1], "Program", "r", REQUEST)


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a.1", "a.x.b", "a.-1.b", "a." + "9" * 5000 + ".b", "a.\u0663.b"]
)
def test_metadata_of_another_form_is_refused(text: str) -> None:
    _, verifier = sides()
    with pytest.raises(CallRefusedError):
        verifier.verify(text, "Program", "r", REQUEST)


def test_calls_of_several_threads_may_arrive_in_another_order_and_each_once() -> None:
    signer, verifier = sides()
    proofs = [signer.sign("Program", "r", REQUEST)[1] for _ in range(3000)]
    random = Random(1)
    shuffled = sorted(range(3000), key=lambda index: index + random.uniform(0, 500))
    for index in shuffled:
        verifier.verify(proofs[index], "Program", "r", REQUEST)
    for proof in proofs:
        with pytest.raises(CallRefusedError):
            verifier.verify(proof, "Program", "r", REQUEST)


def test_the_calls_of_many_workers_take_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cs_system.authentication.MAX_NONCES", 10)
    verifier = CallVerifier("secret", "system")
    for _ in range(100):
        signer = CallSigner("secret", "system")
        verifier.verify(signer.sign("JoinRun", "", REQUEST)[1], "JoinRun", "", REQUEST)
        assert len(verifier._windows) <= 10


def test_an_answer_is_proved_for_its_content_and_its_call() -> None:
    signer, _ = sides()
    call, other = (signer.sign("JoinRun", "", REQUEST)[0] for _ in range(2))
    answer = pb.JoinReply(data_port=9001, first_step=5)
    assert call.prove_answer(answer) != other.prove_answer(answer)
    assert call.prove_answer(answer) != call.prove_answer(pb.JoinReply(data_port=9001, first_step=6))


def test_the_secret_does_not_show() -> None:
    signer, _ = sides()
    call, proof = signer.sign("JoinRun", "", REQUEST)
    assert "secret" not in repr(call) + proof
