// Batch normalization of 16-bit values, as programs write it between casts: the ops compute in float32 themselves,
// so that the casts before and behind them go into them.

pdl.pattern @batch_norm_in_half : benefit(1) {
  %narrow = pdl.operand
  %scale = pdl.operand
  %offset = pdl.operand
  %mean = pdl.operand
  %variance = pdl.operand
  %epsilon = pdl.attribute
  %format = pdl.attribute
  %training = pdl.attribute
  %factor = pdl.attribute
  %wide_op = pdl.operation "cirh.Cast"(%narrow : !pdl.value)
  %wide = pdl.result 0 of %wide_op
  %norm = pdl.operation "cirh.FusedBatchNorm"(%wide, %scale, %offset, %mean, %variance : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"data_format" = %format, "epsilon" = %epsilon, "exponential_avg_factor" = %factor, "is_training" = %training}
  %y = pdl.result 0 of %norm
  %cast = pdl.operation "cirh.Cast"(%y : !pdl.value)
  pdl.apply_native_constraint "is_cast_back"(%wide_op, %cast : !pdl.operation, !pdl.operation)
  pdl.rewrite %cast {
    %half = pdl.operation "cirh.FusedBatchNorm"(%narrow, %scale, %offset, %mean, %variance : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"data_format" = %format, "epsilon" = %epsilon, "exponential_avg_factor" = %factor, "is_training" = %training}
    %half_y = pdl.result 0 of %half
    %batch_mean = pdl.result 1 of %half
    %batch_variance = pdl.result 2 of %half
    %saved_mean = pdl.result 3 of %half
    %saved_variance = pdl.result 4 of %half
    pdl.replace %cast with (%half_y : !pdl.value)
    pdl.replace %norm with (%y, %batch_mean, %batch_variance, %saved_mean, %saved_variance : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value)
  }
}

pdl.pattern @batch_norm_grad_in_half : benefit(1) {
  %narrow_grad = pdl.operand
  %narrow_x = pdl.operand
  %scale = pdl.operand
  %mean = pdl.operand
  %variance = pdl.operand
  %epsilon = pdl.attribute
  %format = pdl.attribute
  %training = pdl.attribute
  %grad_op = pdl.operation "cirh.Cast"(%narrow_grad : !pdl.value)
  %grad = pdl.result 0 of %grad_op
  %x_op = pdl.operation "cirh.Cast"(%narrow_x : !pdl.value)
  %x = pdl.result 0 of %x_op
  %gradient = pdl.operation "cirh.FusedBatchNormGrad"(%grad, %x, %scale, %mean, %variance : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"data_format" = %format, "epsilon" = %epsilon, "is_training" = %training}
  %x_backprop = pdl.result 0 of %gradient
  %cast = pdl.operation "cirh.Cast"(%x_backprop : !pdl.value)
  pdl.apply_native_constraint "is_cast_back"(%grad_op, %cast : !pdl.operation, !pdl.operation)
  pdl.apply_native_constraint "is_cast_back"(%x_op, %cast : !pdl.operation, !pdl.operation)
  pdl.rewrite %cast {
    %half = pdl.operation "cirh.FusedBatchNormGrad"(%narrow_grad, %narrow_x, %scale, %mean, %variance : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"data_format" = %format, "epsilon" = %epsilon, "is_training" = %training}
    %half_x = pdl.result 0 of %half
    %scale_backprop = pdl.result 1 of %half
    %offset_backprop = pdl.result 2 of %half
    pdl.replace %cast with (%half_x : !pdl.value)
    pdl.replace %gradient with (%x_backprop, %scale_backprop, %offset_backprop : !pdl.value, !pdl.value, !pdl.value)
  }
}
