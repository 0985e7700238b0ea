"""Shrinks the configuration of a model by the meaning of its fields' names.

Libraries name the same quantity in some hundred ways, but the words in those names are few: a pattern finds
the word, and its rule returns the new value. A rule is given the old one, because many fields are lists (a
width for each stage), and because small values stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

VOCABULARY = 128
FIRST_SPECIAL = 100
"""Token ids from here on are special ones; batches have smaller ones only."""

WIDTH, INNER, HEADS, KEY_VALUE_HEADS, HEAD_DIM = 64, 96, 4, 2, 16
LAYERS, MAX_LAYERS = 2, 6
POSITIONS, IMAGE, PATCH = 64, 32, 8
PYRAMID_IMAGE = 64

Rule = Callable[[Any, "Shrinking"], Any]


@dataclass
class Shrinking:
    """A configuration that is being shrunk.

    Attributes:
        fields: All fields of the configuration, with their default values.
        ids: New special token ids by the old ones, shared by nested configurations.
        kept: Names of fields that stay as they are.
        changed: Names of fields that have become smaller, shared by nested configurations.
        layers: The number of layers of models whose configuration lists the type of each.
    """

    fields: Mapping[str, Any]
    ids: dict[int, int] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    changed: set[str] = field(default_factory=set)
    layers: int = LAYERS

    @cached_property
    def width_scale(self) -> float:
        """Return the common factor of lists of widths: equal numbers in two lists stay equal."""
        lists = [numbers for numbers in _lists_of_widths(self.fields) if len(set(numbers)) > 1]
        return max(1.0, *(max(min(numbers) / 16, max(numbers) / 128) for numbers in lists))

    def scaled(self, width: int) -> int:
        """A width as it is in lists of widths: a multiple of 8."""
        return width if width <= 4 else max(8, round(width / self.width_scale / 8) * 8)

    def of_part(self, fields: Mapping[str, Any]) -> Shrinking:
        """The state for a nested configuration."""
        part = Shrinking(fields, self.ids, self.kept, self.changed, layers_of(fields))
        if self.fields:  # the widths of a backbone are named in the configuration around it too
            part.width_scale = self.width_scale
        return part

    def token_id(self, old: int) -> int:
        """The new id of a special token, the same for equal old ones."""
        if old < 0 or old < FIRST_SPECIAL:
            return old
        return self.ids.setdefault(old, VOCABULARY - 1 - len(self.ids))


def _limit(most: int) -> Rule:
    """A rule: no number above `most`; of a list each."""

    def rule(value: Any, shrinking: Shrinking) -> Any:
        return _each(value, lambda number: min(number, most))

    return rule


def _each(value: Any, change: Callable[[int], int]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_each(item, change) for item in value)
    return change(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _zero(value: Any, shrinking: Shrinking) -> Any:
    return type(value)(0) if isinstance(value, int | float) else value


def _widths(value: Any, shrinking: Shrinking) -> Any:
    """A width, or those of stages, in their ratio to each other and multiples of 8."""
    if "width_coefficient" in shrinking.fields:
        return value  # it multiplies all widths
    if shrinking.fields.get("block_configs") and isinstance(value, list | tuple):
        return value  # those of the blocks that follow are listed whole
    if not isinstance(value, list | tuple):
        own = {name: field for name, field in shrinking.fields.items() if isinstance(field, list | tuple)}
        if any(value == numbers[0] and len(set(numbers)) > 1 for numbers in _lists_of_widths(own)):
            return shrinking.scaled(value)
        stages = isinstance(shrinking.fields.get("depths"), list | tuple)  # each doubles the width
        return min(value, WIDTH // 4 if stages else WIDTH) if isinstance(value, int) else value
    numbers = [number for number in value if isinstance(number, int) and number > 4]
    if not numbers or len(set(numbers)) == 1:
        whole = [
            name for name, field in shrinking.fields.items() if isinstance(field, int) and field in numbers
        ]
        one = any(is_rule_for(name, _widths) for name in whole)
        return _each(value, lambda number: min(number, WIDTH if one else WIDTH // 2))
    return _each(value, shrinking.scaled)


def _lists_of_widths(fields: Mapping[str, Any]) -> Iterator[list[int]]:
    """The widths in lists of a configuration and of those in it, without small numbers as of colors."""
    for name, value in fields.items():
        if isinstance(value, list | tuple) and all(isinstance(number, int) for number in value):
            if is_rule_for(name, _widths) and (numbers := [number for number in value if number > 4]):
                yield numbers
        elif name.endswith("_config") and value is not None:
            yield from _lists_of_widths(value if isinstance(value, Mapping) else vars(value))


def _depths(value: Any, shrinking: Shrinking) -> Any:
    """A number of layers, or those of stages: two in the first one, else one."""
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, int) for item in value):
            return type(value)(min(item, 2 if index == 0 else 1) for index, item in enumerate(value))
        return value
    return min(value, shrinking.layers) if isinstance(value, int) else value


def _key_value_heads(value: Any, shrinking: Shrinking) -> Any:
    heads = [number for name, number in shrinking.fields.items() if name.endswith("attention_heads")]
    if isinstance(value, int) and value in heads:
        return min(value, HEADS)
    return _each(value, lambda number: min(number, KEY_VALUE_HEADS))


def _image(value: Any, shrinking: Shrinking) -> Any:
    size = shrinking.fields.get("patch_size")
    flat = isinstance(size, int) and size >= PATCH
    return _each(value, lambda number: min(number, IMAGE if flat else PYRAMID_IMAGE))


def _window(value: Any, shrinking: Shrinking) -> Any:
    """Return the size of shifted windows in patches; where patches are merged, in pixels."""
    merged = shrinking.fields.get("spatial_merge_size")
    return _each(value, lambda number: min(number, 2 * merged * PATCH if isinstance(merged, int) else 2))


def _heads(value: Any, shrinking: Shrinking) -> Any:
    """Heads of attention, or of a state space, which has `expand` times the width."""
    expand = shrinking.fields.get("expand", shrinking.fields.get("mamba_expand"))
    if isinstance(value, int) and expand and "num_attention_heads" not in shrinking.fields:
        return int(WIDTH * expand) // HEAD_DIM
    if isinstance(value, list | tuple):  # of stages, whose widths are multiples of 8
        return _each(value, lambda number: min(number, 2))
    return _each(value, lambda number: min(number, HEADS))


def _head_dim(value: Any, shrinking: Shrinking) -> Any:
    """A head's width; where a part of each head is rotated some configurations mean that part."""
    rotated = shrinking.fields.get("qk_rope_head_dim")
    return min(value, HEAD_DIM // 2 if rotated and value == rotated else HEAD_DIM)


def _state_space_heads(value: Any, shrinking: Shrinking) -> Any:
    return (
        int(WIDTH * shrinking.fields.get("mamba_expand", 2)) // HEAD_DIM if isinstance(value, int) else value
    )


def _state_space_width(value: Any, shrinking: Shrinking) -> Any:
    return int(WIDTH * shrinking.fields.get("mamba_expand", 2)) if isinstance(value, int) else value


def _token_ids(value: Any, shrinking: Shrinking) -> Any:
    return _each(value, shrinking.token_id)


RULES: tuple[tuple[str, Rule], ...] = (
    # What makes a step depend on random numbers of the CPU: two frameworks draw different ones.
    (r"drop|jitter|mask_(time|feature)_prob|noise_std|^input_noise", _zero),
    (r"(token|pad|bos|eos|sep|cls)_ids?$|_token_index$|_token_ids$|token_id_", _token_ids),
    (r"type_vocab", _limit(4)),
    (r"vocab_?size|^vocab$|_vocab$|codebook_size|n_codes$|num_embeddings$|num_buckets$", _limit(VOCABULARY)),
    (r"^n_group$|topk_group|num_expert_group", _limit(1)),
    (r"experts_per_tok|top_?k|num_selected_experts|topk|num_experts_per|^moe_k$|index_kpool", _limit(2)),
    (r"shared_experts?$", _limit(1)),
    (r"(num|n|routed)_.*experts|^num_experts|_experts$|expert_num$", _limit(4)),
    (r"(key_value|kv)_heads|kv_head|n_head_kv|num_key_heads|_k_heads", _key_value_heads),
    (r"mamba_(n|num)_heads", _state_space_heads),
    (r"(rope|nope|index)_head_dim|rotary_dim", _limit(HEAD_DIM // 2)),
    (r"^head_dim$", _head_dim),
    (r"head_dim|head_size|^d_kv$|kv_channels|dim_head|d_head", _limit(HEAD_DIM)),
    (r"heads?(_per_stage)?$|_heads?_|num_head", _heads),
    (r"_groups$|^groups$", _limit(4)),
    (r"(lora|low|rope|q|kv|adapter|dt|time_step|decay|gate|aaa|mv)_?(lora_)?_?rank", _limit(16)),
    (r"depths?$|^layers?$|_layers?$|num_blocks|_blocks$|blocks_per_stage|numb_of_layers|^n_block", _depths),
    (r"intermediate|ffn|mlp_dim|d_?ff$|n_inner|inner_(dim|size)|feedforward|ffw_|filter_size|mlp_hidden",
     _limit(INNER)),
    (r"image_size|img_size|input_resolution|crop_size", _image),
    (r"frames_per_clip", _limit(4)),
    (r"^patch_size$", _limit(PATCH)),
    (r"max_(\w+_)?position|n_positions|position_embeddings$|max_seq|seq_length|max_length|n_ctx|context_(length|size)"
     r"|max_(source|target)", _limit(POSITIONS)),
    (r"sliding_window|attention_window|local_attention|chunk_size|block_size|window_length", _limit(8)),
    (r"^window_size_per_stage", _limit(4)),  # halved where stages pool their queries
    (r"^window_size", _window),
    (r"num_pos_feats", _limit(WIDTH // 2)),
    (r"num_windows$", _limit(4)),
    (r"^n_window_infer", _limit(POSITIONS)),
    (r"^n_window", _limit(16)),
    (r"num_queries|num_query|num_latents|num_object_queries|num_proposals", _limit(16)),
    (r"state_size|d_state|ssm_state", _limit(8)),
    (r"d_ssm$", _state_space_width),
    (r"upsample_(initial_)?channel|channels_list|_channel_list", _widths),
    (r"hidden|d_model|embed|width|_dims?$|^dims?$|n_embd|channels?$|num_filters|_size_per|feature_size|features"
     r"|d_inner|proj_size|conv_dim|planes|rep_dim|d_embed|neck|bottleneck|_dims?_", _widths),
)  # fmt: skip
"""Patterns of names, the first that is found in one wins."""

_PATTERNS = [(re.compile(pattern), rule) for pattern, rule in RULES]


def is_rule_for(name: str, rule: Rule) -> bool:
    """Return True if the fields of a name shrink by a rule."""
    return next((found for pattern, found in _PATTERNS if pattern.search(name)), None) is rule


_KEPT = re.compile(
    r"chunk_size_feed_forward|global_attention_blocks|num_channels|hidden_act|activation|embedding_type|_ratio|_scale$|_kernel|_stride"
    r"|initializer|_eps$|(feature|select)_layer|feat_extract_layers|layer_(idx|index)|_loss|_cost|tie_|temperature|resnet_head|pruned|problem|num_labels"
)


FILLED = {
    "head_dim": HEAD_DIM,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "moe_intermediate_size": INNER,
    "n_shared_experts": 1,
    "prediction_length": 4,
}
"""Fields that some configurations leave open, and whose models need them."""


def shrink(fields: Mapping[str, Any], shrinking: Shrinking) -> dict[str, Any]:
    """The fields of a configuration that become smaller, with their new values.

    Args:
        fields: Of a configuration, with their default values.
        shrinking: The state; its fields are these.
    """
    found = {}
    for name, value in fields.items():
        if value is None and name in FILLED:
            found[name] = FILLED[name]
        if (
            name in shrinking.kept
            or isinstance(value, bool | str | None | Mapping)
            or name.startswith("_")
            or _KEPT.search(name)
        ):
            continue
        for pattern, rule in _PATTERNS:
            if pattern.search(name):
                new = rule(value, shrinking)
                if new != value:
                    found[name] = new
                    shrinking.changed.add(name)
                break
    return found


def layers_of(fields: Mapping[str, Any]) -> int:
    """The fewest layers, from `LAYERS` to `MAX_LAYERS`, that have every type that a configuration lists."""
    most = LAYERS
    depth = fields.get("num_hidden_layers")
    for value in fields.values():
        if isinstance(value, list) and len(value) == depth and all(isinstance(item, str) for item in value):
            most = max(most, *(value.index(kind) + 1 for kind in set(value)))
    taken = fields.get("_out_indices")  # outputs of a backbone that other parts of the model use
    return max(min(most, MAX_LAYERS), len(taken) if isinstance(taken, list) else 0)
