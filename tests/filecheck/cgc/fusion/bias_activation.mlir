// A bias along the last dimension, and GELU written out.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @bias
  // CHECK-NEXT: %{{.*}} = cirh.BiasAdd %x, %b
  // CHECK-NEXT: func.return
  func.func @bias(%x: tensor<2x3x4xf32>, %b: tensor<4xf32>) -> (tensor<2x3x4xf32>) {
    %bs = cirh.BroadcastInDim %b {broadcast_dimensions = array<i64: 2>} : (tensor<4xf32>) -> tensor<2x3x4xf32>
    %y = cirh.Add %bs, %x : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    func.return %y : tensor<2x3x4xf32>
  }
  // CHECK: @bias_gradient
  // CHECK-NEXT: %{{.*}} = cirh.BiasAddGrad %x
  // CHECK-NEXT: func.return
  func.func @bias_gradient(%x: tensor<2x3x4xf32>) -> (tensor<4xf32>) {
    %y = cirh.Reduce %x {reduce_kind = "ADD", dimensions = array<i64: 0, 1>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
  // CHECK: @gelu
  // CHECK-NEXT: %{{.*}} = cirh.Gelu %x {approximation = "NONE"}
  // CHECK-NEXT: func.return
  func.func @gelu(%x: tensor<8xf32>) -> (tensor<8xf32>) {
    %half = cirh.Const dense<5.000000e-01> : tensor<8xf32>
    %one = cirh.Const dense<1.000000e+00> : tensor<8xf32>
    %root = cirh.Const dense<0.707106769> : tensor<8xf32>
    %h = cirh.Mul %x, %half : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %u = cirh.Mul %x, %root : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %e = cirh.Erf %u : (tensor<8xf32>) -> tensor<8xf32>
    %s = cirh.Add %one, %e : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %y = cirh.Mul %h, %s : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    func.return %y : tensor<8xf32>
  }
}
