"""Every example program in mixed precision through the modes of a run without a CS system."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml

MODELS = Path(__file__).parents[3] / "models"
SMALLER = {
    "fc_mnist": {"hidden_sizes": [16]},
    "resnet": {"filters": [8, 16], "blocks": [1, 1]},
    "unet": {"encoder_filters": [8, 16], "decoder_filters": [8], "convs_per_block": 1},
    "bert": {"num_hidden_layers": 1},
    "gpt2": {"num_hidden_layers": 1},
    "transformer": {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1},
}


def mixed_precision(name: str) -> dict[str, Any]:
    """The default parameter file of an example, made smaller, as one for mixed precision."""
    suffix = "fc_mnist" if name == "fc_mnist" else f"{name}_tiny"
    params = yaml.safe_load((MODELS / name / "tf" / "configs" / f"params_{suffix}.yaml").read_text())
    params["model"].update(SMALLER[name])
    params["optimizer"]["loss_scaling_factor"] = "dynamic"
    params["runconfig"].update(precision="mixed_float16", save_checkpoints_steps=10)
    return dict(params)


def metrics_in(text: str) -> list[dict[str, float]]:
    lines = [line for line in text.splitlines() if "global_step = " in line]
    return [
        {name: float(value) for name, value in (pair.split(" = ") for pair in line.split(", "))}
        for line in lines
    ]


@pytest.mark.parametrize(
    "name",
    [
        "fc_mnist",
        # GPT-2 of `public_style` takes the same way through all modes.
        *(
            pytest.param(name, marks=pytest.mark.soak)
            for name in ("gpt2", "unet", "resnet", "bert", "transformer")
        ),
    ],
)
def test_all_modes(
    name: str, example: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(mixed_precision(name)))
    common = ["-p", str(tmp_path / "params.yaml"), "-o", str(tmp_path / "model_dir"), "--eval_steps", "1"]
    with example(name) as modules:
        run = modules["run"].PROGRAM.run
        run(["-m", "train", "--max_steps", "2", *common])
        run(["-m", "train_and_eval", "--max_steps", "4", *common])
        run(["-m", "eval", *common])
        last, again = metrics_in(capsys.readouterr().out)
        run(["-m", "predict", *common])
    assert last == again
    assert last["global_step"] == 4
    assert all(math.isfinite(value) for value in last.values())
    predictions = np.load(tmp_path / "model_dir" / "predict" / "predictions_tf_0.npz")
    assert predictions.files
    for values in predictions.values():
        assert np.isfinite(values).all()


def test_questions_of_bert_begin_with_a_pretrained_encoder(
    example: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    squad = str(MODELS / "bert" / "tf" / "configs" / "params_bert_tiny_squad.yaml")
    pretrained, tuned = tmp_path / "pretrained", tmp_path / "tuned"
    with example("bert") as modules:
        run = modules["run"].PROGRAM.run
        run(["-m", "train", "--max_steps", "2", "-o", str(pretrained)])
        checkpoint = str(pretrained / "model.ckpt-2")
        common = ["-p", squad, "-o", str(tuned), "--eval_steps", "1"]
        run(["-m", "train", "--max_steps", "1", "--checkpoint_path", checkpoint, *common])
        run(["-m", "eval", *common])
        run(["-m", "predict", *common])
    before = tf.train.load_checkpoint(checkpoint)
    first = tf.train.load_checkpoint(str(tuned / "model.ckpt-0"))
    trained = [name for name in first.get_variable_to_shape_map() if "AdamW" not in name]
    encoder = [name for name in trained if name.startswith(("embeddings/", "encoder/"))]
    assert len(encoder) == 5 + 2 * 16
    for name in encoder:
        np.testing.assert_array_equal(first.get_tensor(name), before.get_tensor(name), err_msg=name)
    assert {"answer/logits/kernel", "answer/logits/bias"} <= set(trained)
    (metrics,) = metrics_in(capsys.readouterr().out)
    assert 0.0 <= metrics["exact_match"] <= 1.0
    predictions = np.load(tuned / "predict" / "predictions_tf_0.npz")
    assert {name: values.shape for name, values in predictions.items()} == {
        "start_logits": (32, 32),
        "end_logits": (32, 32),
    }
