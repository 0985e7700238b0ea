// Statistics of channels are computed as vectors, whether or not the reduced dimensions are kept.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,dce | filecheck %s

builtin.module {
  // CHECK: @deviation
  // CHECK-NOT: tensor<1x1x1x4xf32>
  // CHECK: %[[VARIANCE:.*]] = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = false}
  // CHECK: %[[EPSILON:.*]] = cirh.Const dense<1.000000e-03> : tensor<4xf32>
  // CHECK: %[[SHIFTED:.*]] = cirh.Add %[[VARIANCE]], %[[EPSILON]] : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  // CHECK: %[[ROOT:.*]] = cirh.Sqrt %[[SHIFTED]] : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK: cirh.BroadcastInDim %[[ROOT]] {broadcast_dimensions = array<i64: 3>}
  // CHECK-NOT: tensor<1x1x1x4xf32>
  // CHECK: func.return
  func.func @deviation(%x: tensor<2x3x3x4xf32>) -> (tensor<2x3x3x4xf32>) {
    %variance = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = true} : (tensor<2x3x3x4xf32>) -> tensor<1x1x1x4xf32>
    %epsilon = cirh.Const dense<1.000000e-03> : tensor<1x1x1x4xf32>
    %shifted = cirh.Add %variance, %epsilon : (tensor<1x1x1x4xf32>, tensor<1x1x1x4xf32>) -> tensor<1x1x1x4xf32>
    %root = cirh.Sqrt %shifted : (tensor<1x1x1x4xf32>) -> tensor<1x1x1x4xf32>
    %roots = cirh.BroadcastInDim %root {broadcast_dimensions = array<i64: 0, 1, 2, 3>} : (tensor<1x1x1x4xf32>) -> tensor<2x3x3x4xf32>
    func.return %roots : tensor<2x3x3x4xf32>
  }
  // CHECK: @of_rows
  // CHECK: cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 3>, keep_dims = true}
  // CHECK: cirh.Sqrt %{{.*}} : (tensor<2x3x3x1xf32>) -> tensor<2x3x3x1xf32>
  // CHECK: func.return
  func.func @of_rows(%x: tensor<2x3x3x4xf32>) -> (tensor<2x3x3x1xf32>) {
    %variance = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 3>, keep_dims = true} : (tensor<2x3x3x4xf32>) -> tensor<2x3x3x1xf32>
    %root = cirh.Sqrt %variance : (tensor<2x3x3x1xf32>) -> tensor<2x3x3x1xf32>
    func.return %root : tensor<2x3x3x1xf32>
  }
  // CHECK: @other_operand
  // CHECK: cirh.Mul %{{.*}}, %y : (tensor<1x1x1x4xf32>, tensor<1x1x1x4xf32>) -> tensor<1x1x1x4xf32>
  // CHECK: func.return
  func.func @other_operand(%x: tensor<2x3x3x4xf32>, %y: tensor<1x1x1x4xf32>) -> (tensor<1x1x1x4xf32>) {
    %mean = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 0, 1, 2>, keep_dims = true} : (tensor<2x3x3x4xf32>) -> tensor<1x1x1x4xf32>
    %product = cirh.Mul %mean, %y : (tensor<1x1x1x4xf32>, tensor<1x1x1x4xf32>) -> tensor<1x1x1x4xf32>
    func.return %product : tensor<1x1x1x4xf32>
  }
}
