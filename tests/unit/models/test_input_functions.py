"""The input functions of the example programs have no open finding, whatever data they read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from csrun.tasks.place import tf_config
from input_rules.tf.inspection import inspect

NAMES = ("fc_mnist", "bert", "gpt2", "resnet", "transformer", "unet")
Modules = dict[str, ModuleType]


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TF_CONFIG", "CSRUN_RANK", "CSRUN_NUM_TASKS", "CSRUN_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)


def findings(modules: Modules, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    """Findings about training and evaluation with two workers."""
    program = modules["run"].PROGRAM
    params = program.merge_params(program.parse_arguments(["-m", "train", *arguments]))
    found: list[str] = []
    for training in (True, False):
        function = getattr(modules["data"], f"{'train' if training else 'eval'}_input_fn")

        def make(workers: int, index: int, function: Callable[..., Any] = function) -> Any:
            monkeypatch.setitem(
                os.environ, "TF_CONFIG", json.dumps(tf_config(index + 1, ["a"] * (workers + 1)))
            )
            return function(params)

        inspection = inspect(make, workers=2, training=training, seed=1, memory_bytes=1 << 30)
        assert inspection.context.sharded is True
        found += [f"{f.id}: {f.source}" for f in inspection.findings]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_made_up_data(name: str, example: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with example(name) as modules:
        assert findings(modules, monkeypatch) == []


def test_made_up_questions(example: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with example("bert") as modules:
        file = modules["run"].PROGRAM.folder / "configs" / "params_bert_tiny_squad.yaml"
        assert findings(modules, monkeypatch, "-p", str(file)) == []


def features(record: dict[str, Any]) -> bytes:
    def feature(values: Any) -> Any:
        if isinstance(values, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[values]))
        if np.asarray(values).dtype == np.float32:
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    named = {name: feature(values) for name, values in record.items()}
    return bytes(tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString())


def test_records_of_text(
    example: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with example("bert") as modules:
        program = modules["run"].PROGRAM
        params = program.merge_params(program.parse_arguments(["-m", "train"]))
        records = modules["data"].generate_sentences(params["train_input"], params["model"]["vocab_size"], 1)
        first = features({name: values[0] for name, values in records.items()})
        for number in range(2):
            with tf.io.TFRecordWriter(str(tmp_path / f"{number}.tfrecord")) as writer:
                writer.write(first)
        assert findings(modules, monkeypatch, "--data_dir", str(tmp_path)) == []


def test_photographs(example: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    jpeg = tf.io.encode_jpeg(np.zeros((40, 30, 3), np.uint8)).numpy()
    for split in ("train", "validation"):
        for number in range(2):
            with tf.io.TFRecordWriter(str(tmp_path / f"{split}-{number:05}-of-00002")) as writer:
                writer.write(features({"image/encoded": jpeg, "image/class/label": [1]}))
    with example("resnet") as modules:
        assert findings(modules, monkeypatch, "--data_dir", str(tmp_path)) == []


def test_masks(example: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    png = tf.io.encode_png(np.zeros((8, 8, 1), np.uint8)).numpy()
    with example("unet") as modules:
        program = modules["run"].PROGRAM
        params = program.merge_params(program.parse_arguments(["-m", "train"]))
        for split in ("train", "validation"):
            for kind in ("images", "masks"):
                (tmp_path / split / kind).mkdir(parents=True)
                for number in range(2 * params["eval_input"]["batch_size"]):
                    (tmp_path / split / kind / f"{number}.png").write_bytes(png)
        assert findings(modules, monkeypatch, "--data_dir", str(tmp_path)) == []


def test_a_photograph_is_changed_alike_in_every_fresh_input(
    example: Callable[..., Any], tmp_path: Path
) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 30, 3), np.uint8)
    jpeg = tf.io.encode_jpeg(noise).numpy()
    with tf.io.TFRecordWriter(str(tmp_path / "train-00000-of-00001")) as writer:
        for _ in range(4):
            writer.write(features({"image/encoded": jpeg, "image/class/label": [1]}))
    with example("resnet") as modules:
        program = modules["run"].PROGRAM
        params = program.merge_params(program.parse_arguments(["-m", "train", "--data_dir", str(tmp_path)]))
        params["train_input"].update(batch_size=4, shuffle_seed=3)
        first, again = ([b[0].numpy() for b in modules["data"].train_input_fn(params).take(2)] for _ in "ab")
        np.testing.assert_array_equal(first, again)
        # The same photograph four times, and other parts of it in the next epoch.
        assert len({image.tobytes() for batch in first for image in batch}) == 8
