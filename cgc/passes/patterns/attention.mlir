// softmax(query key^T * scale + bias), what dropout leaves of it, times value. The probabilities are a result,
// which the gradient reads.
//   keep:    the probabilities are multiplied with something
//   dropout: they are scaled where a mask holds, else 0
// choices: [bias] [scale] [keep|dropout]
pdl.pattern @attention : benefit(1) {
  %yes = pdl.attribute = true
  %no = pdl.attribute = false
  %query = pdl.operand
  %key = pdl.operand
  %value = pdl.operand
  pdl.apply_native_constraint "has_rank_3"(%query : !pdl.value)
  pdl.apply_native_constraint "is_float32"(%query : !pdl.value)
  %scores_op = pdl.operation "cirh.MatMul"(%query, %key : !pdl.value, !pdl.value) {"transpose_a" = %no, "transpose_b" = %yes}
  %product = pdl.result 0 of %scores_op
  pdl.apply_native_constraint "used_once"(%product : !pdl.value)
  %scale_value = pdl.operand  // if scale
  %factor = pdl.apply_native_constraint "number"(%scale_value : !pdl.value) : !pdl.attribute  // if scale
  %scaled_op = pdl.operation "cirh.Mul"(%product, %scale_value : !pdl.value, !pdl.value)  // if scale
  %scaled = pdl.result 0 of %scaled_op  // if scale
  pdl.apply_native_constraint "used_once"(%scaled : !pdl.value)  // if scale
  %bias = pdl.operand  // if bias
  %biased_op = pdl.operation "cirh.Add"(%scaled, %bias : !pdl.value, !pdl.value)  // if scale, bias
  %biased_op = pdl.operation "cirh.Add"(%product, %bias : !pdl.value, !pdl.value)  // if !scale, bias
  %biased = pdl.result 0 of %biased_op  // if bias
  pdl.apply_native_constraint "used_once"(%biased : !pdl.value)  // if bias
  %softmax = pdl.operation "cirh.Softmax"(%biased : !pdl.value)  // if bias
  %softmax = pdl.operation "cirh.Softmax"(%scaled : !pdl.value)  // if !bias, scale
  %softmax = pdl.operation "cirh.Softmax"(%product : !pdl.value)  // if !bias, !scale
  pdl.apply_native_constraint "on_last_axis"(%softmax : !pdl.operation)
  %kept = pdl.result 0 of %softmax  // if !keep, !dropout
  %probabilities = pdl.result 0 of %softmax  // if keep|dropout
  %multiplier = pdl.operand  // if keep
  %kept_op = pdl.operation "cirh.Mul"(%probabilities, %multiplier : !pdl.value, !pdl.value)  // if keep
  %mask = pdl.operand  // if dropout
  %growth = pdl.operand  // if dropout
  %zeros = pdl.operand  // if dropout
  %zero = pdl.attribute = 0.0 : f32  // if dropout
  pdl.apply_native_constraint "is_number"(%zeros, %zero : !pdl.value, !pdl.attribute)  // if dropout
  %grown_op = pdl.operation "cirh.Mul"(%probabilities, %growth : !pdl.value, !pdl.value)  // if dropout
  %grown = pdl.result 0 of %grown_op  // if dropout
  %kept_op = pdl.operation "cirh.Select"(%mask, %grown, %zeros : !pdl.value, !pdl.value, !pdl.value)  // if dropout
  %kept = pdl.result 0 of %kept_op  // if keep|dropout
  %context_op = pdl.operation "cirh.MatMul"(%kept, %value : !pdl.value, !pdl.value) {"transpose_a" = %no, "transpose_b" = %no}
  pdl.rewrite %context_op {
    %factor = pdl.attribute = 1.0 : f32  // if !scale
    %narrow = pdl.apply_native_rewrite "narrowest"(%bias : !pdl.value) : !pdl.value  // if bias
    %multiplier = pdl.apply_native_rewrite "multiplier"(%mask, %growth, %zeros : !pdl.value, !pdl.value, !pdl.value) : !pdl.value  // if dropout
    %attention = pdl.operation "cirh.Attention"(%query, %key, %value, %narrow, %multiplier : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_bias" = %yes, "has_keep" = %yes}  // if bias, keep|dropout
    %attention = pdl.operation "cirh.Attention"(%query, %key, %value, %narrow : !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_bias" = %yes, "has_keep" = %no}  // if bias, !keep, !dropout
    %attention = pdl.operation "cirh.Attention"(%query, %key, %value, %multiplier : !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_bias" = %no, "has_keep" = %yes}  // if !bias, keep|dropout
    %attention = pdl.operation "cirh.Attention"(%query, %key, %value : !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_bias" = %no, "has_keep" = %no}  // if !bias, !keep, !dropout
    %context = pdl.result 0 of %attention
    %new_probabilities = pdl.result 1 of %attention
    pdl.replace %context_op with (%context : !pdl.value)
    pdl.replace %softmax with (%new_probabilities : !pdl.value)
  }
}
