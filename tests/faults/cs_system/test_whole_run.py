"""Runs through chief, system and two workers, all parts real."""

import subprocess
import sys
import threading
from collections.abc import Mapping

import numpy as np
import pytest

from cs_system.client import SystemClient, parse_address
from cs_system.client.reservation import RemoteState
from cs_system.errors import (
    ArtifactRefusedError,
    InputRefusedError,
    ProgramError,
    StateMismatchError,
    WrongOrderError,
)
from cs_system.proto import cs_system_pb2 as pb


def positions(outputs):
    return [int(row[0]) for part in outputs for row in part.outputs["output_labels"]]


def test_two_workers_train_in_the_order_of_the_input(loaded, workers, linear, helpers):
    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(w, 2, 30) for w in range(2)])
    seen = []
    loaded.wait_workers(20.0, seen.append)
    assert seen[-1] == "2 of 2 workers ready"
    stream = loaded.run_steps(60)
    parts = list(stream)
    assert positions(parts) == list(range(60))
    assert not stream.end_of_input
    assert sum(part.count for part in parts) == 60
    assert sum(part.samples for part in parts) == 60 * 8
    assert np.concatenate([part.outputs["output_step"] for part in parts]).tolist() == list(range(60))
    assert [part.first_step for part in parts] == np.cumsum([0, *[p.count for p in parts[:-1]]]).tolist()
    loaded.stop(None)
    workers.join()
    assert workers.errors == {}
    assert [workers.summaries[w].batches for w in range(2)] == [30, 30]
    assert [workers.summaries[w].stopped_reason for w in range(2)] == [None, None]


def test_the_end_of_the_input_ends_the_steps(loaded, workers, linear, helpers):
    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(0, 2, 5), linear.batches(1, 2, 3)])
    stream = loaded.run_steps(1000)
    # Worker 1 ends after its position 5, worker 0 continues by itself.
    assert positions(stream) == [0, 1, 2, 3, 4, 5, 6, 8]
    assert stream.end_of_input
    assert loaded.fetch_state(["state.global_step"])["state.global_step"] == 8


def run_in_groups(loaded, workers, linear, helpers, groups):
    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(w, 2, 40) for w in range(2)])
    losses = [part.outputs["output_loss"] for n in groups for part in loaded.run_steps(n)]
    return np.concatenate(losses), loaded.fetch_state()


@pytest.fixture(scope="session")
def results():
    return {}


@pytest.mark.parametrize("groups", [(80,), (1,) * 7 + (30, 3, 40), (79, 1)], ids=["once", "many", "two"])
def test_grouping_of_steps_does_not_change_a_bit(loaded, workers, linear, helpers, results, groups):
    losses, state = run_in_groups(loaded, workers, linear, helpers, groups)
    expected_losses, expected_state = results.setdefault("first", (losses, state))
    np.testing.assert_array_equal(losses, expected_losses)
    for name, value in state.items():
        np.testing.assert_array_equal(value, expected_state[name])


def test_a_resumed_run_continues_with_the_next_batch(loaded, workers, linear, helpers, client):
    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(w, 2) for w in range(2)])
    assert positions(loaded.run_steps(7)) == list(range(7))
    checkpoint = loaded.fetch_state()
    expected = np.concatenate([part.outputs["output_loss"] for part in loaded.run_steps(5)])
    loaded.close()
    workers.join()

    with client.reserve("job", helpers.token) as second:
        second.load(linear.artifact)
        second.program()
        second.put_state(checkpoint)
        second.open_input(2, helpers.identity, int(checkpoint["state.global_step"]))
        workers.threads.clear()
        workers.start([linear.batches(w, 2) for w in range(2)])
        parts = list(second.run_steps(5))
    assert positions(parts) == [7, 8, 9, 10, 11]
    assert parts[0].first_step == 7
    np.testing.assert_array_equal(np.concatenate([p.outputs["output_loss"] for p in parts]), expected)


def test_leaving_the_outputs_early_stops_the_steps(loaded, workers, linear, helpers, client):
    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(w, 2) for w in range(2)])
    first = next(loaded.run_steps(1_000_000))
    state = loaded.fetch_state()
    step = client.info().run.step
    assert first.count <= step < 1_000_000
    assert state["state.global_step"] == step
    assert positions(loaded.run_steps(3)) == [step, step + 1, step + 2]


def test_paused_steps_end_early_and_continue_without_a_gap(loaded, workers, linear, helpers):
    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(w, 2) for w in range(2)])
    loaded.pause_steps()  # nothing runs: nothing to pause
    stream = loaded.run_steps(1_000_000)
    first = next(stream)
    thread = threading.Thread(target=loaded.pause_steps)
    thread.start()
    seen = positions([first, *stream])
    thread.join()
    assert stream.paused
    assert not stream.end_of_input
    assert loaded.fetch_state(["state.global_step"])["state.global_step"] == len(seen)
    assert seen + positions(loaded.run_steps(5)) == list(range(len(seen) + 5))


def test_steps_can_follow_abandoned_ones_immediately(loaded, workers, linear, helpers):
    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(w, 2) for w in range(2)])
    for _ in range(5):
        next(loaded.run_steps(1_000_000))
    parts = list(loaded.run_steps(3))
    first = parts[0].first_step
    assert positions(parts) == [first, first + 1, first + 2]
    assert loaded.fetch_state(["state.global_step"])["state.global_step"] == first + 3


def test_a_slow_chief_gets_everything(loaded, workers, linear, helpers):
    loaded.open_input(2, helpers.identity, 0)
    workers.start([linear.batches(w, 2) for w in range(2)])
    got = []
    for part in loaded.run_steps(3000):
        got += positions([part])
        # As slow as a chief that writes summaries: the system has to wait for it, not to drop anything.
        if len(got) < 600:
            np.linalg.svd(np.ones((150, 150)))
    assert got == list(range(3000))


def test_state_comes_back_as_it_was_put(loaded, linear):
    state = linear.state(step=12)
    state["state.model.w"] = np.float32([[0.1], [-np.inf], [np.nan], [1e-40]])
    loaded.put_state(state)
    got = loaded.fetch_state()
    assert list(got) == [spec.name for spec in linear.artifact.interface.state]
    for name, array in state.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_array_equal(got[name], array)


def test_state_larger_than_a_message_travels_in_parts(reservation, helpers, tmp_path):
    text = helpers.linear_text.replace("8x4xf32", "8x1000000xf32").replace("4x1xf32", "1000000x1xf32")
    reservation.load(helpers.compiled(tmp_path, text))
    state = {
        "state.model.w": np.random.default_rng(0).standard_normal((1_000_000, 1)).astype(np.float32),
        "state.optimizer.lr": np.full((), 0.5, np.float32),
        "state.global_step": np.full((), 3, np.int64),
    }
    reservation.put_state(state)
    for name, array in reservation.fetch_state().items():
        np.testing.assert_array_equal(array, state[name])


def test_state_larger_than_one_message_is_transferred(reservation, helpers, tmp_path, monkeypatch):
    text, rows, columns = helpers.linear_text, 4100, 4200  # 69 MB, which come last
    for old, new in {
        "<8xf32": f"<{8 * columns}xf32",
        "<8xi32": f"<{8 * columns}xi32",
        "<8x4x": f"<8x{rows}x",
        "<4x1x": f"<{rows}x{columns}x",
        "<8x1x": f"<8x{columns}x",
    }.items():
        text = text.replace(old, new)
    reservation.load(helpers.compiled(tmp_path, text))
    state = {
        "state.optimizer.lr": np.full((), 0.5, np.float32),
        "state.global_step": np.full((), 3, np.int64),
        "state.model.w": np.arange(rows * columns, dtype=np.float32).reshape(rows, columns),
    }
    reservation.put_state(state)
    monkeypatch.setattr("cs_system.client.reservation.LARGE_STATE_BYTES", 0)
    got = reservation.state()
    assert isinstance(got, RemoteState)
    assert sorted(got) == sorted(state)
    for name, array in state.items():
        np.testing.assert_array_equal(got[name], array)


def test_a_state_of_which_a_tensor_cannot_be_read(loaded, linear):
    class Lazy(Mapping):
        def __getitem__(self, name):
            if name == "state.optimizer.lr":
                raise OSError("no such disk")
            return linear.state()[name]

        def __iter__(self):
            return iter(linear.state())

        def __len__(self):
            return len(linear.state())

    with pytest.raises(OSError, match="no such disk"):
        loaded.put_state(Lazy())


def test_a_state_that_does_not_fit_is_refused_before_it_travels(loaded, linear):
    state = linear.state()
    state["state.model.w"] = np.zeros((3, 1), np.float32)
    del state["state.optimizer.lr"]
    with pytest.raises(StateMismatchError) as refused:
        loaded.put_state(state)
    assert "'state.optimizer.lr' is missing" in str(refused.value)
    assert "'state.model.w' is float32[3, 1], expected float32[4, 1]" in str(refused.value)
    with pytest.raises(StateMismatchError, match=r"'state\.model\.v' is not state of the program"):
        loaded.fetch_state(["state.model.v"])


def test_the_server_checks_a_state_too(loaded, linear, monkeypatch):
    monkeypatch.setattr("cs_system.client.reservation.state_problems", lambda *_: [])
    state = linear.state()
    state["state.model.w"] = np.zeros((3, 1), np.float32)
    with pytest.raises(StateMismatchError, match=r"float32\[3, 1\], expected float32\[4, 1\]"):
        loaded.put_state(state)
    del state["state.model.w"]
    with pytest.raises(StateMismatchError, match=r"'state\.model\.w' is missing"):
        loaded.put_state(state)


def test_the_executable_travels_once(client, system, linear, helpers, monkeypatch):
    with client.reserve("job", helpers.token) as reservation:
        reservation.load(linear.artifact)
    monkeypatch.setattr("cs_system.client.reservation._artifact_chunks", lambda *_: pytest.fail("sent again"))
    with client.reserve("job", helpers.token) as reservation:
        reservation.load(linear.artifact)
        assert reservation.program() > 0


def damage(monkeypatch, wanted):
    """The first byte of what has this content arrives as another one; what is sent is noted."""
    sent = []

    def chunks(sha256, data):
        sent.append(data)
        yield pb.ArtifactChunk(sha256=sha256, data=b"x" + data[1:] if data == wanted else data)

    monkeypatch.setattr("cs_system.client.reservation._artifact_chunks", chunks)
    return sent


def test_an_executable_that_is_damaged_on_the_way_is_refused(reservation, linear, helpers, monkeypatch):
    data = b"sent by nobody else"
    damage(monkeypatch, data)
    with pytest.raises(ArtifactRefusedError, match="arrived damaged: got 19 bytes with SHA-256"):
        reservation.load(helpers.made(linear.artifact.step, {"step": data}))


def test_the_second_of_several_executables_is_checked_as_the_first(
    reservation, linear, helpers, monkeypatch, tmp_path
):
    data = {name: f"{tmp_path} {name}".encode() for name in ("forward", "backward", "update")}
    sent = damage(monkeypatch, data["backward"])
    source = helpers.made(linear.artifact.step, data)
    with pytest.raises(ArtifactRefusedError, match=r"executable 'backward' of artifact \w+ arrived damaged"):
        reservation.load(source)
    assert sent == list(data.values())
    sent.clear()
    with pytest.raises(ArtifactRefusedError, match="arrived damaged"):
        reservation.load(source)
    assert sent == [data["backward"], data["update"]]  # the first one exists already


def test_an_artifact_of_another_fabric_is_refused(reservation, helpers, tmp_path):
    with pytest.raises(ArtifactRefusedError, match="is compiled for fabric 'cs1', this system has 'cs2'"):
        reservation.load(helpers.compiled(tmp_path, helpers.linear_text, fabric="cs1"))


def test_an_executable_that_is_none_is_refused(reservation, linear, helpers):
    reservation.load(helpers.made(linear.artifact.step, {"step": b"no program"}))
    with pytest.raises(ProgramError, match="compile again"):
        reservation.program()


def test_calls_in_the_wrong_order_say_the_right_one(reservation, linear, helpers):
    with pytest.raises(WrongOrderError, match="load comes first"):
        reservation.program()
    with pytest.raises(WrongOrderError, match="load comes first"):
        reservation.put_state(linear.state())
    with pytest.raises(WrongOrderError, match="load comes first"):
        reservation.fetch_state()
    with pytest.raises(WrongOrderError, match="load comes first"):
        reservation.open_input(1, helpers.identity, 0)
    reservation.load(linear.artifact)
    with pytest.raises(WrongOrderError, match="run_steps before open_input"):
        list(reservation.run_steps(1))
    with pytest.raises(WrongOrderError, match="got 0 steps"):
        reservation.run_steps(0)
    with pytest.raises(WrongOrderError, match="wait_workers before open_input"):
        reservation.wait_workers(1.0)
    reservation.open_input(1, helpers.identity, 0)
    with pytest.raises(WrongOrderError, match="the input of this run is open already"):
        reservation.open_input(1, helpers.identity, 0)
    with pytest.raises(WrongOrderError, match="put_state comes before the first step"):
        list(reservation.run_steps(1))


def test_an_input_without_workers_is_refused(loaded, helpers):
    with pytest.raises(InputRefusedError, match="got 0 workers and 0 shards from step 0"):
        loaded.open_input(0, helpers.identity, 0)


def test_states_of_the_system_during_a_run(client, system, linear, workers, helpers):
    states = [client.info().state]
    with client.reserve("job", helpers.token) as reservation:
        states.append(client.info().state)
        reservation.load(linear.artifact)
        reservation.program()
        reservation.put_state(linear.state())
        reservation.open_input(2, helpers.identity, 0)
        info = client.info()
        states.append(info.state)
        assert info.run.waiting_for == (0, 1)
        workers.start([linear.batches(w, 2) for w in range(2)])
        reservation.wait_workers(20.0)
        stream = reservation.run_steps(100_000)
        next(stream)
        info = client.info()
        states.append(info.state)
        assert info.run.job == "job"
        assert info.run.step > 0
        assert info.run.steps_per_s > 0
        assert info.run.samples_per_s == pytest.approx(8 * info.run.steps_per_s, rel=0.5)
        assert [w.phase for w in info.run.workers] == ["connected", "connected"]
    assert states == ["IDLE", "RESERVED", "WAITING FOR INPUT", "RUNNING"]
    assert client.info().state == "IDLE"
    assert client.info().run is None


def test_a_system_describes_itself(client, system):
    info = client.info()
    assert info.fabric == "cs2"
    assert info.address == system.address
    assert info.data_address == system.data_address
    assert info.limits.message_bytes == 4 << 20


def test_importing_the_client_imports_no_framework():
    code = "import cs_system.client, sys; print(sorted({'jax', 'tensorflow', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_two_clients_of_one_process(system):
    address = parse_address(system.address)
    with SystemClient(address) as one, SystemClient(address) as two:
        one.close()
        assert two.info().state == "IDLE"
