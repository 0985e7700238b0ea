"""Tiny models of transformers: each type of model, with a head and random batches."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.zoo import timm_models
from benchmarks.zoo.architecture import (
    BATCH_SIZE,
    MAX_PARAMETERS,
    SEED,
    STEPS,
    SkippedError,
    Workload,
    one_line,
)
from benchmarks.zoo.tiny import FIRST_SPECIAL, HEAD_DIM, VOCABULARY, WIDTH, Shrinking, shrink
from benchmarks.zoo.torch_outputs import mean_square, mean_square_of_finite, without_randomness, without_ties

TOKENS = 16
SAMPLES = 3200
"""Of a waveform."""
SEARCH_S = 20.0
"""For finding a configuration that works."""

GRID = 4
"""Patches of an image in each direction, where a model takes them in rows."""

FRAMES = 64
"""Of a spectrogram."""

HEADS = (
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "MASKED_LM",
    "CAUSAL_LM",
    "IMAGE_TEXT_TO_TEXT",
    "CTC",
    "PRETRAINING",
    "IMAGE_CLASSIFICATION",
    "SEMANTIC_SEGMENTATION",
    "UNIVERSAL_SEGMENTATION",
    "VIDEO_CLASSIFICATION",
    "AUDIO_CLASSIFICATION",
    "SEQUENCE_CLASSIFICATION",
    "OBJECT_DETECTION",
    "DEPTH_ESTIMATION",
    "TIME_SERIES_PREDICTION",
)
"""Kinds of heads, the preferred ones first; a type without any of them is trained as its base model."""

_FULL_ROTATION = {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
_EFFICIENT_NET = {"width_coefficient": 0.25, "depth_coefficient": 0.25, "hidden_dim": 320}
_EDGE = {"backbone_channel_list": [192, 48, 32, 32]}
"""Return the sizes of the small backbone, the last one first."""
_INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": HEAD_DIM,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}

CHANGES: dict[str, dict[str, Any]] = {
    "align": {"vision_config": _EFFICIENT_NET, "projection_dim": 80},
    "autoformer": {"num_time_features": 2},
    "informer": {"num_time_features": 2},
    "time_series_transformer": {"num_time_features": 2},
    "blip-2": {"image_token_index": FIRST_SPECIAL},
    "chameleon": {"vocabulary_map": {"<image>": FIRST_SPECIAL, "IMGIMGAZ": FIRST_SPECIAL + 1}},
    "cohere_compass": {"text_config": {"rope_parameters": _FULL_ROTATION}},
    "cohere_compass_text": {"rope_parameters": _FULL_ROTATION},
    "cvt": {"depth": [1, 2, 3]},
    "dory": {"num_hidden_layers": 4, "n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 1, "mask_token_id": 2},
    "dbrx": {"attn_config": {"rope_theta": 10_000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense", "sparse"]}},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64}},
    "edgetam": {"vision_config": _EDGE},
    "edgetam_vision_model": _EDGE,
    "efficientnet": _EFFICIENT_NET,
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": WIDTH // 4}},
    "gemma3n": {"text_config": {"num_kv_shared_layers": 0}},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granite4_vision": {
        "deepstack_layer_map": [[1, 0]],
        "downsample_rate": "1/2",
        "spatial_target_layers": [0, 1],
    },
    "instructblip": {"image_token_index": FIRST_SPECIAL},
    "instructblipvideo": {"video_token_index": FIRST_SPECIAL},
    "kosmos-2": {"latent_query_num": 4},
    "layoutlmv3": {"coordinate_size": 12, "shape_size": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "lilt": {"hidden_size": 96},
    "markuplm": {"max_xpath_tag_unit_embeddings": 256, "max_xpath_subs_unit_embeddings": 1024},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "muse_spark": {"audio_config": {"out_hidden_size": WIDTH}},
    "nemotron": {"num_key_value_heads": 2},
    "perception_lm": {"vision_config": {"architecture": "test_vit", "model_args": {"embed_dim": 64}}},
    "pvt": {"num_encoder_blocks": 4},
    "qwen2_5_omni_thinker": {"vision_start_token_id": FIRST_SPECIAL},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": FIRST_SPECIAL},
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": _INDEXER,
    "reformer": {"axial_pos_shape": [4, TOKENS // 4], "axial_pos_embds_dim": [32, 32], "is_decoder": True},
    "step3p7": {"text_config": {"sliding_window": 8}},
    "timm_backbone": {"backbone": "test_resnet"},
    "xmod": {"default_language": "en_XX"},
    "tvp": {"visual_prompt_size": 8},
}
"""Fields of a configuration that no rule finds, by type of model."""

BACKBONE, BACKBONE_OF_PATCHES = "test_resnet", "test_vit"
"""Small networks of timm instead of the large ones that detectors and models of videos have."""


def preload() -> None:
    """Imports what all models need, before processes are forked."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    timm_models.preload()
    import transformers
    from transformers.utils import import_utils

    # Detectors have backbones of timm, which transformers uses only next to torchvision.
    for module in (import_utils, transformers.utils):
        module.is_timm_available = lambda: True
    error = import_utils.BACKENDS_MAPPING["timm"][1]
    import_utils.BACKENDS_MAPPING["timm"] = (import_utils.is_timm_available, error)
    transformers.logging.set_verbosity_error()
    for name in ("bert", "llama", "t5", "vit", "mixtral", "wav2vec2", "clip", "detr"):
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def names() -> list[str]:
    """All types of models that transformers has a model class for."""
    from transformers.models.auto import modeling_auto

    found: set[str] = set()
    for name in ("MODEL_MAPPING_NAMES", *(f"MODEL_FOR_{head}_MAPPING_NAMES" for head in HEADS)):
        found |= set(getattr(modeling_auto, name, ()))
    return sorted(found)


def workload(name: str) -> Workload:
    """The tiny model of a type, with batches.

    A rule may break what a type asks of its fields together. Then each field that has become smaller keeps
    its value in turn, until a model trains.

    Raises:
        SkippedError: none was found that trains on this CPU.
    """
    deadline = time.monotonic() + SEARCH_S
    reasons: list[str] = []
    for head in _classes(name):
        changed: set[str] = set()
        try:
            return _workload_of(name, head, frozenset(), changed)
        except SkippedError as error:
            reasons.append(f"{head.__name__}: {error}")
        for kept in sorted(changed):
            if time.monotonic() > deadline:
                break
            try:
                return _workload_of(name, head, frozenset([kept]), set())
            except SkippedError:
                continue
    raise SkippedError("; ".join(reasons) or "no class of a model")


def _classes(name: str) -> list[type[nn.Module]]:
    """The class with a head, and that of the base model."""
    import transformers
    from transformers.models.auto import modeling_auto

    mappings = [getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES", {}) for head in HEADS]
    found: list[type[nn.Module]] = []
    for mapping in (*mappings, modeling_auto.MODEL_MAPPING_NAMES):
        classes = mapping.get(name, ())
        for class_name in (classes,) if isinstance(classes, str) else classes:
            kind = getattr(transformers, class_name, None)
            if kind is not None and kind not in found:
                found.append(kind)
    # One head, and the base model where that one cannot be trained.
    return found[:2] + [kind for kind in found[-1:] if kind not in found[:2]]


def _workload_of(name: str, head: type[nn.Module], kept: frozenset[str], changed: set[str]) -> Workload:
    try:
        forward = head.forward
    except ImportError as error:  # transformers has a placeholder for a class that needs more packages
        raise SkippedError(one_line(error)) from None
    if forward is nn.Module.forward:
        raise SkippedError("its class has no forward, only functions that generate")
    config = _config_of(head, tiny_config(name, kept, changed))
    _check_size(head, config)
    model = _model(head, config)
    failed = ""
    for make in _batch_makers(model, config):
        try:
            batches = [make(torch.Generator().manual_seed(SEED + step)) for step in range(STEPS)]
            loss, about = _loss_of(model, batches)
            value = loss(model, batches[0])
            if loss is mean_square and not torch.isfinite(value):  # as of scores of padded places
                loss, about = mean_square_of_finite, "mean square of its finite outputs"
                value = loss(model, batches[0])
            value.backward()
        except Exception as error:
            failed = failed or one_line(error)
            continue
        finally:
            model.zero_grad(set_to_none=True)
        if not torch.isfinite(value):
            failed = failed or "the loss is not finite"
            continue
        # A model may keep what it has seen, as the state of a recurrence: the one that trains is another.
        constants = {name: batches[0][name] for name in _CONSTANT if name in batches[0]}
        rest = [{name: batch[name] for name in batch if name not in constants} for batch in batches]
        return Workload(_model(head, config), rest, _with(loss, constants), f"{head.__name__}, {about}")
    raise SkippedError(f"it does not run on this CPU: {failed}")


def _config_of(head: type[nn.Module], config: Any) -> Any:
    """Return the part of a configuration that a class takes, as the text part of one with images."""
    kind = getattr(head, "config_class", None)
    if kind is None or isinstance(config, kind):
        return config
    return next((part for part in vars(config).values() if isinstance(part, kind)), config)


def _model(head: type[nn.Module], config: Any) -> nn.Module:
    torch.manual_seed(SEED)
    try:
        model = head(config)
    except Exception as error:
        raise SkippedError(f"the tiny configuration makes no model: {one_line(error)}") from None
    without_randomness(model)
    without_ties(model)
    return model.train()


# Configurations


def tiny_config(name: str, kept: frozenset[str], changed: set[str]) -> Any:
    """A small configuration of a type of model.

    Args:
        name: The type.
        kept: Names of fields that stay as they are.
        changed: Gets the names of the fields that do not.

    Raises:
        SkippedError: the type has no configuration without arguments.
    """
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[name]
    try:
        default = kind()
    except Exception as error:
        raise SkippedError(f"no default configuration: {one_line(error)}") from None
    try:
        config = _shrunk(default, Shrinking({}, kept=kept, changed=changed), CHANGES.get(name, {}))
    except Exception as error:
        raise SkippedError(f"no small configuration: {one_line(error)}") from None
    config.use_cache = False
    config.return_dict = True
    return config


def _shrunk(default: Any, whole: Shrinking, changes: Mapping[str, Any]) -> Any:
    from transformers import PreTrainedConfig

    fields = {name: value for name, value in vars(default).items() if name not in _NOT_ARGUMENTS}
    shrinking = whole.of_part(fields)
    arguments: dict[str, Any] = {**_set_by_parent(default, fields), **shrink(fields, shrinking), **changes}
    layers = fields.get("num_hidden_layers")
    for name, value in fields.items():
        if name in changes and not isinstance(value, PreTrainedConfig):
            continue
        if name == "model_args" and isinstance(value, Mapping) and name not in changes:
            arguments[name] = {key: item for key, item in value.items() if key in _OF_ALL_NETWORKS}
        if name in ("backbone", "architecture") and isinstance(value, str):
            arguments[name] = BACKBONE_OF_PATCHES if value.startswith("vit") else BACKBONE
        if isinstance(value, PreTrainedConfig):
            arguments[name] = _shrunk(value, whole, changes.get(name, {}))
        elif isinstance(value, Mapping) and _is_config(value):
            arguments[name] = {**value, **shrink(value, whole.of_part(value))}
        elif isinstance(value, list | tuple) and len(value) == layers and layers > shrinking.layers:
            arguments[name] = arguments.get(name, value)[: shrinking.layers]
    _choose_outputs(fields, arguments)
    _scale_rotary_sections(fields, arguments)
    # Sub-configurations are given as dictionaries: constructors check and complete those.
    made = {
        name: value.to_dict() if isinstance(value, PreTrainedConfig) else value
        for name, value in arguments.items()
    }
    try:
        return type(default)(**made)
    except TypeError:
        return type(default)(**arguments)


_OF_ALL_NETWORKS = {"features_only", "in_chans", "out_indices"}
"""Arguments that every network of timm takes."""


def _set_by_parent(default: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a part that the configuration around it gives other values than they have by themselves."""
    from transformers import PreTrainedConfig

    try:
        usual = vars(type(default)())
    except Exception:
        return {}
    return {
        name: value
        for name, value in fields.items()
        if not name.startswith("_")
        and not isinstance(value, PreTrainedConfig)
        and (name not in usual or usual[name] != value)
    }


_NOT_ARGUMENTS = {"transformers_version", "name_or_path", "architectures", "id2label", "label2id", "dtype"}


def _is_config(value: Mapping[Any, Any]) -> bool:
    return "hidden_size" in value or "d_model" in value


def _choose_outputs(fields: Mapping[str, Any], arguments: dict[str, Any]) -> None:
    """Let a backbone return as many of its outputs as before, of the first layers where those are fewer."""
    taken = fields.get("_out_indices", fields.get("out_indices"))
    if not isinstance(taken, list | tuple) or not taken:
        return
    stages = isinstance(fields.get("depths"), list | tuple) or "num_hidden_layers" not in fields
    arguments["out_indices"] = list(taken) if stages else list(range(1, len(taken) + 1))


def _scale_rotary_sections(fields: Mapping[str, Any], arguments: dict[str, Any]) -> None:
    """Sections of rotary embeddings add up to half of the rotated part of a head: they shrink with it."""
    for name in ("rope_parameters", "rope_scaling"):
        given = fields.get(name)
        if isinstance(given, Mapping) and "rope_type" in given:
            share = given.get("partial_rotary_factor", fields.get("partial_rotary_factor")) or 1.0
            half = int(arguments.get("head_dim", HEAD_DIM) * share) // 2
            sections = given.get("mrope_section") or [1, 1, 1]
            scaled = [max(1, part * half // sum(sections)) for part in sections]
            scaled[-1] += half - sum(scaled)
            arguments[name] = {**given, "mrope_section": scaled}


def _check_size(head: type[nn.Module], config: Any) -> None:
    try:
        with torch.device("meta"):
            parameters = sum(p.numel() for p in head(config).parameters())
    except Exception:
        return  # a model that reads values when it is made; its size is seen then
    if parameters > MAX_PARAMETERS:
        raise SkippedError(f"{parameters:,} parameters with the tiny configuration")


# Batches

Maker = Callable[[torch.Generator], dict[str, torch.Tensor]]


def _batch_makers(model: nn.Module, config: Any) -> Iterator[Maker]:
    """Functions that make a batch, one for each combination of what its tensors may look like."""
    signature = inspect.signature(model.forward).parameters
    for names in _argument_sets(model, signature):
        options = [[(name, make) for make in _CANDIDATES[name](config)] for name in names]
        for chosen in itertools.islice(itertools.product(*options), 24):

            def make(generator: torch.Generator, chosen: Sequence[Any] = chosen) -> dict[str, torch.Tensor]:
                return {name: tensor(generator) for name, tensor in chosen}

            yield make


def _argument_sets(model: nn.Module, signature: Mapping[str, inspect.Parameter]) -> list[list[str]]:
    """Names of arguments to try: the required ones, then these with further inputs, then all inputs."""
    wanted = _wanted(model, signature)
    others = [name for name in _FURTHER if name in signature and name not in wanted]
    sets = [wanted, *([*wanted, name] for name in others), [*wanted, *others]]
    sets.append([name for name in wanted if not name.startswith("future_")])
    return [names for index, names in enumerate(sets) if names not in sets[:index]]


def _wanted(model: nn.Module, signature: Mapping[str, inspect.Parameter]) -> list[str]:
    required = [
        name
        for name, parameter in signature.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    ]
    if unknown := [name for name in required if name not in _CANDIDATES]:
        raise SkippedError(f"no batches for its arguments {', '.join(unknown)}")
    main = getattr(model, "main_input_name", None)
    found = dict.fromkeys(required)
    for name in (main,) if isinstance(main, str) else main or ():
        if name in signature and name in _CANDIDATES:
            found[name] = None
    if "input_ids" in found and "attention_mask" in signature:
        found["attention_mask"] = None
    for name in ("decoder_input_ids", "bbox", "future_values", "future_time_features"):
        if name in signature:
            found[name] = None
    if "pixel_values" in signature and "input_ids" in found and hasattr(model, "logit_scale"):
        found["pixel_values"] = None
    return list(found)


def _text(config: Any) -> Any:
    return config.get_text_config()


def _vision(config: Any) -> Any:
    for name in ("vision_config", "backbone_config", "image_config", "encoder_config", "encoder"):
        found = getattr(config, name, None)
        if found is not None and not isinstance(found, Mapping):
            return found
    return config


def _audio(config: Any) -> Any:
    for name in ("audio_config", "audio_encoder_config", "encoder_config", "speech_config"):
        found = getattr(config, name, None)
        if found is not None and not isinstance(found, Mapping):
            return found
    return config


def _ids(length: int) -> Callable[[Any], list[Maker]]:
    def candidates(config: Any) -> list[Any]:
        most = min(FIRST_SPECIAL, getattr(_text(config), "vocab_size", None) or FIRST_SPECIAL)
        shapes: list[tuple[int, ...]] = [(BATCH_SIZE, length)]
        codebooks = getattr(config, "num_codebooks", None)
        if isinstance(codebooks, int):  # of a sound, in addition to those of a text
            shapes.append((BATCH_SIZE, length, codebooks + 1))
        return [
            lambda generator, shape=shape: torch.randint(3, most, shape, generator=generator)
            for shape in shapes
        ]

    return candidates


def _decoder_ids(config: Any) -> list[Any]:
    """Tokens; some decoders of speech take those of several channels."""
    found = _ids(TOKENS // 2)(config)
    channels = getattr(getattr(config, "decoder_config", None), "num_channels", None)
    if isinstance(channels, int):
        shape = (BATCH_SIZE, TOKENS // 2, channels)
        found.append(lambda generator: torch.randint(3, FIRST_SPECIAL, shape, generator=generator))
    return found


def _mask(config: Any) -> list[Any]:
    """The last sample is padded."""

    def make(generator: torch.Generator) -> torch.Tensor:
        mask = torch.ones(BATCH_SIZE, TOKENS, dtype=torch.long)
        mask[-1, TOKENS - 4 :] = 0
        return mask

    return [make]


def _random(*shape: int) -> Any:
    return lambda generator: torch.randn(BATCH_SIZE, *shape, generator=generator)


def _integer(value: Any, otherwise: int) -> int:
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    return value if isinstance(value, int) and value > 0 else otherwise


def _pixels(config: Any) -> list[Any]:
    part = _vision(config)
    channels = _integer(getattr(part, "num_channels", None), _integer(getattr(part, "in_channels", None), 3))
    size = getattr(part, "image_size", None)
    height, width = size if isinstance(size, list | tuple) and len(size) == 2 else (_integer(size, 64),) * 2
    frames = _integer(getattr(part, "num_frames", None), 2)
    found = [_random(channels, height, width), _random(frames, channels, height, width)]
    found += [_random(channels, other, other) for other in (64, 128) if (height, width) != (other, other)]
    return found


def _frames(config: Any) -> list[Any]:
    part = _vision(config)
    size = _integer(getattr(part, "image_size", None), _integer(getattr(part, "crop_size", None), 64))
    frames = _integer(getattr(part, "num_frames", getattr(part, "frames_per_clip", None)), 2)
    return [_random(frames, 3, size, size), _random(3, frames, size, size)]


def _patches(config: Any) -> list[Any]:
    """The patches of all images in rows, as models of images of any size take them."""
    part = _vision(config)
    channels = _integer(getattr(part, "in_channels", None), _integer(getattr(part, "num_channels", None), 3))
    size = _integer(getattr(part, "patch_size", None), 8)
    frames = _integer(getattr(part, "temporal_patch_size", None), 1)
    merged = _integer(getattr(part, "spatial_merge_size", None), 1)
    rows = BATCH_SIZE * GRID * GRID
    shapes = (
        (rows, channels * frames * size**2),
        (rows, channels * 2 * size**2),  # of two frames in each patch
        (rows, channels, size, size),
        (BATCH_SIZE, GRID * GRID, channels * size**2),
        (rows, merged * size, merged * size, channels),
        (1, channels, size, rows * size),
    )
    return [lambda generator, shape=shape: torch.randn(shape, generator=generator) for shape in shapes]


def _grids(*size: int) -> Any:
    """Return the height and width of each image in patches, or its frames too."""
    return lambda config: [lambda generator: torch.tensor([size] * BATCH_SIZE)]


def _series(config: Any) -> list[Any]:
    """Past values of a time series, as many as its context and its lags."""
    length = _integer(getattr(config, "context_length", None), TOKENS)
    length += max(getattr(config, "lags_sequence", None) or [0])
    channels = getattr(config, "num_input_channels", None)
    return [_random(length, channels) if isinstance(channels, int) else _random(length)]


def _of_width(length: int, *names: str) -> Callable[[Any], list[Maker]]:
    """Sequences of vectors, whose width is the first field of these names that a configuration has."""

    def candidates(config: Any) -> list[Any]:
        widths = [getattr(config, name, None) for name in names]
        return [_random(length, next((width for width in widths if isinstance(width, int)), 1))]

    return candidates


def _ones(*shape: int) -> Callable[[Any], list[Maker]]:
    return lambda config: [lambda generator: torch.ones(BATCH_SIZE, *shape, dtype=torch.long)]


def _positions(config: Any) -> list[Any]:
    return [lambda generator: torch.arange(TOKENS).expand(BATCH_SIZE, TOKENS).contiguous()]


def _flattened_patches(config: Any) -> list[Any]:
    """Patches, each after its row and its column."""
    width = _integer(getattr(_vision(config), "patch_embed_hidden_size", None), WIDTH)

    def make(generator: torch.Generator) -> torch.Tensor:
        patches = torch.randn(BATCH_SIZE, TOKENS, width, generator=generator)
        places = torch.stack([torch.arange(TOKENS) // 4 + 1, torch.arange(TOKENS) % 4 + 1], -1)
        return torch.cat([places.expand(BATCH_SIZE, TOKENS, 2).float(), patches], -1)

    return [make]


def _spectrogram(config: Any) -> list[Any]:
    """Frames of as many bins as a field says, also with bins before frames, and as images."""
    part = _audio(config)
    widths = [getattr(owner, name, None) for owner in (part, config) for name in _BINS]
    positions = getattr(part, "max_source_positions", None)
    frames = 2 * positions if isinstance(positions, int) and positions <= FRAMES else FRAMES
    found = []
    for bins in dict.fromkeys(width for width in (*widths, 80, 128) if isinstance(width, int)):
        found += [_random(bins, frames), _random(frames, bins), _random(1, frames, bins)]
    return found


_BINS = (
    "num_mel_bins",
    "feature_size",
    "input_dim",
    "input_feat_per_channel",
    "input_feat_size",
    "n_mels",
    "input_size",
)
"""Fields with the number of bins of a spectrogram."""


def _waveform(config: Any) -> list[Any]:
    part = _audio(config)
    bins = getattr(part, "num_mel_bins", None)
    length = getattr(part, "max_length", None)
    found = [_random(SAMPLES), _random(1, SAMPLES), _random(SAMPLES // 96 * 96)]
    if isinstance(bins, int):
        found.insert(0, _random(length if isinstance(length, int) and length >= 64 else FRAMES, bins))
    return found


def _boxes(config: Any) -> list[Any]:
    def make(generator: torch.Generator) -> torch.Tensor:
        corners = torch.randint(0, 32, (BATCH_SIZE, TOKENS, 4), generator=generator)
        corners[..., 2:] += corners[..., :2]
        return corners

    return [make]


def _embeddings(config: Any) -> list[Any]:
    width = next(
        (
            value
            for name in ("hidden_size", "d_model", "embed_dim", "dim")
            if isinstance(value := getattr(config, name, None), int)
        ),
        WIDTH,
    )
    return [_random(TOKENS, width)]


_CANDIDATES: dict[str, Callable[[Any], list[Any]]] = {
    "input_ids": _ids(TOKENS),
    "attention_mask": _mask,
    "decoder_input_ids": _decoder_ids,
    "pixel_values": lambda config: [*_pixels(config), *_patches(config)],
    "pixel_values_videos": _frames,
    "input_features": _spectrogram,
    "input_values": _waveform,
    "bbox": _boxes,
    "query_embeds": _embeddings,
    "inputs_embeds": _embeddings,
    "hidden_states": lambda config: [*_embeddings(config), *_patches(config)],
    "encoder_hidden_states": _of_width(TOKENS, "encoder_hidden_size", "hidden_size"),
    "latents": lambda config: [*_embeddings(config), _random(getattr(config, "hidden_size", WIDTH), TOKENS)],
    "input_features_mask": _ones(FRAMES),
    "pixel_attention_mask": _ones(GRID * GRID),
    "grid_thw": _grids(1, GRID, GRID),
    "image_grid_thw": _grids(1, GRID, GRID),
    "spatial_shapes": _grids(GRID, GRID),
    "merge_sizes": lambda config: [lambda generator: torch.tensor([2] * BATCH_SIZE)],
    "past_values": _series,
    "past_observed_mask": lambda config: [
        lambda generator, make=make: torch.ones_like(make(generator)) for make in _series(config)
    ],
    "past_time_features": lambda config: [
        lambda generator, make=make: make(generator)[:, :, None].expand(-1, -1, 2) for make in _series(config)
    ],
    "future_values": lambda config: [_random(_integer(getattr(config, "prediction_length", None), 4))],
    "future_time_features": lambda config: [_random(_integer(config.prediction_length, 4), 2)],
    "visual_feats": _of_width(TOKENS, "visual_feat_dim"),
    "visual_pos": _of_width(TOKENS, "visual_pos_dim"),
    "flattened_patches": _flattened_patches,
    "audio_mel": _spectrogram,
    "audio_mel_mask": lambda config: [
        lambda generator: torch.zeros(BATCH_SIZE, FRAMES, dtype=torch.bool)  # true where padded
    ],
    "context_hidden_states": lambda config: [*_embeddings(config), _random(TOKENS, 2 * WIDTH)],
    "image_attention_mask": _ones(TOKENS, 2),
    "image_embeds_position_mask": lambda config: [
        lambda generator: torch.arange(TOKENS).expand(BATCH_SIZE, TOKENS) < config.latent_query_num
    ],
    "mm_token_type_ids": lambda config: [
        lambda generator: torch.zeros(BATCH_SIZE, TOKENS, dtype=torch.long)  # all are text
    ],
    "noise_embeds": _embeddings,
    "pixel_position_ids": lambda config: [
        lambda generator: torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).repeat(
            BATCH_SIZE, 1, 1
        )
    ],
    "qformer_input_ids": _ids(TOKENS),
    "conditioning_input_ids": _ids(TOKENS),
    "target_sizes": _grids(GRID, GRID),
    "task_inputs": lambda config: [_random(_integer(getattr(config, "task_seq_len", None), TOKENS))],
    "states": _of_width(TOKENS, "state_dim"),
    "actions": _of_width(TOKENS, "act_dim"),
    "returns_to_go": _of_width(TOKENS),
    "timesteps": _positions,
}
"""The possible values of each argument of `forward`: functions of a configuration."""

_CONSTANT = ("grid_thw", "image_grid_thw", "spatial_shapes", "merge_sizes", "target_sizes")
"""Arguments with the sizes of images: Python reads them, so a program has them in addition to its batches."""

_FURTHER = (
    "pixel_values",
    "input_features",
    "input_values",
    "input_ids",
    "encoder_hidden_states",
    "input_features_mask",
    "visual_feats",
    "visual_pos",
    "flattened_patches",
    "states",
    "actions",
    "returns_to_go",
    "timesteps",
    "image_attention_mask",
    "image_embeds_position_mask",
    "mm_token_type_ids",
    "pixel_attention_mask",
    "qformer_input_ids",
    "spatial_shapes",
    "target_sizes",
)
"""Optional arguments that some models need together with others."""


# Losses


def _loss_of(
    model: nn.Module, batches: list[dict[str, torch.Tensor]]
) -> tuple[Callable[[Any, Any], Any], str]:
    """The model's own loss where it takes labels of its logits' shape, else the mean square of its outputs.

    Adds the labels to the batches.
    """
    if "labels" in inspect.signature(model.forward).parameters:
        with torch.no_grad():
            logits = getattr(model(**batches[0]), "logits", None)
        labels = _labels(logits, batches)
        if labels is not None:
            labeled = [{**batch, "labels": own} for batch, own in zip(batches, labels, strict=True)]
            try:
                loss = own_loss(model, labeled[0])
            except Exception:
                loss = None
            if isinstance(loss, torch.Tensor) and loss.ndim == 0 and loss.requires_grad:
                batches[:] = labeled
                return own_loss, "own loss"
    return mean_square, "mean square of its outputs"


def _with(
    loss: Callable[[Any, Any], Any], constants: Mapping[str, torch.Tensor]
) -> Callable[[Any, Any], Any]:
    """Give a loss the same further arguments at every step."""
    if not constants:
        return loss
    return lambda model, batch: loss(model, {**batch, **constants})


def own_loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> Any:
    """Return the outputs that the model computes from labels."""
    return model(**batch).loss


def _labels(logits: Any, batches: Sequence[Mapping[str, torch.Tensor]]) -> list[torch.Tensor] | None:
    if not isinstance(logits, torch.Tensor) or logits.ndim not in (2, 3, 4) or logits.shape[0] != BATCH_SIZE:
        return None
    if logits.ndim == 3:
        ids = [batch.get("decoder_input_ids", batch.get("input_ids")) for batch in batches]
        if ids[0] is None or ids[0].shape != logits.shape[:2] or logits.shape[2] < FIRST_SPECIAL:
            return None
        found = []
        for batch, own in zip(batches, ids, strict=True):
            mask = batch.get("attention_mask")
            same = mask is not None and mask.shape == own.shape
            found.append(own.masked_fill(mask == 0, -100) if same else own)
        return found
    classes = logits.shape[1]
    shape = (BATCH_SIZE, *logits.shape[2:])
    return [
        torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(100 + step))
        for step in range(len(batches))
    ]
