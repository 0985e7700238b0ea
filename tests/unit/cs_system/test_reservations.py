import pytest

from cs_system.authentication import CallSigner
from cs_system.errors import (
    CallRefusedError,
    ReservationLostError,
    SystemBusyError,
    TooManyWaitingError,
    clock_text,
)
from cs_system.proto import cs_system_pb2 as pb
from cs_system.server.reservations import ReservationBook


def test_the_first_job_gets_the_system():
    book = ReservationBook()
    ticket = book.enter("a", "token", wait=False, now_s=100.0)
    assert book.position(ticket) == 0
    assert book.check_holder(ticket.id) is ticket
    assert ticket.since_s == 100.0


def test_a_second_job_learns_who_holds_it_and_since_when():
    book = ReservationBook()
    book.enter("job-a", "token", wait=False, now_s=1_700_000_000.0)
    with pytest.raises(SystemBusyError) as busy:
        book.enter("job-b", "token", wait=False, now_s=1_700_000_060.0)
    assert f"held by job-a since {clock_text(1_700_000_000.0)}" in str(busy.value)
    assert busy.value.job == "job-a"
    assert book.waiting == ()


def test_waiting_jobs_get_it_in_the_order_of_their_arrival():
    book = ReservationBook()
    a, b, c, d = (book.enter(job, "token", wait=True, now_s=0.0) for job in "abcd")
    assert [book.position(ticket) for ticket in (a, b, c, d)] == [0, 1, 2, 3]
    book.leave(b, "its chief has gone", now_s=5.0)
    book.leave(a, "released", now_s=10.0)
    assert [book.position(ticket) for ticket in (c, d)] == [0, 1]
    assert c.since_s == 10.0
    with pytest.raises(ReservationLostError, match="its chief has gone"):
        book.position(b)


def test_the_queue_has_an_end_for_each_host_and_for_all():
    book = ReservationBook()
    first = book.enter("holder", "token", wait=True, now_s=0.0, peer="a")
    for number in range(32):
        book.enter(f"job-{number}", "token", wait=True, now_s=0.0, peer="a")
    with pytest.raises(TooManyWaitingError, match="32 jobs queue for the CS system, 32 of this host"):
        book.enter("one-more", "token", wait=True, now_s=0.0, peer="a")
    for number in range(32, 256):
        book.enter(f"job-{number}", "token", wait=True, now_s=0.0, peer=f"host-{number}")
    with pytest.raises(TooManyWaitingError, match="256 jobs queue for the CS system, 0 of this host"):
        book.enter("one-more", "token", wait=True, now_s=0.0, peer="b")
    book.leave(first, "released", now_s=1.0)
    book.enter("one-more", "token", wait=True, now_s=1.0, peer="b")


def test_a_call_after_the_end_gets_the_reason():
    book = ReservationBook()
    ticket = book.enter("a", "token", wait=False, now_s=0.0)
    ticket.ending = "the CS system is shutting down (SIGTERM)"
    with pytest.raises(ReservationLostError, match="shutting down"):
        book.check_holder(ticket.id)
    book.leave(ticket, "released by its chief", now_s=1.0)
    with pytest.raises(ReservationLostError, match="has ended: released by its chief"):
        book.check_holder(ticket.id)


@pytest.mark.parametrize(("reservation", "text"), [("", "reserve it first"), ("forged", "does not know it")])
def test_a_call_without_a_reservation_is_refused(reservation, text):
    book = ReservationBook()
    book.enter("a", "token", wait=False, now_s=0.0)
    with pytest.raises(ReservationLostError, match=text):
        book.check_holder(reservation)


def test_reasons_of_old_reservations_are_forgotten_in_the_end():
    book = ReservationBook()
    first = book.enter("a", "token", wait=False, now_s=0.0)
    book.leave(first, "the first reason", now_s=0.0)
    for _ in range(100):
        book.leave(book.enter("b", "token", wait=False, now_s=0.0), "another", now_s=0.0)
    with pytest.raises(ReservationLostError, match="does not know it"):
        book.check_holder(first.id)


def test_the_token_of_a_ticket_does_not_show():
    assert "the token" not in repr(ReservationBook().enter("a", "the token", wait=False, now_s=0.0))


def test_a_call_of_an_earlier_reservation_of_the_job_is_not_accepted_again():
    book = ReservationBook()
    request = pb.JoinRequest(job="a", timeout_s=1.0)
    _, proof = CallSigner("token", book.nonce).sign("JoinRun", "", request)
    first = book.enter("a", "token", wait=False, now_s=0.0)
    first.joins.verify(proof, "JoinRun", "", request)
    book.leave(first, "released", now_s=1.0)
    again = book.enter("a", "token", wait=False, now_s=2.0)
    with pytest.raises(CallRefusedError):
        again.joins.verify(proof, "JoinRun", "", request)
    assert book.enter("b", "another", wait=True, now_s=3.0).joins is not again.joins


def test_a_call_of_a_chief_is_for_one_reservation():
    book = ReservationBook()
    request = pb.RunStepsRequest(steps=1)
    first = book.enter("a", "token", wait=False, now_s=0.0)
    _, proof = CallSigner("token", book.nonce).sign("RunSteps", first.id, request)
    first.calls.verify(proof, "RunSteps", first.id, request)
    with pytest.raises(CallRefusedError):
        first.calls.verify(proof, "RunSteps", first.id, request)
    book.leave(first, "released", now_s=1.0)
    again = book.enter("a", "token", wait=False, now_s=2.0)
    assert again.calls.nonces == 0
    with pytest.raises(CallRefusedError):
        again.calls.verify(proof, "RunSteps", again.id, request)


def test_the_calls_of_all_jobs_take_limited_memory(monkeypatch):
    for module in ("authentication", "server.reservations"):
        monkeypatch.setattr(f"cs_system.{module}.MAX_NONCES", 10)
    book, request = ReservationBook(), pb.JoinRequest(job="a")
    for number in range(40):
        token = f"token-{number}"
        ticket = book.enter(f"job-{number}", token, wait=False, now_s=0.0)
        for _ in range(4):
            _, proof = CallSigner(token, book.nonce).sign("JoinRun", "", request)
            ticket.joins.verify(proof, "JoinRun", "", request)
        book.leave(ticket, "released", now_s=1.0)
        remembered = sum(verifier.nonces for verifier in book._verifiers.values())
        assert min(2, number + 1) * 4 <= remembered <= 10 + 4
