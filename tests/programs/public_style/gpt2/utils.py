"""What the parameter file may leave out, and options of the stack."""

from common.run_utils import set_common_defaults


def set_defaults(params):
    set_common_defaults(params)
    model = params["model"]
    model.setdefault("layer_norm_epsilon", 1e-5)
    model.setdefault("nonlinearity", "gelu")
    for name in ("dropout_rate", "attention_dropout_rate", "embedding_dropout_rate"):
        model.setdefault(name, 0.0)
    model.setdefault("share_embedding_weights", True)
    model.setdefault("filter_size", 4 * model["hidden_size"])
    model.setdefault("max_position_embeddings", params["train_input"]["max_sequence_length"])
    for group in ("train_input", "eval_input"):
        params[group].setdefault("max_sequence_length", model["max_position_embeddings"])
        params[group].setdefault("vocab_size", model["vocab_size"])
        params[group].setdefault("use_multiple_workers", True)


def get_custom_stack_params(params):
    try:
        from cerebras.pb.common.tri_state_pb2 import TS_DISABLED
        from cerebras.pb.stack.autogen_pb2 import AP_ENABLED
        from cerebras.pb.stack.full_pb2 import FullConfig
    except ImportError:
        return {}
    config = FullConfig()
    if params["runconfig"].get("multireplica"):
        config.target_num_replicas = -1
    config.matching.autogen_policy = AP_ENABLED
    config.matching.kernel.use_legacy_vsl = TS_DISABLED
    config.matching.kernel.no_dcache_spill_splits = True
    config.matching.match_lair.disabled_converters.append("CumSum")
    config.placement.pathfinder.deltat_relative_margin = 0.1
    return {"config": config, "ir_mode": "mlir-cirh"}
