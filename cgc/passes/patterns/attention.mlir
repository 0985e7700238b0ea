// softmax(query key^T * scale + bias), what dropout leaves of it, times value. The probabilities are a result,
// which the gradient reads.
//   filled:  in the place of a bias a mask, outside of which scores are replaced by -1e9 or less
//   hidden:  and the probabilities by 0; as in Keras without and with dropout
//   keep:    the probabilities are multiplied with something
//   dropout: they are scaled where a mask holds, else 0
// choices: [bias|hidden|filled] [scale] [keep|dropout]
pdl.pattern @attention : benefit(1) {
  %yes = pdl.attribute = true
  %no = pdl.attribute = false
  %query = pdl.operand
  %key = pdl.operand
  %value = pdl.operand
  %zero = pdl.attribute = 0.0 : f32  // if dropout|hidden
  %zeros = pdl.operand  // if dropout|hidden
  pdl.apply_native_constraint "is_number"(%zeros, %zero : !pdl.value, !pdl.attribute)  // if dropout|hidden
  pdl.apply_native_constraint "has_rank_3"(%query : !pdl.value)
  pdl.apply_native_constraint "is_float32"(%query : !pdl.value)
  // the scores
  %product_op = pdl.operation "cirh.MatMul"(%query, %key : !pdl.value, !pdl.value) {"transpose_a" = %no, "transpose_b" = %yes}
  %product = pdl.result 0 of %product_op
  pdl.apply_native_constraint "used_once"(%product : !pdl.value)
  %scale_value = pdl.operand  // if scale
  %factor = pdl.apply_native_constraint "number"(%scale_value : !pdl.value) : !pdl.attribute  // if scale
  %scaled_op = pdl.operation "cirh.Mul"(%product, %scale_value : !pdl.value, !pdl.value)  // if scale
  %scores = pdl.result 0 of %scaled_op  // if scale
  %scores = pdl.result 0 of %product_op  // if !scale
  pdl.apply_native_constraint "used_once"(%scores : !pdl.value)
  %bias = pdl.operand  // if bias
  %visible = pdl.operand  // if hidden|filled
  %fill = pdl.operand  // if hidden|filled
  pdl.apply_native_constraint "is_masking"(%fill : !pdl.value)  // if hidden|filled
  %biased_op = pdl.operation "cirh.Add"(%scores, %bias : !pdl.value, !pdl.value)  // if bias
  %biased_op = pdl.operation "cirh.Select"(%visible, %scores, %fill : !pdl.value, !pdl.value, !pdl.value)  // if hidden|filled
  %biased = pdl.result 0 of %biased_op  // if bias|hidden|filled
  pdl.apply_native_constraint "used_once"(%biased : !pdl.value)  // if bias|hidden|filled
  // the probabilities
  %softmax = pdl.operation "cirh.Softmax"(%biased : !pdl.value)  // if bias|hidden|filled
  %softmax = pdl.operation "cirh.Softmax"(%scores : !pdl.value)  // if !bias, !hidden, !filled
  pdl.apply_native_constraint "on_last_axis"(%softmax : !pdl.operation)
  %probabilities = pdl.result 0 of %softmax  // if hidden
  %seen_op = pdl.operation "cirh.Select"(%visible, %probabilities, %zeros : !pdl.value, !pdl.value, !pdl.value)  // if hidden
  %seen = pdl.result 0 of %seen_op  // if hidden
  %seen = pdl.result 0 of %softmax  // if !hidden
  // what is left of them
  %share = pdl.operand  // if keep
  %kept_op = pdl.operation "cirh.Mul"(%seen, %share : !pdl.value, !pdl.value)  // if keep
  %mask = pdl.operand  // if dropout
  %growth = pdl.operand  // if dropout
  %grown_op = pdl.operation "cirh.Mul"(%seen, %growth : !pdl.value, !pdl.value)  // if dropout
  %grown = pdl.result 0 of %grown_op  // if dropout
  %kept_op = pdl.operation "cirh.Select"(%mask, %grown, %zeros : !pdl.value, !pdl.value, !pdl.value)  // if dropout
  %kept = pdl.result 0 of %kept_op  // if keep|dropout
  %context_op = pdl.operation "cirh.MatMul"(%kept, %value : !pdl.value, !pdl.value) {"transpose_a" = %no, "transpose_b" = %no}  // if keep|dropout
  %context_op = pdl.operation "cirh.MatMul"(%seen, %value : !pdl.value, !pdl.value) {"transpose_a" = %no, "transpose_b" = %no}  // if !keep, !dropout
  pdl.rewrite %context_op {
    %factor = pdl.attribute = 1.0 : f32  // if !scale
    %narrow = pdl.apply_native_rewrite "unbroadcast"(%bias : !pdl.value) : !pdl.value  // if bias
    %none = pdl.apply_native_rewrite "zeros"(%fill : !pdl.value) : !pdl.value  // if hidden|filled
    %narrow = pdl.apply_native_rewrite "select_where"(%visible, %none, %fill : !pdl.value, !pdl.value, !pdl.value) : !pdl.value  // if hidden|filled
    %share = pdl.apply_native_rewrite "select_where"(%mask, %growth, %zeros : !pdl.value, !pdl.value, !pdl.value) : !pdl.value  // if dropout
    %share = pdl.apply_native_rewrite "ones"(%zeros : !pdl.value) : !pdl.value  // if hidden, !keep, !dropout
    %part = pdl.apply_native_rewrite "select_where"(%visible, %share, %zeros : !pdl.value, !pdl.value, !pdl.value) : !pdl.value  // if hidden
    %attention = pdl.operation "cirh.Attention"(%query, %key, %value, %narrow, %part : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_bias" = %yes, "has_keep" = %yes}  // if hidden
    %attention = pdl.operation "cirh.Attention"(%query, %key, %value, %narrow, %share : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_bias" = %yes, "has_keep" = %yes}  // if bias|filled, keep|dropout
    %attention = pdl.operation "cirh.Attention"(%query, %key, %value, %narrow : !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_bias" = %yes, "has_keep" = %no}  // if bias|filled, !keep, !dropout
    %attention = pdl.operation "cirh.Attention"(%query, %key, %value, %share : !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_bias" = %no, "has_keep" = %yes}  // if !bias, !hidden, !filled, keep|dropout
    %attention = pdl.operation "cirh.Attention"(%query, %key, %value : !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_bias" = %no, "has_keep" = %no}  // if !bias, !hidden, !filled, !keep, !dropout
    %context = pdl.result 0 of %attention
    %new_probabilities = pdl.result 1 of %attention
    pdl.replace %context_op with (%context : !pdl.value)
    pdl.replace %softmax with (%new_probabilities : !pdl.value)
  }
}
