// What is no layer normalization: another axis, another tensor, a sum for a mean, an epsilon that is no constant.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @other_axis
  // CHECK-NOT: cirh.LayerNorm
  // CHECK: func.return
  func.func @other_axis(%x: tensor<2x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 1>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x1x4xf32>
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %squares = cirh.Mul %centered, %centered : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %variance = cirh.Reduce %squares {reduce_kind = "MEAN", dimensions = array<i64: 1>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x1x4xf32>
    %epsilon = cirh.Const dense<1.000000e-05> : tensor<2x1x4xf32>
    %shifted = cirh.Add %variance, %epsilon : (tensor<2x1x4xf32>, tensor<2x1x4xf32>) -> tensor<2x1x4xf32>
    %rstd = cirh.Rsqrt %shifted : (tensor<2x1x4xf32>) -> tensor<2x1x4xf32>
    %rstds = cirh.BroadcastInDim %rstd {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
    %scales = cirh.BroadcastInDim %scale {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %inverse = cirh.Mul %rstds, %scales : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %product = cirh.Mul %x, %inverse : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %moved = cirh.Mul %means, %inverse : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %offsets = cirh.BroadcastInDim %offset {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %rest = cirh.Sub %offsets, %moved : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %y = cirh.Add %product, %rest : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    func.return %y : tensor<2x3x4xf32>
  }
  // CHECK: @other_tensor
  // CHECK-NOT: cirh.LayerNorm
  // CHECK: func.return
  func.func @other_tensor(%x: tensor<2x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>, %z: tensor<2x3x4xf32>) -> (tensor<2x3x4xf32>) {
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
    %product = cirh.Mul %z, %inverse : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %moved = cirh.Mul %means, %inverse : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %offsets = cirh.BroadcastInDim %offset {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %rest = cirh.Sub %offsets, %moved : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %y = cirh.Add %product, %rest : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    func.return %y : tensor<2x3x4xf32>
  }
  // CHECK: @sum_of_squares
  // CHECK-NOT: cirh.LayerNorm
  // CHECK: func.return
  func.func @sum_of_squares(%x: tensor<2x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %squares = cirh.Mul %centered, %centered : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %variance = cirh.Reduce %squares {reduce_kind = "ADD", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
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
  // CHECK: @variable_epsilon
  // CHECK-NOT: cirh.LayerNorm
  // CHECK: func.return
  func.func @variable_epsilon(%x: tensor<2x3x4xf32>, %scale: tensor<4xf32>, %offset: tensor<4xf32>, %epsilon: tensor<2x3x1xf32>) -> (tensor<2x3x4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
    %means = cirh.BroadcastInDim %mean {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x3x1xf32>) -> tensor<2x3x4xf32>
    %centered = cirh.Sub %x, %means : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %squares = cirh.Mul %centered, %centered : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %variance = cirh.Reduce %squares {reduce_kind = "MEAN", dimensions = array<i64: 2>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x3x1xf32>
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
}
