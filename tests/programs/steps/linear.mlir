// One step of least squares by gradient descent. output_labels gives the batch back, so that a test sees
// which batch a step got; output_step is the global step before the update.
func.func @graph(
    %w: tensor<4x1xf32> {tf.resource_name = "state.model.w", tf.aliasing_output = 0 : i64},
    %lr: tensor<f32> {tf.resource_name = "state.optimizer.lr"},
    %step: tensor<i64> {tf.resource_name = "state.global_step", tf.aliasing_output = 1 : i64},
    %x: tensor<8x4xf32> {cs.input_name = "input_0"},
    %y: tensor<8xi32> {cs.input_name = "input_1"})
    -> (tensor<4x1xf32>, tensor<i64>,
        tensor<f32> {cs.output_name = "output_loss"},
        tensor<8xi32> {cs.output_name = "output_labels"},
        tensor<i64> {cs.output_name = "output_step"})
    attributes {cs.mode = "train", cs.seed = 1 : i64} {
  %one = cirh.Const dense<1> : tensor<i64>
  %next = cirh.Add %step, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  %p2 = cirh.MatMul %x, %w {transpose_a = false, transpose_b = false} : (tensor<8x4xf32>, tensor<4x1xf32>) -> tensor<8x1xf32>
  %p = cirh.Reshape %p2 : (tensor<8x1xf32>) -> tensor<8xf32>
  %t = cirh.Cast %y {Truncate = false} : (tensor<8xi32>) -> tensor<8xf32>
  %d = cirh.Sub %p, %t : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %q = cirh.Mul %d, %d : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %loss = cirh.Reduce %q {reduce_kind = "MEAN", dimensions = array<i64: 0>, keep_dims = false} : (tensor<8xf32>) -> tensor<f32>
  %d2 = cirh.Reshape %d : (tensor<8xf32>) -> tensor<8x1xf32>
  %g = cirh.MatMul %x, %d2 {transpose_a = true, transpose_b = false} : (tensor<8x4xf32>, tensor<8x1xf32>) -> tensor<4x1xf32>
  %w2 = cirh.GradientDescent %w, %lr, %g : (tensor<4x1xf32>, tensor<f32>, tensor<4x1xf32>) -> tensor<4x1xf32>
  func.return %w2, %next, %loss, %y, %step : tensor<4x1xf32>, tensor<i64>, tensor<f32>, tensor<8xi32>, tensor<i64>
}
