// A bias along another dimension, a sum over other dimensions, GELU with other constants.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @other_dimension
  // CHECK-NOT: cirh.BiasAdd
  // CHECK: func.return
  func.func @other_dimension(%x: tensor<2x3x4xf32>, %b: tensor<3xf32>) -> (tensor<2x3x4xf32>) {
    %bs = cirh.BroadcastInDim %b {broadcast_dimensions = array<i64: 1>} : (tensor<3xf32>) -> tensor<2x3x4xf32>
    %y = cirh.Add %x, %bs : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    func.return %y : tensor<2x3x4xf32>
  }
  // CHECK: @other_sum
  // CHECK-NOT: cirh.BiasAddGrad
  // CHECK: func.return
  func.func @other_sum(%x: tensor<2x3x4xf32>) -> (tensor<3x4xf32>) {
    %y = cirh.Reduce %x {reduce_kind = "ADD", dimensions = array<i64: 0>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<3x4xf32>
    func.return %y : tensor<3x4xf32>
  }
  // CHECK: @other_half
  // CHECK-NOT: cirh.Gelu
  // CHECK: func.return
  func.func @other_half(%x: tensor<8xf32>) -> (tensor<8xf32>) {
    %half = cirh.Const dense<5.010000e-01> : tensor<8xf32>
    %one = cirh.Const dense<1.000000e+00> : tensor<8xf32>
    %root = cirh.Const dense<0.707106769> : tensor<8xf32>
    %h = cirh.Mul %x, %half : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %u = cirh.Mul %x, %root : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %e = cirh.Erf %u : (tensor<8xf32>) -> tensor<8xf32>
    %s = cirh.Add %one, %e : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %y = cirh.Mul %h, %s : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    func.return %y : tensor<8xf32>
  }
  // CHECK: @other_root
  // CHECK-NOT: cirh.Gelu
  // CHECK: func.return
  func.func @other_root(%x: tensor<8xf32>) -> (tensor<8xf32>) {
    %half = cirh.Const dense<5.000000e-01> : tensor<8xf32>
    %one = cirh.Const dense<1.000000e+00> : tensor<8xf32>
    %root = cirh.Const dense<0.702> : tensor<8xf32>
    %h = cirh.Mul %x, %half : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %u = cirh.Mul %x, %root : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %e = cirh.Erf %u : (tensor<8xf32>) -> tensor<8xf32>
    %s = cirh.Add %one, %e : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    %y = cirh.Mul %h, %s : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    func.return %y : tensor<8xf32>
  }
}
