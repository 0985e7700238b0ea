"""A damaged TensorFlow checkpoint is skipped in favor of the one before, and never starts training over."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator import CerebrasEstimator, CSRunConfig, ModeKeys, WarmStartSettings
from estimator.checkpoints import all_of, latest_checkpoint
from estimator.cs.program import TensorFlowFrontEnd
from estimator.errors import CheckpointReadError
from estimator.input.dataset import InputSource

Tiny = Callable[..., CerebrasEstimator]
InputFn = Callable[..., Any]
SEED = 35


def _train(estimator: CerebrasEstimator, tiny_input: InputFn, *steps: int) -> None:
    for step in steps:
        estimator.train(tiny_input, max_steps=step)


def _tensors(prefix: str) -> dict[str, bytes]:
    reader = tf.train.load_checkpoint(prefix)
    return {name: reader.get_tensor(name).tobytes() for name in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize(("kind", "times"), [("flip", 150), ("page", 40), ("cut", 20)])
def test_damage_of_the_newest_is_noticed(
    tiny: Tiny, tiny_input: InputFn, tmp_path: Path, kind: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    estimator = tiny()
    _train(estimator, tiny_input, 1, 2)
    model_dir = Path(estimator.model_dir)
    newest, before = str(model_dir / "model.ckpt-2"), str(model_dir / "model.ckpt-1")
    intact = _tensors(newest)
    files = [Path(f"{newest}.index"), Path(f"{newest}.data-00000-of-00001")]
    generator = random.Random(SEED)
    skipped = 0
    for _ in range(times):
        path = generator.choices(files, [file.stat().st_size for file in files])[0]
        content = path.read_bytes()
        damaged, at = bytearray(content), generator.randrange(len(content))
        if kind == "flip":
            damaged[at] ^= 1 << generator.randrange(8)
        elif kind == "page":
            at -= at % 64
            damaged[at : at + 64] = bytes(len(damaged[at : at + 64]))
        else:
            del damaged[at:]
        path.write_bytes(damaged)
        caplog.clear()
        found = latest_checkpoint(model_dir)
        assert found in (newest, before)
        if found == newest:
            assert _tensors(newest) == intact
        else:
            skipped += 1
            assert f"checkpoint '{newest}' is damaged" in caplog.text
        path.write_bytes(content)
    assert skipped > times // 2
    assert latest_checkpoint(model_dir) == newest


def test_training_resumes_from_the_one_before(tiny: Tiny, tiny_input: InputFn, tmp_path: Path) -> None:
    whole = tiny(model_dir=tmp_path / "whole")
    _train(whole, tiny_input, 2, 4, 6)
    damaged = tiny(keep_checkpoint_max=2)
    _train(damaged, tiny_input, 2, 4)
    data = Path(f"{damaged.latest_checkpoint()}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:-4] + b"????")
    assert damaged.latest_checkpoint() == str(Path(damaged.model_dir) / "model.ckpt-2")
    damaged.train(tiny_input, max_steps=3)
    # The damaged one is the first to be removed.
    assert [Path(prefix).name for prefix in all_of(damaged.model_dir)] == ["model.ckpt-2", "model.ckpt-3"]
    damaged.train(tiny_input, max_steps=6)
    assert damaged.get_variable_value("global_step") == 6


def test_a_damaged_checkpoint_gets_one_warning(
    tiny: Tiny, tiny_input: InputFn, caplog: pytest.LogCaptureFixture
) -> None:
    estimator = tiny(keep_checkpoint_max=3)
    _train(estimator, tiny_input, 1, 2)
    data = Path(f"{estimator.latest_checkpoint()}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:-4] + b"????")
    caplog.clear()
    estimator.train(tiny_input, max_steps=4)
    estimator.evaluate(tiny_input, steps=1, checkpoint_path=str(Path(estimator.model_dir) / "model.ckpt-1"))
    assert caplog.text.count("is damaged") == 1


def _remove_index(prefix: Path) -> None:
    Path(f"{prefix}.index").unlink()


def _empty_data(prefix: Path) -> None:
    Path(f"{prefix}.data-00000-of-00001").write_bytes(b"")


@pytest.mark.parametrize("damage", [_remove_index, _empty_data])
def test_training_does_not_start_over(
    tiny: Tiny, tiny_input: InputFn, damage: Callable[[Path], None]
) -> None:
    estimator = tiny()
    _train(estimator, tiny_input, 1, 2)
    model_dir = Path(estimator.model_dir)
    for step in (1, 2):
        damage(model_dir / f"model.ckpt-{step}")
    before = sorted(path.name for path in model_dir.iterdir())
    with pytest.raises(CheckpointReadError, match=r"model\.ckpt-2.*before it are damaged"):
        estimator.train(tiny_input, max_steps=4)
    with pytest.raises(CheckpointReadError, match="empty model_dir to start from step 0"):
        estimator.train(tiny_input, steps=4)
    assert sorted(path.name for path in model_dir.iterdir()) == before


def test_a_damaged_list_without_checkpoints_is_an_error(tiny: Tiny, tiny_input: InputFn) -> None:
    estimator = tiny()
    Path(estimator.model_dir).mkdir(parents=True)
    (Path(estimator.model_dir) / "checkpoint").write_bytes(b"\xff\0")
    with pytest.raises(CheckpointReadError, match="has no checkpoint"):
        estimator.train(tiny_input, steps=1)


def _make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [_make_fifo, _link_to_itself, _make_directory])
@pytest.mark.parametrize("name", ["model.ckpt-2.index", "model.ckpt-2.data-00000-of-00001", "checkpoint"])
def test_what_is_no_file_is_no_checkpoint(
    tiny: Tiny, tiny_input: InputFn, change: Callable[[Path], None], name: str
) -> None:
    estimator = tiny()
    _train(estimator, tiny_input, 1, 2)
    model_dir = Path(estimator.model_dir)
    change(model_dir / name)
    step = 2 if name == "checkpoint" else 1
    assert latest_checkpoint(model_dir) == str(model_dir / f"model.ckpt-{step}")


def test_files_with_other_names_are_no_checkpoints(
    tiny: Tiny, tiny_input: InputFn, caplog: pytest.LogCaptureFixture
) -> None:
    estimator = tiny()
    _train(estimator, tiny_input, 1)
    model_dir = Path(estimator.model_dir)
    (model_dir / "model.ckpt-\u00b2.index").touch()
    (model_dir / "checkpoint").write_text(f'model_checkpoint_path: "{"a" * 10_000_000}"')
    assert latest_checkpoint(model_dir) == str(model_dir / "model.ckpt-1")
    assert len(caplog.text) < 10_000


def test_a_killed_write_leaves_the_checkpoint_before(
    tiny_model: Any, tiny_input: InputFn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = CSRunConfig("127.0.0.1")
    source = InputSource(tiny_input, ModeKeys.TRAIN, {}, config, {})
    end = TensorFlowFrontEnd(tiny_model, source, {}, config, tmp_path)
    state = end.initial_state()
    end.save(1, state)
    replaced: list[Path] = []

    class Killed(BaseException):
        """Ends the write as a kill does: nothing is cleaned up."""

    replace = Path.replace

    def replace_and_die(path: Path, target: Path) -> Path:
        replaced.append(target)
        if len(replaced) == dies_at:
            raise Killed
        return replace(path, target)

    for dies_at in range(1, 6):  # data, meta, index, list; then it is complete
        replaced.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace_and_die)
            with contextlib.suppress(Killed):
                end.save(2, state)
        assert latest_checkpoint(tmp_path) == str(tmp_path / f"model.ckpt-{1 if dies_at < 5 else 2}")
    end.save(3, state)
    assert not list(tmp_path.glob(".*"))


ODD_NAMES = ["a[1]b", "x*yq?z", 'new\nline and quo"te', "back\\slash ünï {b}%d$HOME"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_names_of_directories(tiny: Tiny, tiny_input: InputFn, tmp_path: Path, name: str) -> None:
    model_dir = tmp_path / name
    estimator = tiny(model_dir=model_dir, keep_checkpoint_max=2)
    _train(estimator, tiny_input, 1, 2, 3)
    assert latest_checkpoint(model_dir) == str(model_dir / "model.ckpt-3")
    assert [Path(prefix).name for prefix in all_of(model_dir)] == ["model.ckpt-2", "model.ckpt-3"]
    assert not list(model_dir.glob("model.ckpt-1.*"))
    assert estimator.evaluate(tiny_input)["global_step"] == 3
    assert estimator.evaluate(tiny_input, checkpoint_path=str(model_dir / "model.ckpt-2"))["global_step"] == 2
    assert len(list(estimator.predict(tiny_input))) == 24
    kernel = estimator.get_variable_value("dense/kernel")
    warm = tiny(
        model_dir=tmp_path / f"warm{name}", warm_start_from=WarmStartSettings(str(model_dir), "dense/kernel")
    )
    warm.train(tiny_input, steps=1)
    assert np.allclose(warm.get_variable_value("dense/kernel"), kernel, atol=0.2)
