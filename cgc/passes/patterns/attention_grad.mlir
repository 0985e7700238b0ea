// The gradient of attention (see attention.mlir) by query, key and value.
// choices: [scale] [keep|dropout]
pdl.pattern @attention_grad : benefit(1) {
  %yes = pdl.attribute = true
  %no = pdl.attribute = false
  %query = pdl.operand
  %key = pdl.operand
  %value = pdl.operand
  %grad = pdl.operand
  %probabilities = pdl.operand
  pdl.apply_native_constraint "has_rank_3"(%query : !pdl.value)
  pdl.apply_native_constraint "is_float32"(%query : !pdl.value)
  pdl.apply_native_constraint "is_probability"(%probabilities : !pdl.value)
  // what dropout has left, and the gradient of that
  %dkept_op = pdl.operation "cirh.MatMul"(%grad, %value : !pdl.value, !pdl.value) {"transpose_a" = %no, "transpose_b" = %yes}
  %dkept = pdl.result 0 of %dkept_op
  pdl.apply_native_constraint "used_once"(%dkept : !pdl.value)  // if keep|dropout
  %multiplier = pdl.operand  // if keep
  %kept_op = pdl.operation "cirh.Mul"(%probabilities, %multiplier : !pdl.value, !pdl.value)  // if keep
  %dprobabilities_op = pdl.operation "cirh.Mul"(%dkept, %multiplier : !pdl.value, !pdl.value)  // if keep
  %mask = pdl.operand  // if dropout
  %growth = pdl.operand  // if dropout
  %zeros = pdl.operand  // if dropout
  %zero = pdl.attribute = 0.0 : f32  // if dropout
  pdl.apply_native_constraint "is_number"(%zeros, %zero : !pdl.value, !pdl.attribute)  // if dropout
  %grown_op = pdl.operation "cirh.Mul"(%probabilities, %growth : !pdl.value, !pdl.value)  // if dropout
  %grown = pdl.result 0 of %grown_op  // if dropout
  %kept_op = pdl.operation "cirh.Select"(%mask, %grown, %zeros : !pdl.value, !pdl.value, !pdl.value)  // if dropout
  %kept = pdl.result 0 of %kept_op  // if keep|dropout
  %dgrown_op = pdl.operation "cirh.Select"(%mask, %dkept, %zeros : !pdl.value, !pdl.value, !pdl.value)  // if dropout
  %dgrown = pdl.result 0 of %dgrown_op  // if dropout
  %dprobabilities_op = pdl.operation "cirh.Mul"(%dgrown, %growth : !pdl.value, !pdl.value)  // if dropout
  %dprobabilities = pdl.result 0 of %dprobabilities_op  // if keep|dropout
  // the gradient of the scores, which nothing else reads
  %dbiased_op = pdl.operation "cirh.SoftmaxGrad"(%probabilities, %dprobabilities : !pdl.value, !pdl.value)  // if keep|dropout
  %dbiased_op = pdl.operation "cirh.SoftmaxGrad"(%probabilities, %dkept : !pdl.value, !pdl.value)  // if !keep, !dropout
  %dbiased = pdl.result 0 of %dbiased_op
  pdl.apply_native_constraint "on_last_axis"(%dbiased_op : !pdl.operation)
  pdl.apply_native_constraint "used_once"(%dbiased : !pdl.value)  // if scale
  %scale_value = pdl.operand  // if scale
  %factor = pdl.apply_native_constraint "number"(%scale_value : !pdl.value) : !pdl.attribute  // if scale
  %dscores_op = pdl.operation "cirh.Mul"(%dbiased, %scale_value : !pdl.value, !pdl.value)  // if scale
  %dscores = pdl.result 0 of %dscores_op  // if scale
  pdl.apply_native_constraint "used_twice"(%dscores : !pdl.value)  // if scale
  pdl.apply_native_constraint "used_twice"(%dbiased : !pdl.value)  // if !scale
  %dquery_op = pdl.operation "cirh.MatMul"(%dscores, %key : !pdl.value, !pdl.value) {"transpose_a" = %no, "transpose_b" = %no}  // if scale
  %dkey_op = pdl.operation "cirh.MatMul"(%dscores, %query : !pdl.value, !pdl.value) {"transpose_a" = %yes, "transpose_b" = %no}  // if scale
  %dquery_op = pdl.operation "cirh.MatMul"(%dbiased, %key : !pdl.value, !pdl.value) {"transpose_a" = %no, "transpose_b" = %no}  // if !scale
  %dkey_op = pdl.operation "cirh.MatMul"(%dbiased, %query : !pdl.value, !pdl.value) {"transpose_a" = %yes, "transpose_b" = %no}  // if !scale
  %dvalue_op = pdl.operation "cirh.MatMul"(%kept, %grad : !pdl.value, !pdl.value) {"transpose_a" = %yes, "transpose_b" = %no}  // if keep|dropout
  %dvalue_op = pdl.operation "cirh.MatMul"(%probabilities, %grad : !pdl.value, !pdl.value) {"transpose_a" = %yes, "transpose_b" = %no}  // if !keep, !dropout
  pdl.rewrite %dquery_op {
    %factor = pdl.attribute = 1.0 : f32  // if !scale
    %multiplier = pdl.apply_native_rewrite "multiplier"(%mask, %growth, %zeros : !pdl.value, !pdl.value, !pdl.value) : !pdl.value  // if dropout
    %gradient = pdl.operation "cirh.AttentionGrad"(%grad, %query, %key, %value, %probabilities, %multiplier : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_keep" = %yes}  // if keep|dropout
    %gradient = pdl.operation "cirh.AttentionGrad"(%grad, %query, %key, %value, %probabilities : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_keep" = %no}  // if !keep, !dropout
    %dquery = pdl.result 0 of %gradient
    %dkey = pdl.result 1 of %gradient
    %dvalue = pdl.result 2 of %gradient
    pdl.replace %dquery_op with (%dquery : !pdl.value)
    pdl.replace %dkey_op with (%dkey : !pdl.value)
    pdl.replace %dvalue_op with (%dvalue : !pdl.value)
  }
}
