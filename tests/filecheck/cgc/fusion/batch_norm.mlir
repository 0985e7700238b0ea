// Batch normalization of moments over all dimensions but the last, which may be kept; other readers of the moments.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @folded
  // CHECK: %y, %{{.*}}, %{{.*}}, %mean, %variance = cirh.FusedBatchNorm %x, %scale, %offset, %{{.*}}, %{{.*}} {
  // CHECK-NOT: cirh.Reduce
  // CHECK: func.return %y, %mean, %variance
  func.func @folded(%x: tensor<2x3x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x3x4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = false} : (tensor<2x3x3x4xf32>) -> tensor<4xf32>
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %squares = cirh.Mul %centered, %centered : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %variance = cirh.Reduce %squares {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = false} : (tensor<2x3x3x4xf32>) -> tensor<4xf32>
    %epsilon = cirh.Const dense<1.000000e-03> : tensor<4xf32>
    %shifted = cirh.Add %variance, %epsilon : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %rstd = cirh.Rsqrt %shifted : (tensor<4xf32>) -> tensor<4xf32>
    %inverse = cirh.Mul %rstd, %scale : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %inverses = cirh.BroadcastInDim %inverse {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %product = cirh.Mul %x, %inverses : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %moved = cirh.Mul %mean, %inverse : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %rest = cirh.Sub %offset, %moved : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %rests = cirh.BroadcastInDim %rest {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %y = cirh.Add %product, %rests : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    func.return %y, %mean, %variance : tensor<2x3x3x4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  // CHECK: @divided
  // CHECK-NOT: cirh.Reduce
  // CHECK: = cirh.FusedBatchNorm %x, %scale, %offset, %{{.*}}, %{{.*}} {
  // CHECK-NOT: cirh.Reduce
  // CHECK: func.return
  func.func @divided(%x: tensor<2x3x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x3x4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = false} : (tensor<2x3x3x4xf32>) -> tensor<4xf32>
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %squares = cirh.Mul %centered, %centered : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %variance = cirh.Reduce %squares {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = false} : (tensor<2x3x3x4xf32>) -> tensor<4xf32>
    %epsilon = cirh.Const dense<1.000000e-03> : tensor<4xf32>
    %shifted = cirh.Add %variance, %epsilon : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %deviation = cirh.Sqrt %shifted : (tensor<4xf32>) -> tensor<4xf32>
    %deviations = cirh.BroadcastInDim %deviation {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %normalized = cirh.Div %centered, %deviations : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %scales = cirh.BroadcastInDim %scale {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %scaled = cirh.Mul %normalized, %scales : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %offsets = cirh.BroadcastInDim %offset {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %y = cirh.Add %scaled, %offsets : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    func.return %y : tensor<2x3x3x4xf32>
  }
  // CHECK: @kept
  // CHECK-NOT: cirh.Reduce
  // CHECK: = cirh.FusedBatchNorm %x, %scale, %offset, %{{.*}}, %{{.*}} {
  // CHECK-NOT: cirh.Reduce
  // CHECK: func.return
  func.func @kept(%x: tensor<2x3x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x3x4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = true} : (tensor<2x3x3x4xf32>) -> tensor<1x1x1x4xf32>
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 0, 1, 2, 3>} : (tensor<1x1x1x4xf32>) -> tensor<2x3x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %squares = cirh.Mul %centered, %centered : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %variance = cirh.Reduce %squares {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = true} : (tensor<2x3x3x4xf32>) -> tensor<1x1x1x4xf32>
    %epsilon = cirh.Const dense<1.000000e-03> : tensor<1x1x1x4xf32>
    %shifted = cirh.Add %variance, %epsilon : (tensor<1x1x1x4xf32>, tensor<1x1x1x4xf32>) -> tensor<1x1x1x4xf32>
    %deviation = cirh.Sqrt %shifted : (tensor<1x1x1x4xf32>) -> tensor<1x1x1x4xf32>
    %deviations = cirh.BroadcastInDim %deviation {broadcast_dimensions = array<i64: 0, 1, 2, 3>} : (tensor<1x1x1x4xf32>) -> tensor<2x3x3x4xf32>
    %normalized = cirh.Div %centered, %deviations : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %scales = cirh.BroadcastInDim %scale {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %scaled = cirh.Mul %normalized, %scales : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %offsets = cirh.BroadcastInDim %offset {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %y = cirh.Add %scaled, %offsets : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    func.return %y : tensor<2x3x3x4xf32>
  }
}
