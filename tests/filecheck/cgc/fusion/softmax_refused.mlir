// Softmax along another axis stays as it is written.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @softmax
  // CHECK-NOT: cirh.Softmax
  // CHECK: func.return
  func.func @softmax(%x: tensor<2x3x4xf32>) -> (tensor<2x3x4xf32>) {
    %m = cirh.Reduce %x {reduce_kind = "MAX", dimensions = array<i64: 1>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x1x4xf32>
    %ms = cirh.BroadcastInDim %m {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
    %c = cirh.Sub %x, %ms : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %e = cirh.Exp %c : (tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %s = cirh.Reduce %e {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = true} : (tensor<2x3x4xf32>) -> tensor<2x1x4xf32>
    %ss = cirh.BroadcastInDim %s {broadcast_dimensions = array<i64: 0, 1, 2>} : (tensor<2x1x4xf32>) -> tensor<2x3x4xf32>
    %y = cirh.Div %e, %ss : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    func.return %y : tensor<2x3x4xf32>
  }
}
