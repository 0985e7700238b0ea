// Batch normalization in training, the moments over all dimensions but the last, in the forms
//   folded:  x * inv + (offset - mean * inv), inv = rstd * scale; tf.nn.batch_normalization of moments, Keras 3
//   scaled:  (x - mean) * inv + offset
//   rooted:  (x - mean) * rstd * scale + offset, rstd = rsqrt(variance + epsilon)
//   divided: (x - mean) / sqrt(variance + epsilon) * scale + offset
//   times:   (x - mean) * scale * rstd + offset
//   over:    (x - mean) * scale / sqrt(variance + epsilon) + offset
// Other readers of the moments, such as moving averages and the gradient, read those that the op saves.
// choices: (folded|scaled|rooted|divided|times|over)
pdl.pattern @batch_norm : benefit(1) {
  %mean_kind = pdl.attribute = "MEAN"
  %format = pdl.attribute = "NHWC"
  %training = pdl.attribute = true
  %factor = pdl.attribute = 1.0 : f32
  %x = pdl.operand
  %scale = pdl.operand
  %offset = pdl.operand
  %epsilon_value = pdl.operand
  pdl.apply_native_constraint "is_float32"(%x : !pdl.value)
  %epsilon = pdl.apply_native_constraint "number"(%epsilon_value : !pdl.value) : !pdl.attribute
  //
  %mean_op = pdl.operation "cirh.Reduce"(%x : !pdl.value) {"reduce_kind" = %mean_kind}
  %mean = pdl.result 0 of %mean_op
  pdl.apply_native_constraint "reduces_leading"(%mean_op : !pdl.operation)
  %means_op = pdl.operation "cirh.BroadcastInDim"(%mean : !pdl.value)
  %means = pdl.result 0 of %means_op
  pdl.apply_native_constraint "repeats_vector"(%means_op : !pdl.operation)
  %centered_op = pdl.operation "cirh.Sub"(%x, %means : !pdl.value, !pdl.value)
  %centered = pdl.result 0 of %centered_op
  //
  %squares_op = pdl.operation "cirh.Mul"(%centered, %centered : !pdl.value, !pdl.value)
  %squares = pdl.result 0 of %squares_op
  %variance_op = pdl.operation "cirh.Reduce"(%squares : !pdl.value) {"reduce_kind" = %mean_kind}
  %variance = pdl.result 0 of %variance_op
  pdl.apply_native_constraint "reduces_leading"(%variance_op : !pdl.operation)
  %shifted_op = pdl.operation "cirh.Add"(%variance, %epsilon_value : !pdl.value, !pdl.value)
  %shifted = pdl.result 0 of %shifted_op
  %root_op = pdl.operation "cirh.Rsqrt"(%shifted : !pdl.value)  // if !divided, !over
  %root_op = pdl.operation "cirh.Sqrt"(%shifted : !pdl.value)  // if divided|over
  %root = pdl.result 0 of %root_op
  //
  %inverse_op = pdl.operation "cirh.Mul"(%root, %scale : !pdl.value, !pdl.value)  // if folded|scaled
  %inverse = pdl.result 0 of %inverse_op  // if folded|scaled
  %factors_op = pdl.operation "cirh.BroadcastInDim"(%inverse : !pdl.value)  // if folded|scaled
  %factors_op = pdl.operation "cirh.BroadcastInDim"(%root : !pdl.value)  // if !folded, !scaled
  %factors = pdl.result 0 of %factors_op
  pdl.apply_native_constraint "repeats_vector"(%factors_op : !pdl.operation)
  %scales_op = pdl.operation "cirh.BroadcastInDim"(%scale : !pdl.value)  // if !folded, !scaled
  %scales = pdl.result 0 of %scales_op  // if !folded, !scaled
  pdl.apply_native_constraint "repeats_vector"(%scales_op : !pdl.operation)  // if !folded, !scaled
  %normalized_op = pdl.operation "cirh.Mul"(%centered, %factors : !pdl.value, !pdl.value)  // if rooted
  %normalized_op = pdl.operation "cirh.Div"(%centered, %factors : !pdl.value, !pdl.value)  // if divided
  %normalized_op = pdl.operation "cirh.Mul"(%centered, %scales : !pdl.value, !pdl.value)  // if times|over
  %normalized = pdl.result 0 of %normalized_op  // if !folded, !scaled
  %scaled_op = pdl.operation "cirh.Mul"(%x, %factors : !pdl.value, !pdl.value)  // if folded
  %scaled_op = pdl.operation "cirh.Mul"(%centered, %factors : !pdl.value, !pdl.value)  // if scaled
  %scaled_op = pdl.operation "cirh.Mul"(%normalized, %scales : !pdl.value, !pdl.value)  // if rooted|divided
  %scaled_op = pdl.operation "cirh.Mul"(%normalized, %factors : !pdl.value, !pdl.value)  // if times
  %scaled_op = pdl.operation "cirh.Div"(%normalized, %factors : !pdl.value, !pdl.value)  // if over
  %scaled = pdl.result 0 of %scaled_op
  %shift_op = pdl.operation "cirh.Mul"(%mean, %inverse : !pdl.value, !pdl.value)  // if folded
  %shift = pdl.result 0 of %shift_op  // if folded
  %rest_op = pdl.operation "cirh.Sub"(%offset, %shift : !pdl.value, !pdl.value)  // if folded
  %rest = pdl.result 0 of %rest_op  // if folded
  %y_op = pdl.operation "cirh.BiasAdd"(%scaled, %rest : !pdl.value, !pdl.value)  // if folded
  %y_op = pdl.operation "cirh.BiasAdd"(%scaled, %offset : !pdl.value, !pdl.value)  // if !folded
  pdl.rewrite %y_op {
    %nothing = pdl.apply_native_rewrite "zeros"(%offset : !pdl.value) : !pdl.value
    %norm = pdl.operation "cirh.FusedBatchNorm"(%x, %scale, %offset, %nothing, %nothing : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"data_format" = %format, "epsilon" = %epsilon, "exponential_avg_factor" = %factor, "is_training" = %training}
    %y = pdl.result 0 of %norm
    %new_mean = pdl.result 3 of %norm
    %new_variance = pdl.result 4 of %norm
    pdl.replace %y_op with (%y : !pdl.value)
    pdl.replace %mean_op with (%new_mean : !pdl.value)
    pdl.replace %variance_op with (%new_variance : !pdl.value)
  }
}
