"""TensorFlow's checkpoints: the file `checkpoint` of a directory, and the files of a checkpoint."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf

from estimator.checkpoints import all_of, checkpoint_step, latest_checkpoint, list_checkpoints
from estimator.errors import CheckpointReadError
from tests.fuzz.target import Choices, Target, encode_text, temporary_file

STATE = b"""model_checkpoint_path: "model.ckpt-7"
all_model_checkpoint_paths: "model.ckpt-0"
all_model_checkpoint_paths: "model.ckpt-7"
all_model_checkpoint_timestamps: 1e9
"""


@cache
def files() -> dict[str, bytes]:
    """Write a checkpoint of step 7."""
    directory = temporary_file(b"", "saved/start").parent
    graph = tf.Graph()
    with graph.as_default(), tf.compat.v1.Session() as session:
        step = tf.compat.v1.train.get_or_create_global_step()
        tf.compat.v1.get_variable("weights", initializer=np.arange(12, dtype=np.float32).reshape(3, 4))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(step.assign(7))
        saver = tf.compat.v1.train.Saver()
        saver.save(session, str(directory / "model.ckpt"), global_step=7, write_meta_graph=False)
    return {path.name: path.read_bytes() for path in sorted(directory.glob("model.ckpt-7.*"))}


def write_directory(name: str, content: dict[str, bytes]) -> Path:
    """Write the files of a model_dir, and return it."""
    paths = [temporary_file(data, f"{name}/{file}") for file, data in content.items()]
    return paths[0].parent


def parse_state(data: bytes) -> None:
    directory = write_directory("state", {**files(), "checkpoint": data})
    list_checkpoints(directory)
    all_of(directory)
    newest = latest_checkpoint(directory)
    assert newest is not None
    assert checkpoint_step(newest) == 7


def parse_checkpoint(data: bytes) -> None:
    choices = Choices(data)
    content = {"checkpoint": STATE, **{name: choices.text() for name in files()}}
    newest = latest_checkpoint(write_directory("damaged", content))
    assert newest is not None
    checkpoint_step(newest)


TARGETS = [
    Target("tensorflow_files.state", parse_state, (CheckpointReadError,), lambda: [STATE]),
    Target(
        "tensorflow_files.checkpoint",
        parse_checkpoint,
        (CheckpointReadError,),
        lambda: [b"".join(map(encode_text, files().values()))],
    ),
]
