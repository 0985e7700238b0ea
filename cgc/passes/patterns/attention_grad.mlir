// The gradient of attention (see attention.mlir) by query, key and value. Scores outside of a mask have none; if
// they are only filled, the op knows that for rows alone in which something is visible. Where a mask may hide a
// whole row (covered) its query is 0 for the op, and so is the gradient by it.
// choices: [hidden|filled|covered] [scale] [keep|dropout]
pdl.pattern @attention_grad : benefit(1) {
  %yes = pdl.attribute = true
  %no = pdl.attribute = false
  %query = pdl.operand
  %key = pdl.operand
  %value = pdl.operand
  %grad = pdl.operand
  %probabilities = pdl.operand
  %zero = pdl.attribute = 0.0 : f32  // if dropout|hidden|filled|covered
  %zeros = pdl.operand  // if dropout|hidden|filled|covered
  pdl.apply_native_constraint "is_number"(%zeros, %zero : !pdl.value, !pdl.attribute)  // if dropout|hidden|filled|covered
  pdl.apply_native_constraint "has_rank_3"(%query : !pdl.value)
  pdl.apply_native_constraint "is_float32"(%query : !pdl.value)
  pdl.apply_native_constraint "is_probability"(%probabilities : !pdl.value)
  // what is left of the probabilities
  %visible = pdl.operand  // if hidden|filled|covered
  pdl.apply_native_constraint "shows_key_in_every_row"(%visible : !pdl.value)  // if filled
  %seen_op = pdl.operation "cirh.Select"(%visible, %probabilities, %zeros : !pdl.value, !pdl.value, !pdl.value)  // if hidden
  %seen = pdl.result 0 of %seen_op  // if hidden
  %share = pdl.operand  // if keep
  %kept_op = pdl.operation "cirh.Mul"(%seen, %share : !pdl.value, !pdl.value)  // if keep, hidden
  %kept_op = pdl.operation "cirh.Mul"(%probabilities, %share : !pdl.value, !pdl.value)  // if keep, !hidden
  %mask = pdl.operand  // if dropout
  %growth = pdl.operand  // if dropout
  %grown_op = pdl.operation "cirh.Mul"(%seen, %growth : !pdl.value, !pdl.value)  // if dropout, hidden
  %grown_op = pdl.operation "cirh.Mul"(%probabilities, %growth : !pdl.value, !pdl.value)  // if dropout, !hidden
  %grown = pdl.result 0 of %grown_op  // if dropout
  %kept_op = pdl.operation "cirh.Select"(%mask, %grown, %zeros : !pdl.value, !pdl.value, !pdl.value)  // if dropout
  %kept = pdl.result 0 of %kept_op  // if keep|dropout
  // the gradient of what is left, and of the probabilities
  %dkept_op = pdl.operation "cirh.MatMul"(%grad, %value : !pdl.value, !pdl.value) {"transpose_a" = %no, "transpose_b" = %yes}
  %dkept = pdl.result 0 of %dkept_op
  pdl.apply_native_constraint "used_once"(%dkept : !pdl.value)  // if keep|dropout|hidden
  %dseen_op = pdl.operation "cirh.Mul"(%dkept, %share : !pdl.value, !pdl.value)  // if keep
  %dgrown_op = pdl.operation "cirh.Select"(%mask, %dkept, %zeros : !pdl.value, !pdl.value, !pdl.value)  // if dropout
  %dgrown = pdl.result 0 of %dgrown_op  // if dropout
  %dseen_op = pdl.operation "cirh.Mul"(%dgrown, %growth : !pdl.value, !pdl.value)  // if dropout
  %dseen = pdl.result 0 of %dseen_op  // if keep|dropout
  %dseen = pdl.result 0 of %dkept_op  // if !keep, !dropout
  %dprobabilities_op = pdl.operation "cirh.Select"(%visible, %dseen, %zeros : !pdl.value, !pdl.value, !pdl.value)  // if hidden
  %dprobabilities = pdl.result 0 of %dprobabilities_op  // if hidden
  // the gradient of the scores, which nothing else reads
  %softmax_grad = pdl.operation "cirh.SoftmaxGrad"(%probabilities, %dprobabilities : !pdl.value, !pdl.value)  // if hidden
  %softmax_grad = pdl.operation "cirh.SoftmaxGrad"(%probabilities, %dseen : !pdl.value, !pdl.value)  // if !hidden
  pdl.apply_native_constraint "on_last_axis"(%softmax_grad : !pdl.operation)
  %dbiased = pdl.result 0 of %softmax_grad  // if hidden|filled|covered
  pdl.apply_native_constraint "used_once"(%dbiased : !pdl.value)  // if hidden|filled|covered
  %dshown_op = pdl.operation "cirh.Select"(%visible, %dbiased, %zeros : !pdl.value, !pdl.value, !pdl.value)  // if hidden|filled|covered
  %dshown = pdl.result 0 of %dshown_op  // if hidden|filled|covered
  %dshown = pdl.result 0 of %softmax_grad  // if !hidden, !filled, !covered
  %scale_value = pdl.operand  // if scale
  %factor = pdl.apply_native_constraint "number"(%scale_value : !pdl.value) : !pdl.attribute  // if scale
  pdl.apply_native_constraint "used_once"(%dshown : !pdl.value)  // if scale
  %dscores_op = pdl.operation "cirh.Mul"(%dshown, %scale_value : !pdl.value, !pdl.value)  // if scale
  %dscores = pdl.result 0 of %dscores_op  // if scale
  %dscores = pdl.result 0 of %dshown_op  // if !scale, hidden|filled|covered
  %dscores = pdl.result 0 of %softmax_grad  // if !scale, !hidden, !filled, !covered
  pdl.apply_native_constraint "used_twice"(%dscores : !pdl.value)
  %dquery_op = pdl.operation "cirh.MatMul"(%dscores, %key : !pdl.value, !pdl.value) {"transpose_a" = %no, "transpose_b" = %no}
  %dkey_op = pdl.operation "cirh.MatMul"(%dscores, %query : !pdl.value, !pdl.value) {"transpose_a" = %yes, "transpose_b" = %no}
  %dvalue_op = pdl.operation "cirh.MatMul"(%kept, %grad : !pdl.value, !pdl.value) {"transpose_a" = %yes, "transpose_b" = %no}  // if keep|dropout
  %dvalue_op = pdl.operation "cirh.MatMul"(%seen, %grad : !pdl.value, !pdl.value) {"transpose_a" = %yes, "transpose_b" = %no}  // if hidden, !keep, !dropout
  %dvalue_op = pdl.operation "cirh.MatMul"(%probabilities, %grad : !pdl.value, !pdl.value) {"transpose_a" = %yes, "transpose_b" = %no}  // if !hidden, !keep, !dropout
  pdl.rewrite %dquery_op {
    %factor = pdl.attribute = 1.0 : f32  // if !scale
    %share = pdl.apply_native_rewrite "select_where"(%mask, %growth, %zeros : !pdl.value, !pdl.value, !pdl.value) : !pdl.value  // if dropout
    %share = pdl.apply_native_rewrite "ones"(%zeros : !pdl.value) : !pdl.value  // if hidden, !keep, !dropout
    %part = pdl.apply_native_rewrite "select_where"(%visible, %share, %zeros : !pdl.value, !pdl.value, !pdl.value) : !pdl.value  // if hidden
    %rows = pdl.apply_native_rewrite "has_visible_key"(%visible, %query : !pdl.value, !pdl.value) : !pdl.value  // if covered
    %nothing = pdl.apply_native_rewrite "zeros"(%query : !pdl.value) : !pdl.value  // if covered
    %seeing = pdl.apply_native_rewrite "select_where"(%rows, %query, %nothing : !pdl.value, !pdl.value, !pdl.value) : !pdl.value  // if covered
    %gradient = pdl.operation "cirh.AttentionGrad"(%grad, %query, %key, %value, %probabilities, %part : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_keep" = %yes}  // if hidden
    %gradient = pdl.operation "cirh.AttentionGrad"(%grad, %query, %key, %value, %probabilities, %share : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_keep" = %yes}  // if !hidden, !covered, keep|dropout
    %gradient = pdl.operation "cirh.AttentionGrad"(%grad, %seeing, %key, %value, %probabilities, %share : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_keep" = %yes}  // if covered, keep|dropout
    %gradient = pdl.operation "cirh.AttentionGrad"(%grad, %query, %key, %value, %probabilities : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_keep" = %no}  // if !hidden, !covered, !keep, !dropout
    %gradient = pdl.operation "cirh.AttentionGrad"(%grad, %seeing, %key, %value, %probabilities : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"scale" = %factor, "has_keep" = %no}  // if covered, !keep, !dropout
    %dquery = pdl.result 0 of %gradient  // if !covered
    %dseeing = pdl.result 0 of %gradient  // if covered
    %dquery = pdl.apply_native_rewrite "select_where"(%rows, %dseeing, %nothing : !pdl.value, !pdl.value, !pdl.value) : !pdl.value  // if covered
    %dkey = pdl.result 1 of %gradient
    %dvalue = pdl.result 2 of %gradient
    pdl.replace %dquery_op with (%dquery : !pdl.value)
    pdl.replace %dkey_op with (%dkey : !pdl.value)
    pdl.replace %dvalue_op with (%dvalue : !pdl.value)
  }
}
