// Layer normalization over the last dimension, in the forms
//   folded:  x * inv + (offset - mean * inv), inv = rstd * scale; tf.nn.batch_normalization of moments, Keras 3
//   scaled:  (x - mean) * inv + offset
//   rooted:  (x - mean) * rstd * scale + offset, rstd = rsqrt(variance + epsilon)
//   divided: (x - mean) / sqrt(variance + epsilon) * scale + offset
//   times:   (x - mean) * scale * rstd + offset
//   over:    (x - mean) * scale / sqrt(variance + epsilon) + offset
// The mean and rstd become results of the op, which its gradient reads.
// choices: (folded|scaled|rooted|divided|times|over)
pdl.pattern @layer_norm : benefit(1) {
  %mean_kind = pdl.attribute = "MEAN"
  %x = pdl.operand
  %scale = pdl.operand
  %offset = pdl.operand
  %epsilon_value = pdl.operand
  pdl.apply_native_constraint "is_float32"(%x : !pdl.value)
  %epsilon = pdl.apply_native_constraint "number"(%epsilon_value : !pdl.value) : !pdl.attribute
  //
  %mean_op = pdl.operation "cirh.Reduce"(%x : !pdl.value) {"reduce_kind" = %mean_kind}
  %mean = pdl.result 0 of %mean_op
  pdl.apply_native_constraint "reduces_last"(%mean_op : !pdl.operation)
  %mean_rows_op = pdl.operation "cirh.BroadcastInDim"(%mean : !pdl.value)
  %mean_rows = pdl.result 0 of %mean_rows_op
  pdl.apply_native_constraint "repeats_rows"(%mean_rows_op : !pdl.operation)
  %centered_op = pdl.operation "cirh.Sub"(%x, %mean_rows : !pdl.value, !pdl.value)
  %centered = pdl.result 0 of %centered_op
  //
  %squares_op = pdl.operation "cirh.Mul"(%centered, %centered : !pdl.value, !pdl.value)
  %squares = pdl.result 0 of %squares_op
  %variance_op = pdl.operation "cirh.Reduce"(%squares : !pdl.value) {"reduce_kind" = %mean_kind}
  %variance = pdl.result 0 of %variance_op
  pdl.apply_native_constraint "reduces_last"(%variance_op : !pdl.operation)
  %shifted_op = pdl.operation "cirh.Add"(%variance, %epsilon_value : !pdl.value, !pdl.value)
  %shifted = pdl.result 0 of %shifted_op
  %root_op = pdl.operation "cirh.Rsqrt"(%shifted : !pdl.value)  // if !divided, !over
  %root_op = pdl.operation "cirh.Sqrt"(%shifted : !pdl.value)  // if divided|over
  %root = pdl.result 0 of %root_op
  %root_rows_op = pdl.operation "cirh.BroadcastInDim"(%root : !pdl.value)
  %root_rows = pdl.result 0 of %root_rows_op
  pdl.apply_native_constraint "repeats_rows"(%root_rows_op : !pdl.operation)
  //
  %scales_op = pdl.operation "cirh.BroadcastInDim"(%scale : !pdl.value)
  %scales = pdl.result 0 of %scales_op
  pdl.apply_native_constraint "repeats_vector"(%scales_op : !pdl.operation)
  %offsets_op = pdl.operation "cirh.BroadcastInDim"(%offset : !pdl.value)  // if folded
  %offsets = pdl.result 0 of %offsets_op  // if folded
  pdl.apply_native_constraint "repeats_vector"(%offsets_op : !pdl.operation)  // if folded
  //
  %inverse_op = pdl.operation "cirh.Mul"(%root_rows, %scales : !pdl.value, !pdl.value)  // if folded|scaled
  %inverse = pdl.result 0 of %inverse_op  // if folded|scaled
  %product_op = pdl.operation "cirh.Mul"(%x, %inverse : !pdl.value, !pdl.value)  // if folded
  %product = pdl.result 0 of %product_op  // if folded
  %mean_product_op = pdl.operation "cirh.Mul"(%mean_rows, %inverse : !pdl.value, !pdl.value)  // if folded
  %mean_product = pdl.result 0 of %mean_product_op  // if folded
  %rest_op = pdl.operation "cirh.Sub"(%offsets, %mean_product : !pdl.value, !pdl.value)  // if folded
  %rest = pdl.result 0 of %rest_op  // if folded
  %normalized_op = pdl.operation "cirh.Mul"(%centered, %root_rows : !pdl.value, !pdl.value)  // if rooted
  %normalized_op = pdl.operation "cirh.Div"(%centered, %root_rows : !pdl.value, !pdl.value)  // if divided
  %normalized_op = pdl.operation "cirh.Mul"(%centered, %scales : !pdl.value, !pdl.value)  // if times|over
  %normalized = pdl.result 0 of %normalized_op  // if !folded, !scaled
  %scaled_op = pdl.operation "cirh.Mul"(%centered, %inverse : !pdl.value, !pdl.value)  // if scaled
  %scaled_op = pdl.operation "cirh.Mul"(%normalized, %scales : !pdl.value, !pdl.value)  // if rooted|divided
  %scaled_op = pdl.operation "cirh.Mul"(%normalized, %root_rows : !pdl.value, !pdl.value)  // if times
  %scaled_op = pdl.operation "cirh.Div"(%normalized, %root_rows : !pdl.value, !pdl.value)  // if over
  %scaled = pdl.result 0 of %scaled_op  // if !folded
  %y_op = pdl.operation "cirh.Add"(%product, %rest : !pdl.value, !pdl.value)  // if folded
  %y_op = pdl.operation "cirh.BiasAdd"(%scaled, %offset : !pdl.value, !pdl.value)  // if !folded
  pdl.rewrite %y_op {
    %norm = pdl.operation "cirh.LayerNorm"(%x, %scale, %offset : !pdl.value, !pdl.value, !pdl.value) {"epsilon" = %epsilon}
    %y = pdl.result 0 of %norm
    %new_mean = pdl.result 1 of %norm
    %rstd = pdl.result 2 of %norm
    %deviation_op = pdl.operation "cirh.Reciprocal"(%rstd : !pdl.value)  // if divided|over
    %deviation = pdl.result 0 of %deviation_op  // if divided|over
    pdl.replace %y_op with (%y : !pdl.value)
    pdl.replace %mean_op with (%new_mean : !pdl.value)
    pdl.replace %root_op with (%rstd : !pdl.value)  // if !divided, !over
    pdl.replace %root_op with (%deviation : !pdl.value)  // if divided|over
  }
}
