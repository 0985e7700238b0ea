// Attention, with a bias and dropout and without, and its gradient.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @plain
  // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.Attention %q, %k, %v {scale = 5.000000e-01 : f32, has_bias = false, has_keep = false}
  // CHECK-NEXT: func.return
  func.func @plain(%q: tensor<2x3x5x4xf32>, %k: tensor<2x3x6x4xf32>, %v: tensor<2x3x6x4xf32>) -> (tensor<2x3x5x4xf32>) {
    %product = cirh.MatMul %q, %k {transpose_a = false, transpose_b = true} : (tensor<2x3x5x4xf32>, tensor<2x3x6x4xf32>) -> tensor<2x3x5x6xf32>
    %half = cirh.Const dense<5.000000e-01> : tensor<2x3x5x6xf32>
    %scaled = cirh.Mul %product, %half : (tensor<2x3x5x6xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %p = cirh.Softmax %scaled {axis = 3 : i64} : (tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %context = cirh.MatMul %p, %v {transpose_a = false, transpose_b = false} : (tensor<2x3x5x6xf32>, tensor<2x3x6x4xf32>) -> tensor<2x3x5x4xf32>
    func.return %context : tensor<2x3x5x4xf32>
  }
  // CHECK: @masked
  // CHECK: %[[KEEP:.*]] = cirh.Select %mask, %growth, %zeros
  // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.Attention %q, %k, %v, %bias, %[[KEEP]] {scale = 5.000000e-01 : f32, has_bias = true, has_keep = true}
  // CHECK-NEXT: func.return
  func.func @masked(%q: tensor<2x3x5x4xf32>, %k: tensor<2x3x6x4xf32>, %v: tensor<2x3x6x4xf32>, %bias: tensor<2x1x1x6xf32>, %mask: tensor<2x3x5x6xi1>) -> (tensor<2x3x5x4xf32>) {
    %product = cirh.MatMul %q, %k {transpose_a = false, transpose_b = true} : (tensor<2x3x5x4xf32>, tensor<2x3x6x4xf32>) -> tensor<2x3x5x6xf32>
    %half = cirh.Const dense<5.000000e-01> : tensor<2x3x5x6xf32>
    %scaled = cirh.Mul %product, %half : (tensor<2x3x5x6xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %biases = cirh.BroadcastInDim %bias {broadcast_dimensions = array<i64: 0, 1, 2, 3>} : (tensor<2x1x1x6xf32>) -> tensor<2x3x5x6xf32>
    %biased = cirh.Add %scaled, %biases : (tensor<2x3x5x6xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %p = cirh.Softmax %biased {axis = 3 : i64} : (tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %growth = cirh.Const dense<1.250000e+00> : tensor<2x3x5x6xf32>
    %zeros = cirh.Const dense<0.000000e+00> : tensor<2x3x5x6xf32>
    %grown = cirh.Mul %p, %growth : (tensor<2x3x5x6xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %kept = cirh.Select %mask, %grown, %zeros : (tensor<2x3x5x6xi1>, tensor<2x3x5x6xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %context = cirh.MatMul %kept, %v {transpose_a = false, transpose_b = false} : (tensor<2x3x5x6xf32>, tensor<2x3x6x4xf32>) -> tensor<2x3x5x4xf32>
    func.return %context : tensor<2x3x5x4xf32>
  }
  // CHECK: @gradient
  // CHECK-NEXT: %context, %p = cirh.Attention
  // CHECK-NEXT: %[[Q:.*]], %[[K:.*]], %[[V:.*]] = cirh.AttentionGrad %grad, %q, %k, %v, %p {scale = 5.000000e-01 : f32, has_keep = false}
  // CHECK-NEXT: func.return %[[Q]], %[[K]], %[[V]]
  func.func @gradient(%grad: tensor<2x3x5x4xf32>, %q: tensor<2x3x5x4xf32>, %k: tensor<2x3x6x4xf32>, %v: tensor<2x3x6x4xf32>) -> (tensor<2x3x5x4xf32>, tensor<2x3x6x4xf32>, tensor<2x3x6x4xf32>) {
    %context, %p = cirh.Attention %q, %k, %v {scale = 5.000000e-01 : f32, has_bias = false, has_keep = false} : (tensor<2x3x5x4xf32>, tensor<2x3x6x4xf32>, tensor<2x3x6x4xf32>) -> (tensor<2x3x5x4xf32>, tensor<2x3x5x6xf32>)
    %dp = cirh.MatMul %grad, %v {transpose_a = false, transpose_b = true} : (tensor<2x3x5x4xf32>, tensor<2x3x6x4xf32>) -> tensor<2x3x5x6xf32>
    %dpp = cirh.Mul %dp, %p : (tensor<2x3x5x6xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %row = cirh.Reduce %dpp {reduce_kind = "ADD", dimensions = array<i64: 3>, keep_dims = true} : (tensor<2x3x5x6xf32>) -> tensor<2x3x5x1xf32>
    %rows = cirh.BroadcastInDim %row {broadcast_dimensions = array<i64: 0, 1, 2, 3>} : (tensor<2x3x5x1xf32>) -> tensor<2x3x5x6xf32>
    %diff = cirh.Sub %dp, %rows : (tensor<2x3x5x6xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %ds = cirh.Mul %diff, %p : (tensor<2x3x5x6xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %half = cirh.Const dense<5.000000e-01> : tensor<2x3x5x6xf32>
    %dss = cirh.Mul %ds, %half : (tensor<2x3x5x6xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %dq = cirh.MatMul %dss, %k {transpose_a = false, transpose_b = false} : (tensor<2x3x5x6xf32>, tensor<2x3x6x4xf32>) -> tensor<2x3x5x4xf32>
    %dk = cirh.MatMul %dss, %q {transpose_a = true, transpose_b = false} : (tensor<2x3x5x6xf32>, tensor<2x3x5x4xf32>) -> tensor<2x3x6x4xf32>
    %dv = cirh.MatMul %p, %grad {transpose_a = true, transpose_b = false} : (tensor<2x3x5x6xf32>, tensor<2x3x5x4xf32>) -> tensor<2x3x6x4xf32>
    func.return %dq, %dk, %dv : tensor<2x3x5x4xf32>, tensor<2x3x6x4xf32>, tensor<2x3x6x4xf32>
  }
}
