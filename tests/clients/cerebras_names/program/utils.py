"""Options of the stack as nested messages, the first step of a resumed run, the shard of this task."""

import json
import os

from cerebras.pb.common.cerebras_type_pb2 import T_CB16, T_F16
from cerebras.pb.common.tri_state_pb2 import TS_DISABLED, TS_ENABLED
from cerebras.pb.stack.autogen_pb2 import AP_ENABLED
from cerebras.pb.stack.full_pb2 import FullConfig
from cerebras.pb.tf.csconfig_pb2 import CSConfig
from cerebras.tf.tf_helper import GetWeights


def stack_params(use_cbfloat16):
    config = FullConfig()
    config.target_num_replicas = -1
    config.matching.autogen_policy = AP_ENABLED
    config.matching.kernel.inc_pwt_estimate = True
    config.matching.kernel.no_dcache_spill_splits = True
    config.matching.kernel.use_legacy_vsl = TS_DISABLED
    config.matching.kernel.numerics.layernorm_compute_dtype = T_CB16 if use_cbfloat16 else T_F16
    config.matching.kernel.autogen_config.try_strip_outer_dim = TS_ENABLED
    config.matching.add_pack_and_unpack.max_egress_per_pack = 1
    config.matching.match_lair.disabled_converters.append("softmax")
    config.placement.pathfinder.deltat_relative_margin = 0.1
    config.placement.place.custom_split_filter = "all"
    return {"config": config, "ir_mode": "mlir-cirh"}


def cs_config(params):
    return CSConfig(**params["csconfig"])


def checkpoint_steps(checkpoint):
    for name, value in GetWeights(checkpoint):
        if name == "global_step":
            return int(value)
    raise ValueError(f"{checkpoint} has no global step")


def num_workers():
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    return len(config["cluster"]["worker"]) if config else 1


def shard_dataset(dataset, use_multiple_workers):
    """In a job, every worker takes its part of the records, found by TF_CONFIG."""
    if not use_multiple_workers:
        return dataset
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    if not config:
        return dataset
    workers = len(config["cluster"]["worker"])
    index = config["task"]["index"]
    print(f"shard {index} of {workers}")
    return dataset.shard(workers, index)
