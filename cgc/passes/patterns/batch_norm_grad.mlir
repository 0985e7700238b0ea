// The gradient of batch normalization, as differentiation of its forms makes it (see batch_norm.mlir). With the
// gradient of y, `grad`, x gets three terms of a sum, among terms of other paths:
//   direct:      grad * scale * rstd
//   by variance: 2 / N * (x - mean) * variance_grad, N the elements of a channel
//   centering:    less the mean of a channel of these
// The first becomes the result of the op, the others leave the sum.
// choices: (folded|scaled|rooted|divided|times|over)
pdl.pattern @batch_norm_grad : benefit(1) {
  %factor = pdl.attribute = -0.5 : f32
  %half = pdl.operand
  pdl.apply_native_constraint "is_number"(%half, %factor : !pdl.value, !pdl.attribute)
  %epsilon = pdl.attribute
  %format = pdl.attribute = "NHWC"
  %training = pdl.attribute = true
  %grad = pdl.operand
  %x = pdl.operand
  %scale = pdl.operand
  %offset = pdl.operand
  %old_mean = pdl.operand
  %old_variance = pdl.operand
  %epsilon_value = pdl.operand
  pdl.apply_native_constraint "is_number"(%epsilon_value, %epsilon : !pdl.value, !pdl.attribute)
  //
  %norm = pdl.operation "cirh.FusedBatchNorm"(%x, %scale, %offset, %old_mean, %old_variance : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"epsilon" = %epsilon, "is_training" = %training}
  %mean = pdl.result 3 of %norm
  %variance = pdl.result 4 of %norm
  %means_op = pdl.operation "cirh.BroadcastInDim"(%mean : !pdl.value)
  %means = pdl.result 0 of %means_op
  %centered_op = pdl.operation "cirh.Sub"(%x, %means : !pdl.value, !pdl.value)
  %centered = pdl.result 0 of %centered_op
  %shifted_op = pdl.operation "cirh.Add"(%variance, %epsilon_value : !pdl.value, !pdl.value)
  %shifted = pdl.result 0 of %shifted_op
  %root_op = pdl.operation "cirh.Rsqrt"(%shifted : !pdl.value)  // if !divided, !over
  %root_op = pdl.operation "cirh.Sqrt"(%shifted : !pdl.value)  // if divided|over
  %root = pdl.result 0 of %root_op
  %inverse_op = pdl.operation "cirh.Mul"(%root, %scale : !pdl.value, !pdl.value)  // if folded|scaled
  %inverse = pdl.result 0 of %inverse_op  // if folded|scaled
  %factors_op = pdl.operation "cirh.BroadcastInDim"(%inverse : !pdl.value)  // if folded|scaled
  %factors_op = pdl.operation "cirh.BroadcastInDim"(%root : !pdl.value)  // if !folded, !scaled
  %factors = pdl.result 0 of %factors_op
  pdl.apply_native_constraint "repeats_vector"(%factors_op : !pdl.operation)
  %scales_op = pdl.operation "cirh.BroadcastInDim"(%scale : !pdl.value)  // if !folded, !scaled
  %scales = pdl.result 0 of %scales_op  // if !folded, !scaled
  pdl.apply_native_constraint "repeats_vector"(%scales_op : !pdl.operation)  // if !folded, !scaled
  //
  // from grad to the gradient of rstd, or of the standard deviation
  %offset_grad_op = pdl.operation "cirh.BiasAddGrad"(%grad : !pdl.value)
  %offset_grad = pdl.result 0 of %offset_grad_op
  %grad_x_op = pdl.operation "cirh.Mul"(%grad, %x : !pdl.value, !pdl.value)  // if folded
  %grad_x_op = pdl.operation "cirh.Mul"(%grad, %centered : !pdl.value, !pdl.value)  // if scaled
  %grad_x = pdl.result 0 of %grad_x_op  // if folded|scaled
  %products_op = pdl.operation "cirh.BiasAddGrad"(%grad_x : !pdl.value)  // if folded|scaled
  %products = pdl.result 0 of %products_op  // if folded|scaled
  %of_mean_op = pdl.operation "cirh.Mul"(%offset_grad, %mean : !pdl.value, !pdl.value)  // if folded
  %of_mean = pdl.result 0 of %of_mean_op  // if folded
  %inverse_grad_op = pdl.operation "cirh.Sub"(%products, %of_mean : !pdl.value, !pdl.value)  // if folded
  %inverse_grad = pdl.result 0 of %inverse_grad_op  // if folded
  %root_grad_op = pdl.operation "cirh.Mul"(%inverse_grad, %scale : !pdl.value, !pdl.value)  // if folded
  %root_grad_op = pdl.operation "cirh.Mul"(%products, %scale : !pdl.value, !pdl.value)  // if scaled
  %normalized_op = pdl.operation "cirh.Mul"(%centered, %factors : !pdl.value, !pdl.value)  // if rooted
  %normalized_op = pdl.operation "cirh.Div"(%centered, %factors : !pdl.value, !pdl.value)  // if divided
  %normalized = pdl.result 0 of %normalized_op  // if rooted|divided
  %stretched_op = pdl.operation "cirh.Mul"(%centered, %scales : !pdl.value, !pdl.value)  // if times|over
  %stretched = pdl.result 0 of %stretched_op  // if times|over
  %result_op = pdl.operation "cirh.Div"(%stretched, %factors : !pdl.value, !pdl.value)  // if over
  %result = pdl.result 0 of %result_op  // if over
  %quotient_op = pdl.operation "cirh.Div"(%result, %factors : !pdl.value, !pdl.value)  // if over
  %grad_scales_op = pdl.operation "cirh.Mul"(%grad, %scales : !pdl.value, !pdl.value)  // if rooted|divided
  %grad_scales = pdl.result 0 of %grad_scales_op  // if rooted|divided
  %quotient_op = pdl.operation "cirh.Div"(%normalized, %factors : !pdl.value, !pdl.value)  // if divided
  %quotient = pdl.result 0 of %quotient_op  // if divided|over
  %parts_op = pdl.operation "cirh.Mul"(%grad_scales, %centered : !pdl.value, !pdl.value)  // if rooted
  %parts_op = pdl.operation "cirh.Mul"(%grad_scales, %quotient : !pdl.value, !pdl.value)  // if divided
  %parts_op = pdl.operation "cirh.Mul"(%grad, %stretched : !pdl.value, !pdl.value)  // if times
  %parts_op = pdl.operation "cirh.Mul"(%grad, %quotient : !pdl.value, !pdl.value)  // if over
  %parts = pdl.result 0 of %parts_op  // if !folded, !scaled
  %root_grad_op = pdl.operation "cirh.BiasAddGrad"(%parts : !pdl.value)  // if !folded, !scaled
  %root_grad = pdl.result 0 of %root_grad_op
  //
  // from there to the gradient of the variance: times -rstd**3 / 2, or divided by twice the deviation
  %halved_op = pdl.operation "cirh.Mul"(%root_grad, %half : !pdl.value, !pdl.value)
  %halved = pdl.result 0 of %halved_op
  %square_op = pdl.operation "cirh.Mul"(%root, %root : !pdl.value, !pdl.value)  // if !divided, !over
  %square = pdl.result 0 of %square_op  // if !divided, !over
  %cube_op = pdl.operation "cirh.Mul"(%square, %root : !pdl.value, !pdl.value)  // if !divided, !over
  %cube = pdl.result 0 of %cube_op  // if !divided, !over
  %variance_grad_op = pdl.operation "cirh.Mul"(%halved, %cube : !pdl.value, !pdl.value)  // if !divided, !over
  %variance_grad_op = pdl.operation "cirh.Div"(%halved, %root : !pdl.value, !pdl.value)  // if divided|over
  %variance_grad = pdl.result 0 of %variance_grad_op
  //
  // the terms
  %grad_roots_op = pdl.operation "cirh.Mul"(%grad, %factors : !pdl.value, !pdl.value)  // if times
  %grad_roots_op = pdl.operation "cirh.Div"(%grad, %factors : !pdl.value, !pdl.value)  // if over
  %grad_roots = pdl.result 0 of %grad_roots_op  // if times|over
  %direct_op = pdl.operation "cirh.Mul"(%grad_roots, %scales : !pdl.value, !pdl.value)  // if times|over
  %direct_op = pdl.operation "cirh.Mul"(%grad, %factors : !pdl.value, !pdl.value)  // if folded|scaled
  %direct_op = pdl.operation "cirh.Mul"(%grad_scales, %factors : !pdl.value, !pdl.value)  // if rooted
  %direct_op = pdl.operation "cirh.Div"(%grad_scales, %factors : !pdl.value, !pdl.value)  // if divided
  %by_variance_op = pdl.apply_native_constraint "variance_term"(%variance_grad, %centered : !pdl.value, !pdl.value) : !pdl.operation
  %centering_op = pdl.apply_native_constraint "channel_centering_term"(%direct_op, %by_variance_op : !pdl.operation, !pdl.operation) : !pdl.operation
  //
  // the gradient of scale
  %scale_grad_op = pdl.operation "cirh.Mul"(%inverse_grad, %root : !pdl.value, !pdl.value)  // if folded
  %scale_grad_op = pdl.operation "cirh.Mul"(%products, %root : !pdl.value, !pdl.value)  // if scaled
  %scale_parts_op = pdl.operation "cirh.Mul"(%normalized, %grad : !pdl.value, !pdl.value)  // if rooted|divided
  %scale_parts_op = pdl.operation "cirh.Mul"(%grad_roots, %centered : !pdl.value, !pdl.value)  // if times|over
  %scale_parts = pdl.result 0 of %scale_parts_op  // if !folded, !scaled
  %scale_grad_op = pdl.operation "cirh.BiasAddGrad"(%scale_parts : !pdl.value)  // if !folded, !scaled
  pdl.rewrite %variance_grad_op {
    %gradient = pdl.operation "cirh.FusedBatchNormGrad"(%grad, %x, %scale, %mean, %variance : !pdl.value, !pdl.value, !pdl.value, !pdl.value, !pdl.value) {"data_format" = %format, "epsilon" = %epsilon, "is_training" = %training}
    %x_backprop = pdl.result 0 of %gradient
    %scale_backprop = pdl.result 1 of %gradient
    %offset_backprop = pdl.result 2 of %gradient
    %nothing = pdl.apply_native_rewrite "neutral_term"(%by_variance_op : !pdl.operation) : !pdl.value
    %nothing_less = pdl.apply_native_rewrite "neutral_term"(%centering_op : !pdl.operation) : !pdl.value
    pdl.replace %by_variance_op with (%nothing : !pdl.value)
    pdl.replace %centering_op with (%nothing_less : !pdl.value)
    pdl.replace %direct_op with (%x_backprop : !pdl.value)
    pdl.replace %scale_grad_op with (%scale_backprop : !pdl.value)
    pdl.replace %offset_grad_op with (%offset_backprop : !pdl.value)
  }
}
