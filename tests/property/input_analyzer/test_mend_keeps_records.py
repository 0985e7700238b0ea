"""Whatever is mended in a dataset graph, an epoch has the same records, and all shards have each once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from input_analyzer.tf.inspection import inspect
from input_analyzer.tf.mend import MENDABLE, Mended, mend

IN_AN_EPOCH = MENDABLE - {"repeat-missing"}
COUNT = 48


def doubled(x: Any) -> Any:
    return x * 2


def pair(x: Any) -> Any:
    return tf.data.Dataset.from_tensors(x).concatenate(tf.data.Dataset.from_tensors(x + 1))


def counted(dataset: Any) -> Any:
    """A function of Python that does something else in every other call."""
    calls: list[int] = []

    def halved(x: Any) -> Any:
        calls.append(x)
        return x if len(calls) % 2 else -x

    return dataset.map(lambda x: tf.ensure_shape(tf.numpy_function(halved, [x], tf.int64), []))


def odd_twice(x: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(tf.boolean_mask(tf.stack([x, x]), tf.stack([x % 2 > 0] * 2)))


def by_chance(x: Any) -> Any:
    return tf.random.uniform([], seed=3) < 0.7


SOURCES: dict[str, Callable[[], Any]] = {
    "range": lambda: tf.data.Dataset.range(COUNT),
    "slices": lambda: tf.data.Dataset.from_tensor_slices(np.arange(COUNT)),
    "one element": lambda: tf.data.Dataset.range(1).flat_map(lambda x: tf.data.Dataset.range(COUNT)),
    "one tensor": lambda: tf.data.Dataset.from_tensors(np.arange(COUNT)).unbatch(),
    "generator": lambda: tf.data.Dataset.from_generator(
        lambda: iter(range(COUNT)), output_signature=tf.TensorSpec([], tf.int64)
    ),
    "sharded": lambda: tf.data.Dataset.range(2 * COUNT).shard(2, 1),
}
STEPS: dict[str, Callable[[Any], Any]] = {
    "map": lambda d: d.map(doubled),
    "fixed map": lambda d: d.map(doubled, num_parallel_calls=2),
    "any order": lambda d: d.map(doubled, num_parallel_calls=2, deterministic=False),
    "shuffle": lambda d: d.shuffle(3, seed=7),
    "interleave": lambda d: d.interleave(pair, cycle_length=2),
    "fixed interleave": lambda d: d.interleave(pair, cycle_length=3, num_parallel_calls=2),
    "endless interleave": lambda d: d.interleave(
        lambda x: tf.data.Dataset.from_tensors(x).repeat(), cycle_length=3, num_parallel_calls=2
    ).take(30),
    "flat_map": lambda d: d.flat_map(pair),
    "filter": lambda d: d.filter(lambda x: tf.equal(x % 4, 0)),
    "filter by chance": lambda d: d.filter(by_chance),
    "prefetch": lambda d: d.prefetch(0),
    "cache": lambda d: d.cache(),
    "twice": lambda d: d.repeat(2),
    "take": lambda d: d.take(17),
    "skip": lambda d: d.skip(5),
    "take_while": lambda d: d.take_while(lambda x: x < 30),
    "scan": lambda d: d.scan(tf.constant(0, tf.int64), lambda s, x: (s + 1, x + s)),
    "enumerate": lambda d: d.enumerate().map(lambda i, x: i * x),
    "window": lambda d: d.window(4, 2).flat_map(lambda w: w.batch(4)).unbatch(),
    "sums": lambda d: (
        d.batch(4)
        .map(lambda x: (x, tf.fill([tf.shape(x)[0]], tf.reduce_sum(x))))
        .unbatch()
        .filter(lambda x, total: total % 2 < 1)
        .map(lambda x, total: x)
    ),
    "whole batches": lambda d: d.batch(4).filter(lambda x: tf.reduce_sum(x) % 2 < 1).unbatch(),
    "group": lambda d: d.group_by_window(lambda x: x % 2, lambda k, w: w.batch(3), 3).unbatch(),
    "zip": lambda d: tf.data.Dataset.zip((d, tf.data.Dataset.range(99))).map(lambda x, y: x * y),
    "concatenate": lambda d: d.concatenate(tf.data.Dataset.range(100, 104)),
    "sample": lambda d: tf.data.Dataset.sample_from_datasets([d, tf.data.Dataset.range(100, 104)], seed=1),
    "sample to an end": lambda d: tf.data.Dataset.sample_from_datasets(
        [d, tf.data.Dataset.range(100, 104)], seed=1, stop_on_empty_dataset=True
    ),
    "choose": lambda d: tf.data.Dataset.choose_from_datasets(
        [d], tf.data.Dataset.range(9).map(lambda i: i * 0)
    ),
    "shard": lambda d: d.shard(2, 0),
    "python": counted,
}
UNKNOWN = frozenset({"any order"})
"""Steps that may deliver another order each time, of which `take` and the like choose others each time."""
BY_CONTENT = frozenset(
    {
        "map",
        "fixed map",
        "any order",
        "shuffle",
        "interleave",
        "flat_map",
        "filter",
        "prefetch",
        "cache",
        "twice",
    }
)
"""Steps behind which the order of elements decides nothing."""


def records(make: Callable[[], Any], findings: frozenset[str], workers: int = 1) -> Counter[int]:
    """The records of an epoch of all workers; of each worker all but an incomplete last batch."""
    return sum((read(make, findings, workers, index)[0] for index in range(workers)), Counter())


def read(
    make: Callable[[], Any], findings: frozenset[str], workers: int, index: int
) -> tuple[Counter[int], bool]:
    """The records of one of them, and whether they are its part alone of what the mended pipeline reads."""
    with tf.Graph().as_default():
        mended = mend(make(), findings, workers, index)
        return Counter(_values(mended)), any(change.startswith("shard(") for change in mended.changes)


def _values(mended: Mended) -> list[int]:
    batch = tf.compat.v1.data.make_one_shot_iterator(mended.dataset).get_next()
    values: list[int] = []
    with tf.compat.v1.Session() as session:
        try:
            while True:
                values += np.asarray(session.run(batch)).reshape(-1).tolist()
        except tf.errors.OutOfRangeError:
            return values


def pipeline(source: str, names: list[str], size: int = 1) -> Callable[[], Any]:
    def make() -> Any:
        dataset = SOURCES[source]()
        for name in names:
            dataset = STEPS[name](dataset)
        return dataset.batch(size)

    return make


@st.composite
def steps(draw: Any) -> list[str]:
    names: list[str] = draw(st.lists(st.sampled_from(sorted(STEPS)), max_size=4))
    first = next((index for index, name in enumerate(names) if name in UNKNOWN), len(names))
    # What an unknown order decides, nobody can compare.
    return names[: first + 1] + [name for name in names[first + 1 :] if name in BY_CONTENT]


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(SOURCES)),
    steps(),
    st.sets(st.sampled_from(sorted(IN_AN_EPOCH))),
    st.sampled_from([1, 2, 3]),
)
def test_records_are_kept(source: str, names: list[str], findings: set[str], workers: int) -> None:
    # Batches of one record: none is incomplete.
    make = pipeline(source, names)
    whole = records(make, frozenset())
    chosen = frozenset(findings) | {"shard-missing"}
    parts = [read(make, chosen, workers, index) for index in range(workers)]
    if parts[0][1]:
        assert sum((part for part, _ in parts), Counter()) == whole
    else:
        assert all(part == whole for part, _ in parts)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "batch": lambda d: d.batch(5, drop_remainder=True),
    "padded": lambda d: d.padded_batch(4, padded_shapes=[]),
    "rebatch": lambda d: d.batch(4).map(doubled).unbatch().batch(3, drop_remainder=True),
    "window": lambda d: d.window(4, 3, drop_remainder=True).flat_map(lambda w: w.batch(4)),
}
"""What makes a record of several elements that follow each other."""
ROWS: dict[str, Callable[[Any], Any]] = {
    "map": lambda d: d.map(lambda x: x[1:] - x[:1]),
    "shuffle": lambda d: d.shuffle(3, seed=7),
    "take": lambda d: d.take(4),
    "cache": lambda d: d.cache(),
    "filter": lambda d: d.filter(lambda x: tf.reduce_sum(x) % 2 < 1),
}


def row_counts(dataset: Any) -> Counter[tuple[int, ...]]:
    """How often each record of a dataset of batches of one record comes."""
    batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    rows: Counter[tuple[int, ...]] = Counter()
    with tf.compat.v1.Session() as session:
        try:
            while True:
                rows.update(tuple(row) for row in np.asarray(session.run(batch)).tolist())
        except tf.errors.OutOfRangeError:
            return rows


@settings(max_examples=20)
@given(
    st.sampled_from(sorted(SOURCES)),
    st.lists(st.sampled_from(sorted(STEPS.keys() - UNKNOWN)), max_size=2),
    st.sampled_from(sorted(MAKERS)),
    st.lists(st.sampled_from(sorted(ROWS)), max_size=2),
    st.sets(st.sampled_from(sorted(IN_AN_EPOCH - {"drop-remainder-missing"}))),
    st.sampled_from([1, 2, 3]),
)
def test_records_made_of_several_elements_are_kept(
    source: str, before: list[str], maker: str, behind: list[str], findings: set[str], workers: int
) -> None:
    def make() -> Any:
        dataset = SOURCES[source]()
        for name in before:
            dataset = STEPS[name](dataset)
        dataset = MAKERS[maker](dataset)
        for name in behind:
            dataset = ROWS[name](dataset)
        return dataset.batch(1)

    with tf.Graph().as_default():
        whole = row_counts(make())
    parts = []
    for index in range(workers):
        with tf.Graph().as_default():
            mended = mend(make(), {*findings, "shard-missing"}, workers, index)
            parts.append((row_counts(mended.dataset), any("shard(" in done for done in mended.changes)))
    if parts[0][1]:
        assert sum((part for part, _ in parts), Counter()) == whole
    else:
        assert all(part == whole for part, _ in parts)


def test_sequences_are_shared_out_whole(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text("".join(f"{name}{line}\n" for line in range(40)))

    def packed() -> Any:
        """Lines of a corpus in blocks of 16 bytes, as a language model reads them."""
        lines = tf.data.TextLineDataset([str(tmp_path / name) for name in "ab"])
        codes = lines.map(lambda line: tf.io.decode_raw(line, tf.uint8)).unbatch()
        return codes.batch(16, drop_remainder=True).map(lambda x: x[1:] - x[:-1]).shuffle(9, seed=1).batch(1)

    with tf.Graph().as_default():
        whole = row_counts(packed())
    found = {one.id for one in inspect(lambda workers, index: packed()).findings}
    assert "shard-missing" in found
    assert "parallel-reads-missing" in found
    assert "shuffle-after-batch" not in found
    for workers in (1, 2, 3):
        parts = []
        for index in range(workers):
            with tf.Graph().as_default():
                mended = mend(packed(), found - {"repeat-missing"}, workers, index)
                assert ("shard(" in str(mended.changes)) is (workers > 1)
                parts.append(row_counts(mended.dataset))
        assert sum(parts, Counter()) == whole


@pytest.mark.parametrize("source", ["range", "one element", "one tensor"])
@pytest.mark.parametrize("name", ["take", "skip", "scan", "take_while"])
def test_shards_are_made_behind_what_chooses_by_the_order(source: str, name: str) -> None:
    make = pipeline(source, ["map", name])
    parts = [read(make, frozenset({"shard-missing"}), 2, index)[0] for index in (0, 1)]
    assert sum(parts, Counter()) == records(make, frozenset())
    assert abs(parts[0].total() - parts[1].total()) <= 1


EVEN: Callable[[Any], Any] = lambda d: d.filter(lambda x: x % 2 < 1)  # noqa: E731
NUMBERED: Callable[[Any], Any] = lambda d: d.enumerate().filter(lambda i, x: i % 2 < 1)  # noqa: E731


@pytest.mark.parametrize(
    "choose",
    [
        EVEN,
        lambda d: d.scan(tf.constant(0, tf.int64), lambda s, x: (s + 1, s)).filter(lambda x: x % 2 < 1),
        lambda d: NUMBERED(d).map(lambda i, x: x),
        lambda d: d.map(lambda x: x // 5).flat_map(lambda x: EVEN(pair(x))).map(doubled),
        # What makes nothing of some elements chooses as well.
        lambda d: d.flat_map(lambda x: tf.data.Dataset.range(x % 2 * 3)),
        lambda d: d.flat_map(lambda x: pair(x).skip(x % 2 * 2)),
        lambda d: d.flat_map(odd_twice),
        lambda d: d.map(lambda x: tf.range(x % 2 * 3)).unbatch(),
    ],
)
def test_no_worker_is_left_empty_by_what_chooses_by_the_position(choose: Callable[[Any], Any]) -> None:
    def make() -> Any:
        return choose(SOURCES["range"]()).shuffle(9, seed=1).batch(1)

    parts = [read(make, frozenset({"shard-missing"}), 2, index)[0] for index in (0, 1)]
    assert sum(parts, Counter()) == records(make, frozenset())
    assert abs(parts[0].total() - parts[1].total()) <= 1


@pytest.mark.parametrize(
    "make_more",
    [pair, tf.function(pair), lambda x: tf.data.Dataset.from_tensor_slices(tf.stack([x, x + 1])).skip(0)],
)
def test_what_makes_something_of_each_element_is_shared_out_before(make_more: Callable[[Any], Any]) -> None:
    with tf.Graph().as_default():
        mended = mend(SOURCES["range"]().flat_map(make_more).batch(1), {"shard-missing"}, 2, 0)
    assert mended.changes == ("shard(2, 0) behind range()",)


JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "concatenate": lambda a, b: b.map(doubled).concatenate(a),
    "sample": lambda a, b: tf.data.Dataset.sample_from_datasets([a, b], seed=1).shuffle(9, seed=1),
    "choose": lambda a, b: tf.data.Dataset.choose_from_datasets([a, b], tf.data.Dataset.range(2).repeat(20)),
    "zip": lambda a, b: tf.data.Dataset.zip((a, b)).map(lambda x, y: x + y),
    "sliced": lambda a, b: b.concatenate(a).concatenate(tf.data.Dataset.range(3)),
}


@pytest.mark.parametrize("join", JOINS)
def test_the_half_that_is_not_shared_out_is_found_and_mended(join: str) -> None:
    def make(workers: int, index: int, whole: bool = False) -> Any:
        shared, other = tf.data.Dataset.range(20), tf.data.Dataset.range(100, 140).skip(10)
        return JOINS[join](shared if whole else shared.shard(workers, index), other).batch(1)

    missing = [one for one in inspect(make).findings if one.id == "shard-missing"]
    assert sorted(one.op for one in missing) == (["range", "skip"] if join == "sliced" else ["skip"])
    assert f"what {'concatenate' if join == 'sliced' else join}" in missing[0].message
    parts = []
    for index in (0, 1):
        with tf.Graph().as_default():
            mended = mend(make(2, index), {"shard-missing"}, 2, index)
            parts.append(Counter(_values(mended)))
            assert bool(mended.changes) is (join in ("concatenate", "sample"))
            assert bool(mended.left) is (join not in ("concatenate", "sample"))
    if join in ("concatenate", "sample"):
        assert parts[0] + parts[1] == records(lambda: make(1, 0, whole=True), frozenset())


def test_each_half_of_its_own() -> None:
    def both(workers: int, index: int) -> Any:
        parts = [tf.data.Dataset.range(count).shard(workers, index) for count in (9, 4)]
        return parts[0].concatenate(parts[1])

    for make in (
        lambda n, i: both(n, i),
        # Numbers, and what is the same for all records, are nobody's part.
        lambda n, i: tf.data.Dataset.zip((both(n, i), tf.data.Dataset.counter().map(doubled))),
        lambda n, i: tf.data.Dataset.zip((both(n, i), tf.data.Dataset.from_tensors(1).repeat())),
        lambda n, i: tf.data.Dataset.zip((both(n, i), tf.data.Dataset.random(1))),
        # What is shared out behind the join is so, whatever it joins.
        lambda n, i: both(n, i).concatenate(tf.data.Dataset.range(50)).shard(n, i),
    ):
        assert "shard-missing" not in {one.id for one in inspect(make).findings}


def test_parts_that_fill_no_batch_are_not_made() -> None:
    both = {"shard-missing", "drop-remainder-missing"}
    for make, findings, shards in (
        (pipeline("range", [], 25), {"shard-missing"}, True),
        (pipeline("range", [], 25), both, False),
        (pipeline("range", ["shuffle"], 24), both, True),
        (pipeline("range", [], 25), {*both, "repeat-missing"}, True),
    ):
        with tf.Graph().as_default():
            mended = mend(make(), findings, 2, 0)
        assert any(change.startswith("shard(") for change in mended.changes) is shards
        assert shards or "batches of 25 alone, and a worker would have 24" in mended.left[0].reason


@settings(max_examples=15)
@given(
    st.lists(st.sampled_from(["take", "skip", "shuffle", "twice", "concatenate", "map", "cache"]), max_size=3)
)
def test_only_records_of_a_smaller_last_batch_are_left_out(names: list[str]) -> None:
    def make() -> Any:
        dataset = tf.data.Dataset.range(50).batch(4)
        for name in names:
            dataset = AFTER_BATCH.get(name, STEPS[name])(dataset)
        return dataset

    whole, mended = records(make, frozenset()), records(make, frozenset({"drop-remainder-missing"}))
    assert not mended - whole
    assert sum((whole - mended).values()) <= (2 + names.count("concatenate")) * 2 ** names.count("twice")


AFTER_BATCH: dict[str, Callable[[Any], Any]] = {
    "take": lambda d: d.take(20),
    "skip": lambda d: d.skip(2),
    "concatenate": lambda d: d.concatenate(tf.data.Dataset.range(100, 105).batch(4)),
}


@pytest.mark.parametrize(
    ("finding", "names", "reason"),
    [
        (
            "shuffle-buffer-small",
            ["shuffle", "take"],
            r"take\(\) in .*test_mend_keeps_records.py:\d+ may depend on",
        ),
        ("cycle-length-fixed", ["fixed interleave", "skip"], r"skip\(\) in .* may depend on the order"),
        ("shard-missing", ["shuffle", "take"], r"take\(\) in .* may depend on the order"),
        (
            "shuffle-buffer-small",
            ["shuffle", "sample to an end"],
            r"sample_from_datasets\(\) in .* may depend",
        ),
        ("shuffle-buffer-small", ["shuffle", "choose"], r"choose_from_datasets\(\) in .* may depend"),
        ("shard-missing", ["shuffle", "filter"], r"filter\(\) in .* chooses elements, maybe none"),
        ("shard-missing", ["python"], r"map\(\) in .* calls Python"),
        ("parallel-calls-missing", ["python"], r"map\(\) in .* calls Python"),
        ("cycle-length-fixed", ["endless interleave"], "interleave"),
    ],
)
def test_what_is_left_is_named(finding: str, names: list[str], reason: str) -> None:
    with tf.Graph().as_default():
        mended = mend(pipeline("range", names)(), {finding}, 2, 0)
    assert mended.changes == ()
    (left,) = mended.left
    assert left.finding == finding
    assert re.search(reason, left.reason)


@pytest.mark.parametrize("files", [1, 4])
def test_shards_of_files(tmp_path: Path, files: int) -> None:
    paths = []
    for number in range(files):
        paths.append(str(tmp_path / f"{number}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for record in range(12):
                writer.write(str(12 * number + record).encode())

    def make() -> Any:
        names = tf.data.Dataset.from_tensor_slices(paths)
        return names.interleave(tf.data.TFRecordDataset, cycle_length=2).map(tf.strings.to_number).batch(4)

    whole = records(make, IN_AN_EPOCH, 3) if files == 1 else records(make, IN_AN_EPOCH, 2)
    assert whole == Counter(dict.fromkeys(range(12 * files), 1))


def test_the_shape_of_a_batch_is_fixed_and_an_incomplete_one_left_out() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(10).map(lambda x: {"a": x, "b": (x, [x, x])}).batch(4)

    with tf.Graph().as_default():
        mended = mend(make(), {"drop-remainder-missing"})
        shapes = [spec.shape.as_list() for spec in tf.nest.flatten(mended.dataset.element_spec)]
        assert shapes == [[4], [4], [4, 2]]
        assert mended.changes == ("batch(drop_remainder=True)",)
    flat = records(lambda: make().map(lambda x: x["a"]), frozenset({"drop-remainder-missing"}))
    assert flat == Counter(range(8))


def test_the_end_is_mended() -> None:
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.range(5).batch(4, drop_remainder=True)
        mended = mend(dataset, {"repeat-missing", "prefetch-missing"})
        assert mended.changes == ("repeat() behind range()", "prefetch(AUTOTUNE) at the end")
        batch = tf.compat.v1.data.make_one_shot_iterator(mended.dataset).get_next()
        with tf.compat.v1.Session() as session:
            assert [session.run(batch).tolist() for _ in range(3)] == [
                [0, 1, 2, 3],
                [4, 0, 1, 2],
                [3, 4, 0, 1],
            ]


def test_a_table_is_repeated_as_its_call_would(tmp_path: Path) -> None:
    path = str(tmp_path / "t.csv")
    Path(path).write_text("a\n0\n1\n2\n")

    def make(epochs: int | None) -> Any:
        table = tf.data.experimental.make_csv_dataset(path, 2, num_epochs=epochs, shuffle=False)
        return table.map(lambda row: row["a"])

    def first(mended: Any) -> list[Any]:
        batch = tf.compat.v1.data.make_one_shot_iterator(mended).get_next()
        with tf.compat.v1.Session() as session:
            return [session.run(batch).tolist() for _ in range(3)]

    with tf.Graph().as_default():
        mended = mend(make(1), {"repeat-missing"})
        assert mended.changes == ("make_csv_dataset(num_epochs=None)",)
        assert first(mended.dataset) == first(make(None)) == [[0, 1], [2, 0], [1, 2]]
        kept = mend(make(1).cache(), {"repeat-missing"})
        assert kept.changes == ("repeat() behind cache()",)


def test_what_is_not_certain_is_left() -> None:
    drawn = tf.data.Dataset.range
    unsafe: list[Callable[[], Any]] = [
        # Two sources: a shard of each would make other pairs.
        lambda: tf.data.Dataset.zip((drawn(4), drawn(4).shuffle(4))),
        # Random numbers would come in another order.
        lambda: drawn(4).map(lambda x: tf.cast(x, tf.float32) + tf.random.uniform([])),
        # Python does not run side by side.
        lambda: drawn(4).map(lambda x: tf.numpy_function(np.abs, [x], tf.int64)),
    ]
    findings = [{"shard-missing"}, {"parallel-calls-missing"}, {"parallel-calls-missing"}]
    for make, ids in zip(unsafe, findings, strict=True):
        with tf.Graph().as_default():
            dataset = make()
            assert mend(dataset, ids, 2, 0) == Mended(dataset, ())
            assert mend(dataset, ids, 2, 0).left


def test_a_shuffle_before_a_sample_of_all_is_mended() -> None:
    with tf.Graph().as_default():
        assert mend(pipeline("range", ["shuffle", "sample"], 4)(), {"shuffle-buffer-small"}).changes
