// Casts around a batch normalization go into it, unless its result is read before it is rounded.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @between_casts
  // CHECK-NOT: cirh.Cast
  // CHECK: = cirh.FusedBatchNorm %narrow, %scale, %offset, %{{.*}}, %{{.*}} {{{.*}} -> (tensor<2x3x3x4xf16>, 
  // CHECK-NOT: cirh.Cast
  // CHECK: func.return
  func.func @between_casts(%narrow: tensor<2x3x3x4xf16>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x3x4xf16>) {
    %x = cirh.Cast %narrow {Truncate = false} : (tensor<2x3x3x4xf16>) -> tensor<2x3x3x4xf32>
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
    %half = cirh.Cast %y {Truncate = false} : (tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf16>
    func.return %half : tensor<2x3x3x4xf16>
  }
  // CHECK: @read_twice
  // CHECK: cirh.Cast %narrow
  // CHECK: = cirh.FusedBatchNorm %x, %scale, %offset, %{{.*}}, %{{.*}} {
  // CHECK: cirh.Cast
  // CHECK: func.return
  func.func @read_twice(%narrow: tensor<2x3x3x4xf16>, %scale: tensor<4xf32>, %offset: tensor<4xf32>) -> (tensor<2x3x3x4xf16>, tensor<2x3x3x4xf32>) {
    %x = cirh.Cast %narrow {Truncate = false} : (tensor<2x3x3x4xf16>) -> tensor<2x3x3x4xf32>
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
    %half = cirh.Cast %y {Truncate = false} : (tensor<2x3x3x4xf32>) -> tensor<2x3x3x4xf16>
    func.return %half, %y : tensor<2x3x3x4xf16>, tensor<2x3x3x4xf32>
  }
}
