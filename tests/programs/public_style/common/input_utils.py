"""Records of a task's files: which are its own, from where on, and how they are read."""

import json
import os

import tensorflow as tf


def shard_dataset(dataset, use_multiple_workers):
    """Every worker of a job takes its share, which it finds by TF_CONFIG."""
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not use_multiple_workers or not config.get("cluster"):
        return dataset
    return dataset.shard(len(config["cluster"]["worker"]), config["task"]["index"])


def num_workers():
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    return len(config.get("cluster", {}).get("worker", ())) or 1


def records(files, settings, training):
    """Serialized examples: files are sharded, mixed with each other, and repeated to train."""
    dataset = tf.data.Dataset.from_tensor_slices(sorted(tf.io.gfile.glob(files)))
    if not training:
        return dataset.flat_map(tf.data.TFRecordDataset)
    dataset = shard_dataset(dataset, settings["use_multiple_workers"])
    dataset = dataset.apply(
        tf.data.experimental.parallel_interleave(
            tf.data.TFRecordDataset, cycle_length=settings.get("num_readers", 2), sloppy=False
        )
    )
    if settings.get("shuffle"):
        return dataset.apply(
            tf.data.experimental.shuffle_and_repeat(settings["shuffle_buffer"], seed=settings["shuffle_seed"])
        )
    return dataset.repeat()


def batches(dataset, parse, settings):
    dataset = dataset.apply(
        tf.data.experimental.map_and_batch(
            parse, settings["batch_size"], num_parallel_calls=1, drop_remainder=True
        )
    )
    skip_steps = settings.get("skip_steps", 0)
    if skip_steps:
        tf.compat.v1.logging.info(f"skipping {skip_steps} steps of the input")
        dataset = dataset.skip(skip_steps // num_workers())
    return dataset.prefetch(settings.get("prefetch", 2))


def parser(shapes, label):
    """Name -> shape of int64 or float32 features; gives (features, label) with integers of 32 bits."""
    description = {name: tf.io.FixedLenFeature(shape, dtype) for name, (shape, dtype) in shapes.items()}

    def parse(serialized):
        parsed = tf.io.parse_single_example(serialized, description)
        small = {k: tf.cast(v, tf.int32) if v.dtype == tf.int64 else v for k, v in parsed.items()}
        target = small.pop(label) if label else None
        return (small, target) if label else small

    return parse


def write_records(pattern, rows, files):
    """Writes rows (name -> array) as examples into several files; `pattern` has one {}."""
    import numpy as np

    for number in range(files):
        path = pattern.format(number)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with tf.io.TFRecordWriter(path) as writer:
            for row in rows[number::files]:
                features = {}
                for name, value in row.items():
                    flat = np.asarray(value).reshape(-1)
                    if flat.dtype.kind in "iu":
                        feature = tf.train.Feature(int64_list=tf.train.Int64List(value=flat))
                    else:
                        feature = tf.train.Feature(float_list=tf.train.FloatList(value=flat))
                    features[name] = feature
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
