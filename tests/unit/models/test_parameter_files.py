"""Parameter files whose entries do not fit together: one line for each error, with the line of the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cs_toolkit.loader import ConfigError

CONFIGS = Path(__file__).parents[3] / "models"
PHASE = "scheduler: Linear\n      initial_learning_rate: 0.0\n      end_learning_rate: 0.003\n      steps: "


@pytest.mark.parametrize(
    ("name", "old", "new", "at", "expected"),
    [
        ("gpt2", "num_heads: 4", "num_heads: 5", "num_heads", "'model.num_heads' is 5: hidden_size is 64, "),
        ("bert", "num_heads: 4", "num_heads: 3", "num_heads", "'model.num_heads' is 3: hidden_size is 64, "),
        (
            "gpt2",
            "max_sequence_length: 32",
            "max_sequence_length: 33",
            "model",
            "'model': max_position_embeddings is 32, expected at least train_input.max_sequence_length, 33",
        ),
        (
            "bert",
            "max_position_embeddings: 64",
            "max_position_embeddings: 16",
            "model",
            "'model': max_position_embeddings is 16, expected at least train_input.max_sequence_length, 32",
        ),
        (
            "bert",
            "max_predictions_per_seq: 5",
            "mask_seed: 1",
            "model",
            "the head is pretraining and train_input.max_predictions_per_seq is None, expected a number",
        ),
        (
            "bert",
            "hidden_size: 64",
            "hidden_size: 64\n  head: question_answering",
            "model",
            "the head is question_answering and train_input.max_predictions_per_seq is 5, expected none, ",
        ),
        ("transformer", "d_model: 64", "d_model: 63", "model", "'model': d_model is 63, expected an even "),
        ("resnet", "blocks: [1, 1, 1]", "blocks: [1, 1]", "blocks", "is [1, 1]: filters are [8, 16, 32], "),
        (
            "unet",
            "decoder_filters: [16, 8]",
            "decoder_filters: [8]",
            "decoder_filters",
            "is [8]: encoder_filters are [8, 16, 32], expected 2 of them",
        ),
        (
            "unet",
            "image_shape: [16, 16, 1]",
            "image_shape: [16, 18, 1]",
            "encoder_filters",
            "image_shape is [16, 18, 1], expected height and width divisible by 4 for 3 levels",
        ),
        (
            "gpt2",
            PHASE + "40",
            PHASE + "0",
            "steps",
            "'optimizer.learning_rate.0.steps' is 0: Input should be greater than or equal to 1",
        ),
        (
            "gpt2",
            PHASE + "40",
            "scheduler: Linear\n      initial_learning_rate: 0.0",
            "- scheduler",
            "'optimizer.learning_rate.0': the scheduler Linear needs end_learning_rate and steps",
        ),
        (
            "fc_mnist",
            "learning_rate: 0.001",
            "learning_rate: fast",
            "learning_rate",
            "is 'fast': expected a number above 0, or a list of phases",
        ),
        ("fc_mnist", "learning_rate: 0.001", "learning_rate: 0", "learning_rate", "is 0: expected a number "),
        (
            "fc_mnist",
            "learning_rate: 0.001",
            "learning_rate: 1e400",
            "learning_rate",
            "1e400 is not a finite ",
        ),
        ("fc_mnist", "dropout: 0.2", "dropout: .inf", "dropout", "is inf: Input should be a finite number"),
        (
            "fc_mnist",
            "learning_rate: 0.001",
            "learning_rate: 0.001\n  loss_scaling_factor: .inf",
            "loss_scaling_factor",
            'is inf: expected a number of at least 1, or "dynamic"',
        ),
        (
            "fc_mnist",
            "learning_rate: 0.001",
            "learning_rate: 0.001\n  loss_scaling_factor: 0.5",
            "loss_scaling_factor",
            'is 0.5: expected a number of at least 1, or "dynamic"',
        ),
    ],
)
def test_one_fault_one_line(
    name: str, old: str, new: str, at: str, expected: str, example: Callable[..., Any], tmp_path: Path
) -> None:
    with example(name) as modules:
        program = modules["run"].PROGRAM
        text = (CONFIGS / name / "tf" / program.params_file).read_text()
        assert old in text
        file = tmp_path / "params.yaml"
        file.write_text(text.replace(old, new, 1))
        with pytest.raises(ConfigError) as caught:
            program.merge_params(program.parse_arguments(["-m", "train", "-p", str(file)]))
    (fault,) = caught.value.errors
    lines = [line.strip() for line in file.read_text().splitlines()]
    line = 1 + next(index for index, entry in enumerate(lines) if entry.startswith(f"{at}:"))
    assert fault.startswith(f"{file}:{line}: ")
    assert expected in fault


@pytest.mark.parametrize(
    ("name", "group", "settings", "expected"),
    [
        ("bert", "train_input", {"max_sequence_length": 8}, "max_sequence_length 10 or more, got 8"),
        ("bert", "model", {"vocab_size": 4}, "vocab_size of 5 or more, got 4"),
        (
            "bert",
            "model",
            {"head": "question_answering", "vocab_size": 6},
            "vocab_size of 7 or more, got 6",
        ),
        (
            "transformer",
            "train_input",
            {"tgt_max_sequence_length": 1},
            "max_sequence_length 2 or more, got 1",
        ),
        ("transformer", "model", {"src_vocab_size": 3}, "vocabularies of 4 or more, got 3"),
    ],
)
def test_sizes_for_which_no_text_can_be_made_up(
    name: str, group: str, settings: dict[str, int], expected: str, example: Callable[..., Any]
) -> None:
    with example(name) as modules:
        program = modules["run"].PROGRAM
        params = program.merge_params(program.parse_arguments(["-m", "train"]))
        params[group].update(settings)
        with pytest.raises(Exception, match=expected) as caught:
            modules["data"].train_input_fn(params)
        assert caught.value.exit_code == 1  # type: ignore[attr-defined]


def test_one_value_is_a_learning_rate_for_all_steps(example: Callable[..., Any]) -> None:
    with example("fc_mnist") as modules:
        program = modules["run"].PROGRAM
        params = program.merge_params(program.parse_arguments(["-m", "train"]))
    assert [phase["initial_learning_rate"] for phase in params["optimizer"]["learning_rate"]] == [0.001]
