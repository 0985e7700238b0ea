// What is no batch normalization: other dimensions, another tensor, a sum for a mean, an epsilon that is no constant.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @other_dimensions
  // CHECK-NOT: cirh.FusedBatchNorm
  // CHECK: func.return
  func.func @other_dimensions(%x: tensor<2x3x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x3x4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x3x4xf32>) -> tensor<3x4xf32>
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 2, 3>} : (tensor<3x4xf32>) -> tensor<2x3x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %squares = cirh.Mul %centered, %centered : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %variance = cirh.Reduce %squares {reduce_kind = "MEAN", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x3x4xf32>) -> tensor<3x4xf32>
    %epsilon = cirh.Const dense<1.000000e-03> : tensor<3x4xf32>
    %shifted = cirh.Add %variance, %epsilon : (tensor<3x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32>
    %deviation = cirh.Sqrt %shifted : (tensor<3x4xf32>) -> tensor<3x4xf32>
    %deviations = cirh.BroadcastInDim %deviation {broadcast_dimensions = array<i64: 2, 3>} : (tensor<3x4xf32>) -> tensor<2x3x3x4xf32>
    %normalized = cirh.Div %centered, %deviations : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %scales = cirh.BroadcastInDim %scale {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %scaled = cirh.Mul %normalized, %scales : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %offsets = cirh.BroadcastInDim %offset {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %y = cirh.Add %scaled, %offsets : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    func.return %y : tensor<2x3x3x4xf32>
  }
  // CHECK: @other_tensor
  // CHECK-NOT: cirh.FusedBatchNorm
  // CHECK: func.return
  func.func @other_tensor(%x: tensor<2x3x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>, %z: tensor<2x3x3x4xf32>) -> (tensor<2x3x3x4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = false} : (tensor<2x3x3x4xf32>) -> tensor<4xf32>
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %centered = cirh.Sub %z, %means : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
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
    func.return %y : tensor<2x3x3x4xf32>
  }
  // CHECK: @sum_of_squares
  // CHECK-NOT: cirh.FusedBatchNorm
  // CHECK: func.return
  func.func @sum_of_squares(%x: tensor<2x3x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x3x4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = false} : (tensor<2x3x3x4xf32>) -> tensor<4xf32>
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %squares = cirh.Mul %centered, %centered : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %variance = cirh.Reduce %squares {reduce_kind = "ADD", dimensions = array<i64: 0, 1, 2>, keep_dims = false} : (tensor<2x3x3x4xf32>) -> tensor<4xf32>
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
    func.return %y : tensor<2x3x3x4xf32>
  }
  // CHECK: @unknown_epsilon
  // CHECK-NOT: cirh.FusedBatchNorm
  // CHECK: func.return
  func.func @unknown_epsilon(%x: tensor<2x3x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>, %epsilon: tensor<4xf32>) -> (tensor<2x3x3x4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = false} : (tensor<2x3x3x4xf32>) -> tensor<4xf32>
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %squares = cirh.Mul %centered, %centered : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %variance = cirh.Reduce %squares {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = false} : (tensor<2x3x3x4xf32>) -> tensor<4xf32>
    %shifted = cirh.Add %variance, %epsilon : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %rstd = cirh.Rsqrt %shifted : (tensor<4xf32>) -> tensor<4xf32>
    %inverse = cirh.Mul %rstd, %scale : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %inverses = cirh.BroadcastInDim %inverse {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %product = cirh.Mul %x, %inverses : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    %moved = cirh.Mul %mean, %inverse : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %rest = cirh.Sub %offset, %moved : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %rests = cirh.BroadcastInDim %rest {broadcast_dimensions = array<i64: 3>} : (tensor<4xf32>) -> tensor<2x3x3x4xf32>
    %y = cirh.Add %product, %rests : (tensor<2x3x3x4xf32>, tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf32>
    func.return %y : tensor<2x3x3x4xf32>
  }
}
