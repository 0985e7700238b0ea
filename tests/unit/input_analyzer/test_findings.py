"""Every rule: a pipeline that it speaks of, with the line, and one that it is silent about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from input_analyzer.analyze import Examined
from input_analyzer.measure.link import Order
from input_analyzer.tf.changed import changed
from input_analyzer.tf.eager_graph import in_graph
from input_analyzer.tf.examine import examine
from input_rules.finding import Finding, Gain
from input_rules.handover import InputProgram
from input_rules.pipeline import Pipeline, Stage, StageTime
from input_rules.rules import find
from input_rules.rules.context import Context, records_at
from input_rules.rules.endings import is_endless
from input_rules.tf.graph import trace
from input_rules.tf.inspection import inspect

AUTOTUNE = tf.data.AUTOTUNE
RECORDS = np.zeros((100, 4), np.float32)


def slices(array: Any = RECORDS) -> Any:
    return tf.data.Dataset.from_tensor_slices(array)


def good() -> Any:
    dataset = slices().shuffle(100, seed=1).repeat().batch(8, drop_remainder=True)
    return dataset.map(tf.nn.relu, num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE)


def finish(dataset: Any) -> Any:
    return dataset.repeat().batch(8, drop_remainder=True).prefetch(AUTOTUNE)


def pipeline_of(make: Callable[[], Any]) -> Pipeline:
    return trace(make).pipeline


def found(make: Callable[[], Any], **context: Any) -> dict[str, Finding]:
    return {finding.id: finding for finding in find(pipeline_of(make), Context(**context))}


def from_generator() -> Any:
    spec = tf.TensorSpec([4], tf.float32)
    return tf.data.Dataset.from_generator(lambda: iter(RECORDS), output_signature=spec)


def files() -> Any:
    return tf.data.Dataset.from_tensor_slices([f"/data/{number}" for number in range(5)])


def parsed(dataset: Any, **settings: Any) -> Any:
    return dataset.map(lambda record: tf.io.decode_png(record)[:4, 0, 0], **settings)


CASES: dict[str, Callable[[], Any]] = {
    "shard-after-shuffle": lambda: finish(slices().shuffle(100, seed=1).shard(2, 0)),
    "shard-after-batch": lambda: slices().repeat().batch(8, drop_remainder=True).shard(2, 0).prefetch(2),
    "shard-late": lambda: finish(slices().map(tf.nn.relu, num_parallel_calls=AUTOTUNE).shard(2, 0)),
    "shuffle-after-batch": lambda: slices().repeat().batch(8, drop_remainder=True).shuffle(9, 1).prefetch(2),
    "shuffle-buffer-small": lambda: finish(slices().shuffle(79, seed=1)),
    "drop-remainder-missing": lambda: slices().repeat().batch(8).prefetch(2),
    "map-before-batch": lambda: finish(slices().map(tf.nn.relu, num_parallel_calls=AUTOTUNE)),
    "repeat-missing": lambda: slices().batch(8, drop_remainder=True).prefetch(2),
    "repeat-finite": lambda: slices().repeat(3).batch(8, drop_remainder=True).prefetch(2),
    "prefetch-missing": lambda: slices().repeat().batch(8, drop_remainder=True),
    "prefetch-not-last": lambda: finish(slices()).map(tf.nn.relu, num_parallel_calls=AUTOTUNE),
    "prefetch-empty": lambda: slices().repeat().batch(8, drop_remainder=True).prefetch(0),
    "parallel-calls-missing": lambda: finish(slices()).map(tf.nn.relu).prefetch(2),
    "parallel-calls-fixed": lambda: finish(slices()).map(tf.nn.relu, num_parallel_calls=4).prefetch(2),
    "cycle-length-fixed": lambda: finish(
        parsed(
            files().interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=AUTOTUNE),
            num_parallel_calls=AUTOTUNE,
        )
    ),
    "flat-map-of-files": lambda: finish(files().flat_map(tf.data.TextLineDataset)),
    "parallel-reads-missing": lambda: finish(tf.data.TextLineDataset(["/data/1", "/data/2"])),
    "cache-after-random": lambda: finish(slices().shuffle(100, seed=1).cache()),
    "python-generator": lambda: finish(from_generator()),
    "python-function": lambda: finish(
        slices().map(lambda x: tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), [4]))
    ),
    "order-not-deterministic": lambda: finish(
        slices().map(tf.nn.relu, num_parallel_calls=AUTOTUNE, deterministic=False)
    ),
    "random-state": lambda: finish(slices().map(lambda x: x + tf.random.normal([4]))),
    "shuffle-without-seed": lambda: finish(slices().shuffle(100)),
    "dtype-wide": lambda: finish(slices(RECORDS.astype(np.float64))),
}


def test_nothing_is_said_of_a_good_pipeline() -> None:
    assert find(pipeline_of(good), Context(workers=4, sharded=True, memory_bytes=1 << 30)) == ()


@pytest.mark.parametrize("identifier", CASES)
def test_rule_speaks_of_its_pipeline(identifier: str) -> None:
    pipeline = pipeline_of(CASES[identifier])
    finding = {f.id: f for f in find(pipeline, Context())}[identifier]
    assert finding.source is not None
    assert Path(finding.source.rpartition(":")[0]).name == Path(__file__).name
    assert finding.op in {stage.op for stage in pipeline.stages}
    assert finding.message.count(". ") == 0
    assert not finding.message.endswith(".")
    assert finding.recommended
    times = {stage.name: StageTime(stage.name, 10.0, 5.0) for stage in pipeline.stages}
    timed = {f.id: f for f in find(pipeline, Context(times=times, cpus=2, memory_bytes=1 << 30))}
    assert timed[identifier].gain is not None


def test_a_shard_is_recommended_behind_what_chooses_by_the_order() -> None:
    split = found(lambda: finish(slices().take(8)), sharded=False)["shard-missing"].recommended
    assert split.startswith("shard(num_workers, worker_index) behind take() in ")
    shuffled = found(lambda: finish(slices().shuffle(9, seed=1).take(8)), sharded=False)["shard-missing"]
    assert "with one seed in all workers for the shuffle before it" in shuffled.recommended


def test_no_shard_is_grave_where_there_are_several_workers() -> None:
    assert found(good, sharded=False)["shard-missing"].severity == "warning"
    grave = found(good, sharded=False, workers=4)["shard-missing"]
    assert grave.severity == "error"
    assert "all 4 workers read the same records" in grave.message
    assert "shard-missing" not in found(good, sharded=None, workers=4)
    assert "shard-missing" not in found(lambda: finish(slices().shard(4, 0)), sharded=False, workers=4)


def test_files_are_counted_for_the_workers() -> None:
    def by_file() -> Any:
        return finish(files().shard(2, 0).interleave(tf.data.TextLineDataset))

    def by_record() -> Any:
        return finish(files().interleave(tf.data.TextLineDataset).shard(2, 0))

    assert "5 files for 2 workers" in found(by_file, workers=2)["files-not-divisible"].message
    assert "files-not-divisible" not in found(by_file, workers=5)
    assert "files-not-divisible" not in found(by_record, workers=2)
    # What an inspection tells: shard() is behind the source, so that has all the files for every worker.
    uneven = found(by_file, workers=2, files_by_worker=(5, 5))["files-not-divisible"]
    assert "5 files for 2 workers" in uneven.message
    assert "50 % more often than others, as with 2 and 3 files" in str(uneven.gain)
    assert "files-not-divisible" not in found(by_file, workers=5, files_by_worker=(5, 5))
    sliced = found(by_record, workers=4, files_by_worker=(3, 2))["files-not-divisible"]
    assert "the first of 4 workers has 3 files, the last one 2" in sliced.message
    assert "50 % more often" in str(sliced.gain)


def test_files_are_counted_for_the_recommended_layout(tmp_path: Path) -> None:
    for name in range(5):
        (tmp_path / f"{name}.txt").write_text("1\n2\n")
    names = sorted(map(str, tmp_path.iterdir()))

    def of_listed(workers: int, index: int) -> Any:
        listed = tf.data.Dataset.list_files(f"{tmp_path}/*.txt", shuffle=False)
        mine = listed.shard(workers, index) if workers > 1 else listed
        return finish(mine.interleave(tf.data.TextLineDataset))

    def of_sliced(workers: int, index: int) -> Any:
        return finish(tf.data.TextLineDataset(names[index::workers]))

    def of_records(workers: int, index: int) -> Any:
        return finish(tf.data.TextLineDataset(names).shard(workers, index))

    program = InputProgram(
        "tensorflow", of_listed, lambda s: of_listed(s.count, s.index), lambda s: iter(()), eager=True
    )
    order = Order(purpose="examine", socket="", stage_seconds=0.0)
    split = examine(program, order, lambda doing: None).split
    assert split is not None
    assert (split.files, split.op) == (5, "list_files")
    assert Path(str(split.source).rpartition(":")[0]).name == Path(__file__).name
    assert inspect(of_records).split is None
    sliced = inspect(of_sliced).split
    assert sliced is not None
    assert (sliced.files, sliced.op) == (5, "TextLineDataset")

    examined = Examined({"split": asdict(split)}, 0)
    assert examined.findings_with(5, ()) == examined.findings_with(1, ()) == ()
    known = (finding("error"), finding("info"))
    grave, uneven, hint = examined.findings_with(3, known)
    assert (grave, hint) == known
    assert uneven.id == "files-not-divisible"
    assert uneven.message.startswith("5 files for 3 workers: some workers have fewer records")
    assert uneven.recommended == (
        "1 or 5 workers (the chief's task not counted), or a number of files that 3 divides: 3 or 6"
    )
    (lacking,) = examined.findings_with(7, ())
    assert lacking.severity == "error"
    assert "some workers have none" in lacking.message
    assert lacking.recommended.startswith("5 workers (")
    assert Examined({"split": None}, 0).findings_with(3, known) == known
    # Where the run's workers are known, the log of train says it too.
    assert (
        "5 files for 2 workers"
        in {f.id: f for f in inspect(of_listed, workers=2).findings}["files-not-divisible"].message
    )


def test_a_call_may_shuffle_before_a_shard(tmp_path: Path) -> None:
    for name in range(4):
        (tmp_path / f"{name}.txt").write_text("1\n")

    def sharded(**settings: Any) -> Any:
        listed = tf.data.Dataset.list_files(f"{tmp_path}/*.txt", **settings)
        return finish(listed.shard(2, 0).interleave(tf.data.TextLineDataset))

    grave = found(sharded)["shard-after-shuffle"]
    assert "shuffle of list_files() in " in grave.message
    assert grave.recommended.startswith("list_files(..., shuffle=False)")
    # An order that all workers have in common is one to shard.
    assert "shard-after-shuffle" not in found(lambda: sharded(seed=3))
    assert "shard-after-shuffle" not in found(lambda: sharded(shuffle=False))


def test_a_seed_in_common_makes_a_late_shard_wasteful_and_no_more() -> None:
    def late(**settings: Any) -> Finding | None:
        return found(lambda: finish(slices().shuffle(100, **settings).shard(2, 0))).get("shard-after-shuffle")

    unseeded, seeded = late(), late(seed=1)
    assert unseeded is not None
    assert seeded is not None
    assert (unseeded.severity, seeded.severity) == ("error", "warning")
    assert "some records are read by several of them and others by none" in unseeded.message
    assert "others by none" not in seeded.message
    assert "throws most away" in seeded.message
    assert seeded.gain is not None
    assert seeded.gain.times == 2.0

    def names() -> Any:
        return finish(files().shuffle(5, seed=1).interleave(tf.data.TextLineDataset).shard(2, 0))

    assert "shard-after-shuffle" not in found(names), "a few names are shuffled in no time"


def test_work_before_a_shard_is_done_by_every_worker() -> None:
    def late(make: Callable[[], Any], **context: Any) -> str | None:
        finding = found(lambda: finish(make().shard(2, 0)), **context).get("shard-late")
        return finding and finding.recommended

    def mapped(dataset: Any) -> Any:
        return dataset.map(tf.nn.relu, num_parallel_calls=AUTOTUNE)

    def sampled() -> Any:
        return tf.data.Dataset.sample_from_datasets([slices(), slices()], seed=1)

    assert "before map() in" in str(late(lambda: mapped(slices())))
    assert "before batch() in" in str(late(lambda: mapped(slices().batch(8)).unbatch()))
    assert "of each dataset that sample_from_datasets() in" in str(late(lambda: mapped(sampled())))
    assert "of each dataset that sample" in found(sampled, sharded=False)["shard-missing"].recommended
    # There a shard would leave other records, or have nothing to share out.
    for make in (
        slices,
        lambda: slices().map(lambda x: x),
        lambda: mapped(slices()).filter(lambda x: x[0] < 1),
        lambda: mapped(slices(RECORDS[None])).unbatch(),
    ):
        assert late(make) is None
    pipeline = pipeline_of(lambda: finish(mapped(slices()).shard(2, 0)))
    times = {
        stage.name: StageTime(stage.name, 0.01 if stage.op == "map" else 9.0, 0.0)
        for stage in pipeline.stages
    }
    assert "shard-late" not in {one.id for one in find(pipeline, Context(times=times, cpus=1))}
    (finding,) = (one for one in find(pipeline, Context(workers=3)) if one.id == "shard-late")
    assert finding.gain is not None
    assert (finding.gain.times, finding.gain.at_most) == (3.0, True)


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
    ordered = changed(trace(lambda: loose(good())).dataset, {"order-not-deterministic"})
    assert ordered is not None
    assert changed(ordered, {"order-not-deterministic"}) is None


def test_what_stops_with_one_of_its_datasets_has_an_end() -> None:
    def sampled(stops: bool) -> Any:
        pair = [slices().repeat(), slices()]
        mixed = tf.data.Dataset.sample_from_datasets(pair, [0.5, 0.5], seed=1, stop_on_empty_dataset=stops)
        return mixed.batch(8, drop_remainder=True).prefetch(2)

    assert "repeat-missing" in found(lambda: sampled(True))
    assert "repeat-missing" not in found(lambda: sampled(False))


def test_the_number_of_files_at_once_helps_with_few_cpus() -> None:
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


def test_data_without_end_have_no_smaller_last_batch() -> None:
    endless = found(lambda: slices().repeat().batch(8).prefetch(2))["drop-remainder-missing"]
    ending = found(lambda: slices().batch(8).repeat().prefetch(2))["drop-remainder-missing"]
    assert endless.message.startswith("no batch is smaller")
    assert "left out" not in str(endless.gain)
    assert ending.message.startswith("the last batch may be smaller")
    assert str(ending.gain).endswith("at most the last incomplete batch is left out")


def test_a_generator_may_end_or_not() -> None:
    """No graph shows it."""
    make = lambda: from_generator().batch(8).prefetch(2)  # noqa: E731
    assert "the last batch may be smaller" in found(make)["drop-remainder-missing"].message
    missing = found(make)["repeat-missing"]
    assert missing.message.startswith("where the generator comes to an end, the data end after one epoch")
    assert "unless the generator goes on without end" in missing.recommended
    finite = found(lambda: from_generator().repeat(3).batch(8, drop_remainder=True))["repeat-finite"]
    assert finite.message.startswith("where the generator comes to an end, the data are repeated 3 times")
    assert "repeat-missing" not in found(lambda: finish(from_generator()))
    paired = found(lambda: tf.data.Dataset.zip((slices(), from_generator())).batch(8))["repeat-missing"]
    assert paired.message.startswith("the data end after one epoch")


def test_choices_among_datasets_are_no_data() -> None:
    def chosen(count: int | None, *makes: Callable[[], Any]) -> set[str]:
        def chosen_of() -> Any:
            choices = tf.data.Dataset.range(2).repeat(count)
            return tf.data.Dataset.choose_from_datasets([make() for make in makes], choices).batch(8)

        return {one for one in found(chosen_of) if one.startswith("repeat")}

    assert chosen(3, lambda: slices(), lambda: slices()) == {"repeat-missing"}
    assert chosen(None, lambda: slices(), lambda: slices().repeat()) == {"repeat-missing"}
    assert chosen(3, lambda: slices().repeat(), lambda: slices().repeat()) == {"repeat-missing"}
    assert chosen(None, lambda: slices().repeat(), lambda: slices().repeat()) == set()


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
        assert names <= {one.id for one in find(trace(make, in_graph=in_graph).pipeline, Context())}
    assert not names & found(by_key).keys()


def test_a_reader_may_be_given_its_files_by_a_dataset() -> None:
    def read(names: Any, **settings: Any) -> dict[str, Finding]:
        return found(lambda: finish(tf.data.TextLineDataset(names(), **settings)))

    assert "its 5 files one after" in read(files)["parallel-reads-missing"].message
    assert "parallel-reads-missing" not in read(lambda: files().take(1).shard(2, 0), num_parallel_reads=2)
    assert "parallel-reads-missing" not in read(lambda: slices(["/data/1"]))


def test_classes_have_their_names() -> None:
    def table() -> Any:
        return tf.data.experimental.CsvDataset(["/data/1"], [tf.int32])

    def rows() -> Any:
        return tf.data.FixedLengthRecordDataset(["/data/1"], 4)

    assert [pipeline_of(make).last.op for make in (table, rows)] == ["CsvDataset", "FixedLengthRecordDataset"]


def test_one_record_is_not_shared_out() -> None:
    def synthetic() -> Any:
        return tf.data.Dataset.from_tensors(RECORDS[0]).repeat().batch(8, drop_remainder=True).prefetch(2)

    def cut() -> Any:
        return tf.data.Dataset.from_tensors(RECORDS).unbatch().repeat().batch(8, drop_remainder=True)

    assert "shard-missing" not in {one.id for one in inspect(lambda n, i: synthetic()).findings}
    assert "shard-missing" in {one.id for one in inspect(lambda n, i: cut()).findings}


def test_what_tensorflow_does_by_itself_is_a_hint() -> None:
    def mapped(function: Any) -> Any:
        return finish(slices()).map(function).prefetch(2)

    by_itself = found(lambda: mapped(tf.nn.relu))["parallel-calls-missing"]
    assert by_itself.severity == "info"
    assert str(by_itself.gain) == "expected: nothing, as TensorFlow does so by itself here"
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


def test_caches_are_weighed_against_the_memory() -> None:
    def cached() -> Any:
        return finish(slices().cache())

    def uncached() -> Any:
        return finish(slices().map(tf.nn.relu, num_parallel_calls=AUTOTUNE))

    size = RECORDS.nbytes
    assert found(cached, memory_bytes=size)["cache-does-not-fit"].severity == "error"
    assert "cache-does-not-fit" not in found(cached, memory_bytes=2 * size)
    times = {"map": StageTime("map", 90.0, 0.0), "batch": StageTime("batch", 10.0, 0.0)}
    fits = found(uncached, memory_bytes=10 * size, times=times, cpus=1)["cache-would-fit"]
    assert fits.severity == "warning"
    assert str(fits.gain) == (
        "expected: about 10 times the rate with 1 CPU from the second epoch on, beside what handing elements "
        "over takes"
    )
    assert "cache-would-fit" not in found(uncached, memory_bytes=size, times=times)
    assert "cache-would-fit" not in found(uncached, memory_bytes=10 * size)
    in_memory = {"from_tensor_slices": StageTime("from_tensor_slices", 90.0, 0.0)}
    assert "cache-would-fit" not in found(uncached, memory_bytes=10 * size, times=in_memory)


@pytest.mark.parametrize(("workers", "severity"), [(1, "warning"), (3, "error")])
def test_a_cache_file_is_to_be_of_one_worker(workers: int, severity: str, tmp_path: Path) -> None:
    def input_with(name: Callable[[int], str]) -> dict[str, Finding]:
        def make(count: int, index: int) -> Any:
            return finish(slices().shard(count, index).cache(str(tmp_path / name(index))))

        return {finding.id: finding for finding in inspect(make, workers=workers).findings}

    shared = input_with(lambda index: "kept")["cache-file-shared"]
    assert (shared.severity, shared.op) == (severity, "cache")
    assert "cache-file-shared" not in input_with(lambda index: f"kept-{index}")


def test_a_cache_behind_a_range_is_weighed_too() -> None:
    def make(step: int) -> Any:
        wide = tf.data.Dataset.range(3, 1_000_003, step).shard(2, 0).map(lambda k: tf.fill([1000], k))
        return finish(wide.cache())

    # 8000 bytes a record, of which a worker keeps every second one.
    assert "cache-does-not-fit" in found(lambda: make(1), memory_bytes=10**9)
    assert "cache-does-not-fit" not in found(lambda: make(10), memory_bytes=10**9)
    assert "cache-does-not-fit" not in found(lambda: make(-1), memory_bytes=10**9)


def test_every_wide_type_says_what_it_gives_to_mend_it() -> None:
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


def test_what_takes_no_time_is_not_worth_a_change() -> None:
    make = CASES["parallel-calls-missing"]
    dear = {"map": StageTime("map", 90.0, 0.0), "batch": StageTime("batch", 10.0, 0.0)}
    cheap = {"map": StageTime("map", 1.0, 0.0), "batch": StageTime("batch", 99.0, 0.0)}
    assert "expected" in str(found(make, times=dear, cpus=2)["parallel-calls-missing"].gain)
    assert "parallel-calls-missing" not in found(make, times=cheap)


def test_calls_on_one_line_are_said_once() -> None:
    twice = find(pipeline_of(lambda: finish(slices()).map(tf.nn.relu).map(tf.nn.relu)), Context())
    assert [finding.id for finding in twice].count("parallel-calls-missing") == 1


def test_evaluation_ends_with_its_data() -> None:
    def make() -> Any:
        return slices().batch(8, drop_remainder=True).prefetch(AUTOTUNE)

    assert found(make, training=False) == {}


def test_endless_ranges_and_inner_repeats_need_no_repeat() -> None:
    def endless() -> Any:
        numbers = tf.data.Dataset.range(1, np.iinfo(np.int64).max, 2)
        return numbers.map(lambda x: tf.cast(x, tf.float32), num_parallel_calls=AUTOTUNE)

    assert "repeat-missing" not in found(endless)
    assert "repeat-missing" in found(lambda: endless().take(5))
    assert "repeat-missing" in found(lambda: tf.data.Dataset.zip((slices().repeat(), slices())))


def test_a_loop_may_make_thousands_of_stages() -> None:
    def one(number: int, op: str, **attributes: Any) -> Stage:
        return Stage(f"s{number}", op, number, (f"s{number - 1}",) if number else (), None, attributes)

    stages = [
        one(0, "range", records=40),
        one(1, "repeat", endless=True),
        *(one(n, "map") for n in range(2, 3000)),
    ]
    pipeline = Pipeline("tensorflow", tuple(stages))
    assert is_endless(pipeline)
    assert records_at(pipeline, pipeline.last) == 40


def test_batches_that_are_chosen_by_their_order_are_shared_out_behind_that() -> None:
    """The advice for the one without a shard is what the other one does."""
    bare = inspect(lambda workers, index: slices().batch(8).take(5).prefetch(2), in_graph=in_graph)
    (missing,) = (one for one in bare.findings if one.id == "shard-missing")
    assert " behind take() in " in missing.recommended
    followed = found(lambda: slices().batch(8).take(5).shard(2, 0).prefetch(2))
    assert not [name for name in followed if name.startswith("shard")]


def test_datasets_that_the_user_did_not_write_are_left_out() -> None:
    def make() -> Any:
        # Slices, flat_map over files and a map of a constant are made inside of these calls.
        one = tf.data.TFRecordDataset("/data/1").map(
            lambda r: tf.strings.length(r), num_parallel_calls=AUTOTUNE
        )
        mixed = tf.data.Dataset.sample_from_datasets([one, one], seed=1)
        return mixed.repeat().batch(8, drop_remainder=True).prefetch(AUTOTUNE)

    assert {f.id for f in found(make).values()} <= {"map-before-batch"}


def finding(severity: Any, gain: Gain | None = None) -> Finding:
    return Finding("rule", severity, "map", "data.py:7", "it is slow", "map(fast)", gain)


def test_graver_findings_come_first() -> None:
    pipeline = pipeline_of(lambda: slices().shuffle(3).batch(8))
    ranks = [f.severity for f in find(pipeline, replace(Context(), workers=2, sharded=False))]
    assert ranks == sorted(ranks, key=["error", "warning", "info"].index)
    assert len(set(ranks)) == 3
