"""ResNet and U-Net: their data, accuracy and kernels."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cgc.importers.tensorflow import import_step
from cgc.kernels import match_kernels
from cgc.passes import DEFAULT_PIPELINE
from cgc.passes.pipeline import run_pipeline

v1 = tf.compat.v1

NAMES = ("resnet", "unet")
MODELS = Path(__file__).parents[3] / "models"
Modules = dict[str, ModuleType]


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run tests as a process without a launcher, in a new directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("TF_CONFIG", "CSRUN_RANK", "CSRUN_NUM_TASKS", "CSRUN_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=NAMES)
def any_model(request: pytest.FixtureRequest, example: Callable[..., Any]) -> Iterator[Modules]:
    with example(request.param) as modules:
        yield modules


@pytest.fixture
def resnet(example: Callable[..., Any]) -> Iterator[Modules]:
    with example("resnet") as modules:
        yield modules


@pytest.fixture
def unet(example: Callable[..., Any]) -> Iterator[Modules]:
    with example("unet") as modules:
        yield modules


def params_of(modules: Modules, *arguments: str) -> dict[str, Any]:
    program = modules["run"].PROGRAM
    params: dict[str, Any] = program.merge_params(program.parse_arguments(["-m", "train", *arguments]))
    return params


def set_shard(monkeypatch: pytest.MonkeyPatch, workers: int, index: int) -> None:
    cluster = {"worker": [f"a:{i}" for i in range(workers)]}
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_file_is_accepted(name: str, example: Callable[..., Any]) -> None:
    files = sorted((MODELS / name / "tf" / "configs").glob("*.yaml"))
    assert len(files) >= 2
    with example(name) as modules:
        for file in files:
            params_of(modules, "-p", str(file))


def test_a_fresh_input_gives_the_same_batches_and_others_to_another_worker(
    any_model: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = params_of(any_model)
    data = any_model["data"]

    def some_batches() -> list[bytes]:
        return [x.numpy().tobytes() for batch in data.train_input_fn(params).take(3) for x in batch]

    alone = some_batches()
    assert alone == some_batches()
    assert len(set(alone)) == 6
    shards = []
    for index in range(2):
        set_shard(monkeypatch, 2, index)
        shards.append(some_batches())
    assert not set(shards[0]) & set(shards[1])


@pytest.mark.parametrize("workers", [1, 3])
def test_an_evaluation_sees_every_record_once(
    any_model: Modules, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    params = params_of(any_model)
    params["eval_input"].update(num_records=24, batch_size=8)
    seen: Counter[bytes] = Counter()
    for index in range(workers):
        set_shard(monkeypatch, workers, index)
        for images, _ in any_model["data"].eval_input_fn(params):
            seen.update(image.tobytes() for image in images.numpy())
    assert sum(seen.values()) == len(seen) == 24
    params["eval_input"]["batch_size"] = 25
    with pytest.raises(any_model["data"].DataError, match="this task has"):
        any_model["data"].eval_input_fn(params)


@pytest.mark.parametrize(
    ("name", "steps", "metric", "least"),
    [
        ("resnet", 60, "accuracy", 0.95),
        pytest.param("unet", 120, "mean_iou", 0.75, marks=pytest.mark.soak),
    ],
)
def test_it_learns(
    name: str,
    steps: int,
    metric: str,
    least: float,
    example: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with example(name) as modules:
        where = ["-o", str(tmp_path / "model_dir")]
        modules["run"].main(["-m", "train", "--max_steps", str(steps), *where])
        modules["run"].main(["-m", "eval", *where])
    shown = dict(pair.split(" = ") for pair in capsys.readouterr().out.strip().split(", "))
    assert float(shown[metric]) >= least
    assert shown["global_step"] == str(steps)


def test_images_and_masks_from_files(unet: Modules, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for split, count in (("train", 5), ("validation", 4)):
        for kind in ("images", "masks"):
            (tmp_path / split / kind).mkdir(parents=True)
        for index in range(count):
            gray = np.full((20, 12, 1), 51 * index, np.uint8)
            mask = np.full((20, 12, 1), index % 3, np.uint8)
            for kind, pixels in (("images", gray), ("masks", mask)):
                path = tmp_path / split / kind / f"{index}.png"
                path.write_bytes(tf.io.encode_png(pixels).numpy())
    params = params_of(unet, "--data_dir", str(tmp_path))
    params["eval_input"]["batch_size"] = params["train_input"]["batch_size"] = 2
    batches = list(unet["data"].eval_input_fn(params))
    images = np.concatenate([images for images, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    assert images.shape == (4, 16, 16, 1)
    np.testing.assert_allclose(images[:, 3, 3, 0], [0, 0.2, 0.4, 0.6], rtol=1e-6)
    assert labels[:, 5, 5].tolist() == [0, 1, 2, 0]
    assert len(list(unet["data"].train_input_fn(params).take(5))) == 5
    (tmp_path / "train" / "masks" / "3.png").unlink()
    with pytest.raises(unet["data"].DataError, match=r"masks' lacks 3\.png"):
        unet["data"].train_input_fn(params)
    set_shard(monkeypatch, 5, 4)
    with pytest.raises(unet["data"].DataError, match="this task has 0 records"):
        unet["data"].eval_input_fn(params)
    with pytest.raises(unet["data"].DataError, match=r"no PNG file; check --data_dir"):
        unet["data"].train_input_fn(params_of(unet, "--data_dir", str(tmp_path / "nowhere")))


def test_photographs_from_tfrecords(resnet: Modules, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def example_of(label: int) -> bytes:
        jpeg = tf.io.encode_jpeg(np.full((40, 30, 3), 40 * label, np.uint8), quality=100).numpy()
        features = {
            "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg])),
            "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        }
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    for split in ("train", "validation"):
        for file in range(2):
            with tf.io.TFRecordWriter(str(tmp_path / f"{split}-{file:05}-of-00002")) as writer:
                for label in range(1, 5):
                    writer.write(example_of(label))
    params = params_of(resnet, "--data_dir", str(tmp_path))
    params["eval_input"]["batch_size"] = params["train_input"]["batch_size"] = 4
    data = resnet["data"]
    for input_fn in (data.train_input_fn, data.eval_input_fn):
        for images, labels in input_fn(params).take(2):
            assert images.shape == (4, 16, 16, 3)
            grays = (40 * (labels.numpy() + 1) - data.MEAN_RGB[0]) / data.STDDEV_RGB[0]
            np.testing.assert_allclose(images[:, 8, 8, 0], grays, atol=0.1)
    assert sorted(label for _, labels in data.eval_input_fn(params) for label in labels.numpy()) == [
        *[0, 0, 1, 1],
        *[2, 2, 3, 3],
    ]
    set_shard(monkeypatch, 3, 0)
    with pytest.raises(data.DataError, match="2 files of this split for 3 workers"):
        data.eval_input_fn(params)
    with pytest.raises(data.DataError, match="no TFRecord file 'train-NNNNN-of-NNNNN'"):
        data.train_input_fn(params_of(resnet, "--data_dir", str(tmp_path / "nowhere")))


def traced(modules: Modules, params: dict[str, Any]) -> Any:
    """The compiler's module of a training step, rewritten."""
    with tf.Graph().as_default() as graph:
        step = v1.train.create_global_step()
        spec = modules["data"].train_input_fn(params).element_spec
        inputs = [v1.placeholder(part.dtype, part.shape) for part in spec]
        model = modules["model"].model_fn(*inputs, "train", params)
        imported = import_step(
            graph,
            inputs=inputs,
            outputs={"loss": model.loss},
            updates=[model.train_op],
            mode="train",
            seed=1,
            global_step=step,
        )
    run_pipeline(imported.module, DEFAULT_PIPELINE)
    return imported.module


def test_every_op_belongs_to_a_kernel_of_the_library(any_model: Modules) -> None:
    kernels = match_kernels(traced(any_model, params_of(any_model)))
    assert [kernel.name for kernel in kernels.kernels if kernel.generated] == []
    families = Counter(kernel.family for kernel in kernels.kernels)
    is_resnet = "blocks" in params_of(any_model)["model"]
    convolutions, norms = (9, 9) if is_resnet else (13, 10)
    assert (families["convolution"], families["normalization"]) == (convolutions, norms)
    # three residual sums, and three places where their gradients meet; or two joints and two such places
    assert families["add"] == (6 if is_resnet else 2)
    assert families["data_movement"] == (0 if is_resnet else 2)
    assert families["pooling"] == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"upscale_method": "nearest", "downscale_method": "avg_pool"},
        {"upscale_method": "bilinear", "downscale_method": "strided_conv", "skip_connect": False},
        {"norm_type": "none", "convs_per_block": 1},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_other_forms_of_unet_compile(unet: Modules, changes: dict[str, Any]) -> None:
    params = params_of(unet)
    params["model"].update(changes)
    assert match_kernels(traced(unet, params)).kernels


@pytest.mark.soak
@pytest.mark.parametrize(("name", "config"), [("resnet", "params_resnet18"), ("unet", "params_unet")])
def test_published_sizes_compile_without_materializing_weights(
    name: str, config: str, tmp_path: Path
) -> None:
    program = MODELS / name / "tf"
    script = (
        "import os, resource, runpy, sys\n"
        "sys.argv = sys.argv[1:]\n"
        "sys.path.insert(0, os.path.dirname(sys.argv[0]))\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    arguments = ["-m", "compile_only", "-p", f"{program}/configs/{config}.yaml", "-o", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", script, f"{program}/run.py", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    peak_kib = int(done.stdout.split("peak ")[1])
    assert peak_kib < 2 * 2**20
    assert list(tmp_path.glob("cs_*/compile_report.txt"))
