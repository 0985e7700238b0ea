"""What the parameter file may leave out, and options of the stack."""

from common.run_utils import set_common_defaults


def set_defaults(params):
    set_common_defaults(params)
    model = params["model"]
    model.setdefault("position_embedding_type", "relative")
    relative = model["position_embedding_type"] == "relative"
    model.setdefault("norm", "rms" if relative else "layer")
    model.setdefault("use_bias", not relative)
    model.setdefault("norm_first", relative)
    model.setdefault("num_buckets", 32)
    model.setdefault("max_distance", 128)
    model.setdefault("layer_norm_epsilon", 1e-6)
    model.setdefault("nonlinearity", "relu")
    model.setdefault("dropout_rate", 0.0)
    model.setdefault("attention_dropout_rate", model["dropout_rate"])
    model.setdefault("num_decoder_layers", model["num_encoder_layers"])
    for group in ("train_input", "eval_input"):
        params[group].setdefault("vocab_size", model["vocab_size"])
        params[group].setdefault("use_multiple_workers", True)


def get_custom_stack_params(params):
    try:
        from cerebras.pb.common.cerebras_type_pb2 import T_CB16, T_F16
        from cerebras.pb.common.tri_state_pb2 import TS_ENABLED
        from cerebras.pb.stack.full_pb2 import FullConfig
    except ImportError:
        return {}
    half = T_CB16 if params["csconfig"].get("use_cbfloat16") else T_F16
    config = FullConfig()
    config.matching.kernel.numerics.layernorm_compute_dtype = half
    config.matching.kernel.enable_pipelined_mlm_loss = True
    config.matching.kernel.autogen_config.try_strip_outer_dim = TS_ENABLED
    config.matching.add_pack_and_unpack.max_egress_per_pack = 1
    config.placement.optimize_buses.deltat_relative_margin = 0.5
    return {"config": config}
