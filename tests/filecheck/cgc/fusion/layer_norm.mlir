// Layer normalization, as tf.nn.batch_normalization of moments and as a quotient.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @folded
  // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.LayerNorm %x, %scale, %offset {epsilon = 1.000000e-05 : f32}
  // CHECK-NEXT: func.return
  func.func @folded(%x: tensor<2x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %squares = cirh.Mul %centered, %centered : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %variance = cirh.Reduce %squares {reduce_kind = "MEAN", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %epsilon = cirh.Const dense<1.000000e-05> : tensor<2x3x1xf32>
    %shifted = cirh.Add %variance, %epsilon : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %rstd = cirh.Rsqrt %shifted : (tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %rstds = cirh.BroadcastInDim %rstd {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %scales = cirh.BroadcastInDim %scale {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %inverse = cirh.Mul %rstds, %scales : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %product = cirh.Mul %x, %inverse : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %moved = cirh.Mul %means, %inverse : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %offsets = cirh.BroadcastInDim %offset {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %rest = cirh.Sub %offsets, %moved : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %y = cirh.Add %product, %rest : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    func.return %y : tensor<2x3x4xf32>
  }
  // CHECK: @divided
  // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.LayerNorm %x, %scale, %offset {epsilon = 1.000000e-05 : f32}
  // CHECK-NEXT: func.return
  func.func @divided(%x: tensor<2x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %squares = cirh.Mul %centered, %centered : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %variance = cirh.Reduce %squares {reduce_kind = "MEAN", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %epsilon = cirh.Const dense<1.000000e-05> : tensor<2x3x1xf32>
    %shifted = cirh.Add %variance, %epsilon : (tensor<2x3x1xf32>, tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %deviation = cirh.Sqrt %shifted : (tensor<2x3x1xf32>) -> tensor<2x3x1xf32>
    %deviations = cirh.BroadcastInDim %deviation {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %normalized = cirh.Div %centered, %deviations : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %scales = cirh.BroadcastInDim %scale {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %scaled = cirh.Mul %scales, %normalized : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %offsets = cirh.BroadcastInDim %offset {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %y = cirh.Add %scaled, %offsets : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    func.return %y : tensor<2x3x4xf32>
  }
}
