"""Data, parameter files and command lines of BERT, GPT-2 and the Transformer."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

NAMES = ("bert", "gpt2", "transformer")
MODELS = Path(__file__).parents[3] / "models"
TINY, TINY_SQUAD = (
    str(MODELS / "bert" / "tf" / "configs" / f"params_bert_{name}.yaml") for name in ("tiny", "tiny_squad")
)
Modules = dict[str, ModuleType]


@pytest.fixture(scope="module", params=NAMES)
def any_model(request: pytest.FixtureRequest, example: Callable[..., Any]) -> Iterator[tuple[str, Modules]]:
    with example(request.param) as modules:
        yield request.param, modules


@pytest.fixture
def bert(example: Callable[..., Any]) -> Iterator[Modules]:
    with example("bert") as modules:
        yield modules


@pytest.fixture
def gpt2(example: Callable[..., Any]) -> Iterator[Modules]:
    with example("gpt2") as modules:
        yield modules


def tiny_params(modules: Modules, *arguments: str) -> dict[str, Any]:
    program = modules["run"].PROGRAM
    params: dict[str, Any] = program.merge_params(program.parse_arguments(["-m", "train", *arguments]))
    return params


def test_every_parameter_file_is_accepted_and_consistent(any_model: tuple[str, Modules]) -> None:
    name, modules = any_model
    files = sorted((MODELS / name / "tf" / "configs").glob("*.yaml"))
    assert len(files) >= 3
    for file in files:
        params = tiny_params(modules, "-p", str(file))
        model, data = params["model"], params["train_input"]
        if name == "transformer":
            assert model["num_heads"] * model["d_kv"] == model["d_model"], file
        else:
            assert model["hidden_size"] % model["num_heads"] == 0, file
            assert model["filter_size"] == 4 * model["hidden_size"] or "tiny" in file.name
            assert data["max_sequence_length"] <= model["max_position_embeddings"], file
        assert data["num_examples"] >= data["batch_size"], file


def test_batches_have_static_shapes_and_tokens_of_the_vocabulary(any_model: tuple[str, Modules]) -> None:
    _, modules = any_model
    params = tiny_params(modules)
    sizes = [value for key, value in params["model"].items() if "vocab_size" in key]
    for input_fn in (modules["data"].train_input_fn, modules["data"].eval_input_fn):
        dataset = input_fn(params)
        assert all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(dataset.element_spec))
        features, labels = next(iter(dataset))
        for name, values in features.items():
            assert values.dtype == (tf.float32 if name == "masked_lm_weights" else tf.int32), name
            if name.endswith("ids"):
                assert 0 <= int(tf.reduce_min(values)) <= int(tf.reduce_max(values)) < min(sizes), name
        assert labels.dtype == tf.int32


@pytest.mark.parametrize("workers", [1, 3])
def test_shards_deliver_every_record_once(
    any_model: tuple[str, Modules], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    _, modules = any_model
    params = tiny_params(modules)
    params["eval_input"].update(num_examples=24, batch_size=8)
    delivered: Counter[bytes] = Counter()
    for index in range(workers):
        cluster = {"worker": [f"a:{i}" for i in range(workers)]}
        task = {"type": "worker", "index": index}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        for features, labels in modules["data"].eval_input_fn(params):
            rows = [tensor.numpy() for tensor in tf.nest.flatten((features, labels))]
            delivered.update(b"".join(row[i].tobytes() for row in rows) for i in range(8))
    assert len(delivered) == 24
    assert set(delivered.values()) == {1}


def test_masked_sentences_of_bert(bert: Modules) -> None:
    data, params = bert["data"], tiny_params(bert)
    records = data.generate_sentences(params["train_input"], params["model"]["vocab_size"], seed=3)
    ids, mask = records["input_ids"], records["input_mask"]
    assert (ids[:, 0] == data.CLS).all()
    assert ((ids == 0) == (mask == 0)).all()
    assert ((ids == data.SEP).sum(1) == 2).all()
    positions, weights = records["masked_lm_positions"], records["masked_lm_weights"]
    assert (weights.sum(1) >= 1).all()
    assert 0.7 < np.mean(np.take_along_axis(ids, positions, 1)[weights == 1] == data.MASK) < 0.9
    assert (records["masked_lm_ids"][weights == 1] >= data.FIRST_TOKEN).all()
    assert 0.4 < records[data.LABEL].mean() < 0.6
    # The second sentence begins after the first [SEP].
    first = (ids == data.SEP).argmax(1)
    assert (records["segment_ids"].argmax(1) == first + 1).all()


def test_questions_of_bert(bert: Modules) -> None:
    data, params = bert["data"], tiny_params(bert, "-p", TINY_SQUAD)
    vocab_size = params["model"]["vocab_size"]
    words = (vocab_size - data.FIRST_TOKEN) // 3
    records = data.generate_questions(params["train_input"], vocab_size, seed=3)
    asked = set()
    for i, ids in enumerate(records["input_ids"]):
        (_, first, last) = np.flatnonzero((ids == data.CLS) | (ids == data.SEP))
        topics = (ids - data.FIRST_TOKEN) // words
        (topic,) = set(topics[1:first])
        answer = np.flatnonzero(topics[first + 1 : last] == topic) + first + 1
        start, end = records["start_positions"][i, 0], records["end_positions"][i, 0]
        assert answer.tolist() == list(range(start, end + 1))
        assert set(topics[first + 1 : last]) <= {0, 1, 2}
        assert 3 - topic in topics[first + 1 : last]  # the text tells about the other topic, too
        assert (records["input_mask"][i] == (np.arange(len(ids)) <= last)).all()
        assert (np.flatnonzero(records["segment_ids"][i]) == np.arange(first + 1, last + 1)).all()
        asked.add((topic, bool(start > (first + last) / 2)))
    assert len(asked) == 4  # either topic, in either half of the text


def test_batches_of_questions(bert: Modules) -> None:
    data, params = bert["data"], tiny_params(bert, "-p", TINY_SQUAD)
    for input_fn in (data.train_input_fn, data.eval_input_fn):
        features, positions = next(iter(input_fn(params)))
        assert sorted(features) == ["input_ids", "input_mask", "segment_ids"]
        assert positions.shape == [params["train_input"]["batch_size"], 2]
        assert (positions[:, 0] <= positions[:, 1]).numpy().all()


def test_labels_of_gpt2_are_the_next_tokens(gpt2: Modules) -> None:
    features, labels = next(iter(gpt2["data"].train_input_fn(tiny_params(gpt2))))
    np.testing.assert_array_equal(features["input_ids"][:, 1:], labels[:, :-1])


def test_the_decoder_of_the_transformer_sees_what_comes_before(example: Callable[..., Any]) -> None:
    with example("transformer") as modules:
        data = modules["data"]
        features, labels = next(iter(data.train_input_fn(tiny_params(modules))))
        shown, targets = features["decoder_input_ids"].numpy(), labels.numpy()
    assert (shown[:, 0] == data.BEGIN).all()
    used = features["decoder_mask"].numpy() == 1
    np.testing.assert_array_equal(shown[:, 1:][used[:, 1:]], targets[:, :-1][used[:, 1:]])
    assert ((targets == data.END).sum(1) == 1).all()
    assert (targets[~used] == 0).all()
    assert (features["encoder_input_ids"].numpy() != 0).sum() == used.sum()


def test_token_files(gpt2: Modules, tmp_path: Path) -> None:
    data, params = gpt2["data"], tiny_params(gpt2, "--data_dir", str(tmp_path))
    params["eval_input"].update(max_sequence_length=4, batch_size=2)
    np.arange(12, dtype="<u2").tofile(tmp_path / "val.bin")
    [(features, labels)] = data.eval_input_fn(params)
    assert features["input_ids"].numpy().tolist() == [[0, 1, 2, 3], [5, 6, 7, 8]]
    assert labels.numpy().tolist() == [[1, 2, 3, 4], [6, 7, 8, 9]]
    np.full(12, 9999, "<u2").tofile(tmp_path / "val.bin")
    with pytest.raises(Exception, match=r"val.bin' has the token 9999, but model.vocab_size is 64"):
        data.eval_input_fn(params)
    np.zeros(3, "<u2").tofile(tmp_path / "val.bin")
    with pytest.raises(Exception, match=r"has 3 tokens, expected at least 5"):
        data.eval_input_fn(params)
    with pytest.raises(Exception, match=r"no file '\*\.tfrecord\*'; check --data_dir"):
        data.train_input_fn(params)


@pytest.mark.parametrize(
    ("file", "generate", "labels"),
    [
        (TINY, "generate_sentences", ["next_sentence_labels"]),
        (TINY_SQUAD, "generate_questions", ["start_positions", "end_positions"]),
    ],
)
def test_tf_records(bert: Modules, tmp_path: Path, file: str, generate: str, labels: list[str]) -> None:
    data, params = bert["data"], tiny_params(bert, "-p", file)
    settings = params["eval_input"]
    settings.update(num_examples=5, batch_size=2)
    records = getattr(data, generate)(settings, params["model"]["vocab_size"], seed=1)
    with tf.io.TFRecordWriter(str(tmp_path / "test.tfrecord")) as writer:
        for i in range(5):
            writer.write(_example({name: array[i] for name, array in records.items()}))
    settings["data_dir"] = str(tmp_path)
    batches = list(data.eval_input_fn(params))
    assert len(batches) == 2
    for name, values in batches[1][0].items():
        np.testing.assert_array_equal(values, records[name][2:4], err_msg=name)
    wanted = np.concatenate([records[name][2:4] for name in labels], axis=1)
    np.testing.assert_array_equal(np.reshape(batches[1][1], wanted.shape), wanted)


def test_records_that_do_not_fit(bert: Modules, tmp_path: Path) -> None:
    data, params = bert["data"], tiny_params(bert, "--data_dir", str(tmp_path))
    records = data.generate_sentences(params["eval_input"], params["model"]["vocab_size"], seed=1)
    example = {name: array[0] for name, array in records.items()}
    file = tmp_path / "bad.tfrecord"

    def message(write: Callable[[Any], None]) -> str:
        with tf.io.TFRecordWriter(str(file)) as writer:
            write(writer)
        with pytest.raises(Exception, match=re.escape(f"'{file}' ")) as caught:
            data.eval_input_fn(params)
        assert caught.value.exit_code == 1  # type: ignore[attr-defined]
        return str(caught.value)

    longer = {**example, "input_ids": np.zeros(40, np.int32)}
    assert "40 values of 'input_ids' in its first record, expected 32; correct the lengths" in message(
        lambda writer: writer.write(_example(longer))
    )
    lacking = {name: array for name, array in example.items() if name != "segment_ids"}
    assert "no feature 'segment_ids' in its first record, only " in message(
        lambda writer: writer.write(_example(lacking))
    )
    assert "not a TFRecord file of examples" in message(lambda writer: writer.write(b"text"))
    assert "not a TFRecord file of examples" in message(lambda writer: None)


def _example(record: dict[str, np.ndarray]) -> bytes:
    features = {}
    for name, values in record.items():
        if values.dtype == np.float32:
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    serialized: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return serialized
