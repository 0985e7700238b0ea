"""Every rule: a pipeline that it speaks of, with the line, and one that it is silent about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_rules.findings import Finding
from input_rules.pipeline import StageTime
from input_rules.rules import find
from input_rules.rules.base import Context
from input_rules.tf.pipeline import trace

from . import rule_cases
from .rule_cases import AUTOTUNE, CASES, RECORDS, files, finish, found, good, parsed, pipeline_of, slices


def test_nothing_is_said_of_a_good_pipeline() -> None:
    assert find(pipeline_of(good), Context(workers=4, sharded=True, memory_bytes=1 << 30)) == ()


@pytest.mark.parametrize("identifier", CASES)
def test_rule_speaks_of_its_pipeline(identifier: str) -> None:
    pipeline = pipeline_of(CASES[identifier])
    finding = {f.id: f for f in find(pipeline, Context())}[identifier]
    assert finding.source is not None
    assert Path(finding.source.rpartition(":")[0]).name == Path(rule_cases.__file__).name
    assert finding.op in {stage.op for stage in pipeline.stages}
    assert finding.message.count(". ") == 0
    assert not finding.message.endswith(".")
    assert finding.recommended
    times = {stage.name: StageTime(stage.name, 10.0, 5.0) for stage in pipeline.stages}
    timed = {f.id: f for f in find(pipeline, Context(times=times, cpus=2, memory_bytes=1 << 30))}
    assert timed[identifier].gain is not None


def test_options_may_give_up_the_order() -> None:
    def loose(dataset: Any) -> Any:
        options = tf.data.Options()
        options.deterministic = False
        return dataset.with_options(options)

    finding = found(lambda: loose(good()))["order-not-deterministic"]
    assert (finding.op, finding.severity) == ("with_options", "warning")
    assert "order-not-deterministic" not in found(lambda: loose(finish(slices()))), (
        "nothing runs side by side"
    )


def test_reading_several_files_simultaneously_helps_with_few_cpus() -> None:
    def read(length: int) -> Any:
        parts = files().interleave(tf.data.TextLineDataset, cycle_length=length, num_parallel_calls=AUTOTUNE)
        return finish(parts)

    flat = found(CASES["flat-map-of-files"], cpus=2)["flat-map-of-files"]
    assert (flat.value, "cycle_length=4" in flat.recommended) == (4, True)
    reads = found(CASES["parallel-reads-missing"], cpus=2)["parallel-reads-missing"]
    assert (reads.value, "num_parallel_reads=4" in reads.recommended) == (4, True)
    assert (
        "num_parallel_reads=CS_AUTOTUNE"
        in found(CASES["parallel-reads-missing"], cpus=16)["parallel-reads-missing"].recommended
    )
    # With up to 12 CPUs CS_AUTOTUNE reads four files or fewer.
    assert "cycle-length-fixed" not in found(lambda: read(4), cpus=12)
    assert "more than 12 CPUs" in found(lambda: read(4), cpus=13)["cycle-length-fixed"].recommended

    few = found(lambda: read(2), cpus=12)["cycle-length-fixed"]
    assert (few.value, "cycle_length=4" in few.recommended) == (4, True)


def test_random_numbers_out_of_a_variable() -> None:
    """Keras layers keep the state of theirs in one, as `tf.random.Generator` does."""

    def flipped() -> Any:
        images = slices(np.zeros([20, 4, 4, 1], np.float32))
        flip = tf.keras.layers.RandomFlip("horizontal", seed=1)
        return images.map(lambda image: flip(image, training=True)).cache().repeat().batch(8, True)

    def generated() -> Any:
        numbers = tf.random.Generator.from_seed(3)
        return slices().map(lambda x: x + numbers.normal([4])).cache().repeat().batch(8, True)

    def by_key() -> Any:
        numbered = slices().enumerate()
        drawn = numbered.map(lambda n, x: x + tf.random.stateless_normal([4], [n, 1]))
        return drawn.cache().repeat().batch(8, True)

    names = {"random-state", "cache-after-random"}
    for make in (flipped, generated):
        assert names <= {one.id for one in find(trace(make).pipeline, Context())}
    assert not names & found(by_key).keys()


def test_a_reader_may_be_given_its_files_by_a_dataset() -> None:
    def read(names: Any, **settings: Any) -> dict[str, Finding]:
        return found(lambda: finish(tf.data.TextLineDataset(names(), **settings)))

    assert "its 5 files in sequence" in read(files)["parallel-reads-missing"].message
    assert "parallel-reads-missing" not in read(lambda: files().take(1).shard(2, 0), num_parallel_reads=2)
    assert "parallel-reads-missing" not in read(lambda: slices(["/data/1"]))


def test_classes_have_their_names() -> None:
    def table() -> Any:
        return tf.data.experimental.CsvDataset(["/data/1"], [tf.int32])

    def rows() -> Any:
        return tf.data.FixedLengthRecordDataset(["/data/1"], 4)

    assert [pipeline_of(make).last.op for make in (table, rows)] == ["CsvDataset", "FixedLengthRecordDataset"]


def test_optimizations_of_tensorflow_itself_are_hints() -> None:
    def mapped(function: Any) -> Any:
        return finish(slices()).map(function).prefetch(2)

    by_itself = found(lambda: mapped(tf.nn.relu))["parallel-calls-missing"]
    assert by_itself.severity == "info"
    assert str(by_itself.gain) == "expected: nothing, as TensorFlow does this by itself here"
    keeps_state = found(lambda: mapped(lambda x: x + tf.random.normal([4])))["parallel-calls-missing"]
    assert keeps_state.severity == "warning"


def test_the_size_of_a_shuffle_buffer() -> None:
    assert "shuffle(80)" in found(CASES["shuffle-buffer-small"])["shuffle-buffer-small"].recommended
    assert "shuffle-buffer-small" not in found(lambda: finish(slices().shuffle(80, seed=1)))
    assert "shuffle-buffer-small" not in found(lambda: finish(slices(RECORDS[:20]).shuffle(20, seed=1)))
    assert (
        "shuffle(5)"
        in found(lambda: finish(files().shuffle(2, seed=1).interleave(tf.data.TextLineDataset)))[
            "shuffle-buffer-small"
        ].recommended
    )


def test_maps_that_need_single_records_may_stand_before_batch() -> None:
    def make() -> Any:
        return finish(parsed(files().map(tf.io.read_file, num_parallel_calls=AUTOTUNE)))

    assert "map-before-batch" not in found(make)
    assert "map-before-batch" not in found(lambda: finish(slices().map(lambda x: {"x": x})))


def parse(record: Any) -> Any:
    features = tf.io.parse_single_example(
        record, {"x": tf.io.FixedLenFeature([], tf.string), "y": tf.io.FixedLenFeature([], tf.int64)}
    )
    return tf.reshape(tf.io.decode_raw(features["x"], tf.uint8), [28, 28]), features["y"]


def parse_sparse(record: Any) -> Any:
    features = tf.io.parse_single_example(record, {"x": tf.io.VarLenFeature(tf.float32)})
    return tf.ensure_shape(tf.sparse.to_dense(features["x"])[:3], [3])


def normalize(image: Any, label: Any) -> Any:
    return (tf.cast(image, tf.float32) - 128.0) / 255.0, tf.one_hot(label, 10)


TABLE = np.arange(40.0, dtype=np.float32).reshape(10, 4)


def of_strings(*functions: Any) -> Any:
    dataset = tf.data.Dataset.from_tensor_slices(["12", "34"])
    for function in functions:
        dataset = dataset.map(function, num_parallel_calls=AUTOTUNE)
    return finish(dataset.shuffle(16, seed=1))


@pytest.mark.parametrize(
    "functions",
    [
        (parse,),
        (parse, normalize),
        (lambda x: tf.reshape(tf.io.decode_raw(x, tf.uint8), [2]),),
        (lambda x: tf.strings.to_number(x, tf.int32), lambda x: tf.gather(TABLE, x % 10)),
        (lambda x: tf.io.decode_csv(x, [0]),),
        (lambda x: tf.strings.to_hash_bucket_fast(x, 9), lambda x: tf.one_hot(x, 9)),
    ],
)
def test_functions_of_records_that_have_a_batch_form(functions: Any) -> None:
    finding = found(lambda: of_strings(*functions))["map-before-batch"]
    assert finding.severity == "warning"
    assert len(finding.related) == len(functions), "the other maps, and batch()"
    assert ("tf.io.parse_example" in finding.recommended) == (parse in functions)
    if functions == (parse, normalize):
        assert "'parse' and 'normalize' are called for every record" in finding.message


@pytest.mark.parametrize(
    "functions",
    [
        (parse_sparse,),
        (lambda x: tf.ensure_shape(tf.io.decode_image(x, expand_animations=False), [8, 8, 3]),),
        (lambda x: tf.ensure_shape(tf.strings.split(x), [2]),),
        (lambda x: tf.ensure_shape(tf.unique(tf.io.decode_raw(x, tf.uint8))[0], [2]),),
        (lambda x: tf.strings.to_number(x) + tf.random.uniform([]),),
        (lambda x: tf.cond(tf.equal(x, "12"), lambda: 1.0, lambda: 2.0),),
        (lambda x: tf.ensure_shape(tf.numpy_function(np.char.upper, [x], tf.string), []),),
        (lambda x: tf.io.decode_raw(x, tf.uint8),),
    ],
)
def test_functions_of_records_without_a_batch_form(functions: Any) -> None:
    assert "map-before-batch" not in found(lambda: of_strings(*functions))


def test_only_the_maps_that_can_follow_the_batch_are_named() -> None:
    def make() -> Any:
        records = tf.data.Dataset.from_tensor_slices(["12", "34"]).map(
            lambda x: tf.ensure_shape(tf.unique(tf.io.decode_raw(x, tf.uint8))[0], [2])
        )
        return finish(records.map(lambda x: tf.cast(x, tf.float32)).map(lambda x: (x,)).shuffle(80))

    finding = found(make)["map-before-batch"]
    assert len(finding.related) == 2, "another map, and batch()"
    in_memory = found(lambda: finish(slices().map(tf.nn.relu).cache()))
    assert "map-before-batch" not in in_memory, "the cache keeps the results, so that calls cost once"
    large = lambda: finish(slices(np.zeros([9, 1 << 17], np.float32)).map(tf.nn.relu))  # noqa: E731
    assert "map-before-batch" not in found(large)
    assert found(large, tries_changes=True)["map-before-batch"].severity == "info"


def test_python_of_single_records_is_proposed_only_to_be_tried() -> None:
    def make() -> Any:
        return finish(
            slices().map(lambda x: tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), [4]))
        )

    assert "map-before-batch" not in found(make)
    assert "map-before-batch" in found(make, tries_changes=True)


def test_every_wide_type_states_the_gain_of_a_narrower_one() -> None:
    def make(drop_remainder: bool) -> Any:
        return slices(RECORDS.astype(np.float64)).repeat().batch(8, drop_remainder=drop_remainder)

    known = found(lambda: make(True))["dtype-wide"]
    assert str(known.gain) == "expected: 256 bytes a batch become 128"
    unknown = found(lambda: make(False))["dtype-wide"]
    assert str(unknown.gain) == "expected: half of its bytes"


def test_a_wide_type_is_that_of_the_call_that_made_it() -> None:
    def widened() -> Any:
        pairs = slices((RECORDS, np.zeros(100, np.int32)))
        return finish(pairs.map(lambda x, y: (tf.cast(x, tf.float64), y)).shuffle(100, seed=1))

    finding = found(widened)["dtype-wide"]
    assert finding.op == "map"
    assert finding.message.startswith("element[0] is float64, ")
    assert found(lambda: finish(slices({"image": RECORDS.astype(np.float64)})))[
        "dtype-wide"
    ].message.startswith("element['image'] is float64, ")
    assert found(CASES["dtype-wide"])["dtype-wide"].op == "from_tensor_slices"


def test_wide_types_of_one_call_are_one_finding() -> None:
    columns = {name: np.zeros(100) for name in "abcdefgh"}
    dataset = lambda: slices((columns, RECORDS)).repeat().batch(8, drop_remainder=True)  # noqa: E731
    (wide,) = (one for one in find(pipeline_of(dataset), Context()) if one.id == "dtype-wide")
    assert wide.message.startswith("element[0]['a'], ")
    assert "element[0]['e'] and 3 more are float64" in wide.message
    assert str(wide.gain) == "expected: 512 bytes a batch become 256"


def test_cheap_stages_are_not_worth_a_change() -> None:
    make = CASES["parallel-calls-missing"]
    dear = {"map": StageTime("map", 90.0, 0.0), "batch": StageTime("batch", 10.0, 0.0)}
    cheap = {"map": StageTime("map", 1.0, 0.0), "batch": StageTime("batch", 99.0, 0.0)}
    assert "expected" in str(found(make, times=dear, cpus=2)["parallel-calls-missing"].gain)
    assert "parallel-calls-missing" not in found(make, times=cheap)


def test_calls_on_one_line_are_said_once() -> None:
    twice = find(pipeline_of(lambda: finish(slices()).map(tf.nn.relu).map(tf.nn.relu)), Context())
    assert [finding.id for finding in twice].count("parallel-calls-missing") == 1


def test_datasets_that_the_user_did_not_write_are_left_out() -> None:
    def make() -> Any:
        # Slices, flat_map over files and a map of a constant are made inside of these calls.
        one = tf.data.TFRecordDataset("/data/1").map(
            lambda r: tf.strings.length(r), num_parallel_calls=AUTOTUNE
        )
        mixed = tf.data.Dataset.sample_from_datasets([one, one], seed=1)
        return mixed.repeat().batch(8, drop_remainder=True).prefetch(AUTOTUNE)

    assert {f.id for f in found(make).values()} <= {"map-before-batch"}


def test_graver_findings_come_first() -> None:
    pipeline = pipeline_of(lambda: slices().shuffle(3).batch(8))
    ranks = [f.severity for f in find(pipeline, replace(Context(), workers=2, sharded=False))]
    assert ranks == sorted(ranks, key=["error", "warning", "info"].index)
    assert len(set(ranks)) == 3


def timed_slices() -> Any:
    return tf.data.Dataset.from_tensor_slices(np.zeros((100, 4), np.float32))


def finish_record(dataset: Any) -> Any:
    return dataset.repeat().batch(8, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def test_calls_of_python_that_wait_do_so_side_by_side() -> None:
    def mapped(**settings: Any) -> Any:
        spoken = lambda x: tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), [4])  # noqa: E731
        return finish_record(timed_slices().map(spoken, **settings))

    def of(cpu: float, wait: float, **settings: Any) -> dict[str, Finding]:
        pipeline = trace(lambda: mapped(**settings)).pipeline
        times = {"map": StageTime("map", cpu, wait)}
        return {one.id: one for one in find(pipeline, Context(times=times, cpus=4))}

    waiting = of(20.0, 980.0)
    assert "calls wait in parallel" in waiting["python-function"].message
    assert waiting["python-function"].recommended.startswith("map(..., num_parallel_calls=CS_AUTOTUNE)")
    gain = waiting["parallel-calls-missing"].gain
    assert gain is not None
    assert gain.times == pytest.approx(4)
    assert "mostly waits" in waiting["parallel-calls-missing"].message
    parallel = of(20.0, 980.0, num_parallel_calls=tf.data.AUTOTUNE)
    assert "parallel-calls-missing" not in parallel
    assert "num_parallel_calls" not in parallel["python-function"].recommended
    computing = of(980.0, 20.0)
    assert "parallel-calls-missing" not in computing
    assert "computes one call at a time" in computing["python-function"].message
    unknown = {one.id: one for one in find(trace(mapped).pipeline, Context())}
    assert unknown["parallel-calls-missing"].severity == "info"
    # Nobody knows what the function does with another order of calls.
    assert unknown["parallel-calls-missing"].by_hand is not None


def test_a_cache_keeps_an_order_that_is_one_for_all_epochs() -> None:
    def cached(**settings: Any) -> Any:
        return finish_record(timed_slices().shuffle(100, seed=1, **settings).map(tf.nn.relu).cache())

    def found(dataset: Any, **context: Any) -> set[str]:
        return {one.id for one in find(trace(lambda: dataset()).pipeline, Context(**context))}

    assert "cache-after-random" in found(cached)
    assert "cache-after-random" not in found(lambda: cached(reshuffle_each_iteration=False))
    timed = {"map": StageTime("map", 100.0, 0.0)}

    def same() -> Any:
        return finish_record(
            timed_slices().shuffle(100, seed=1, reshuffle_each_iteration=False).map(tf.nn.relu)
        )

    assert "cache-would-fit" in found(
        same, times={**timed, "batch": StageTime("batch", 1.0, 0.0)}, memory_bytes=1 << 30
    )
