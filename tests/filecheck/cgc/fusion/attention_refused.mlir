// What is no attention: a softmax over another axis, scores that are read elsewhere; no gradient: scores whose gradient is read elsewhere.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @other_axis
  // CHECK-NOT: cirh.Attention
  // CHECK: func.return
  func.func @other_axis(%q: tensor<2x3x5x4xf32>, %k: tensor<2x3x6x4xf32>, %v: tensor<2x3x6x4xf32>) -> (tensor<2x3x5x4xf32>) {
    %product = cirh.MatMul %q, %k {transpose_a = false, transpose_b = true} : (tensor<2x3x5x4xf32>, tensor<2x3x6x4xf32>) -> tensor<2x3x5x6xf32>
    %half = cirh.Const dense<5.000000e-01> : tensor<2x3x5x6xf32>
    %scaled = cirh.Mul %product, %half : (tensor<2x3x5x6xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %p = cirh.Softmax %scaled {axis = 2 : i64} : (tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %context = cirh.MatMul %p, %v {transpose_a = false, transpose_b = false} : (tensor<2x3x5x6xf32>, tensor<2x3x6x4xf32>) -> tensor<2x3x5x4xf32>
    func.return %context : tensor<2x3x5x4xf32>
  }
  // CHECK: @scores_read_elsewhere
  // CHECK-NOT: cirh.Attention
  // CHECK: func.return
  func.func @scores_read_elsewhere(%q: tensor<2x3x5x4xf32>, %k: tensor<2x3x6x4xf32>, %v: tensor<2x3x6x4xf32>) -> (tensor<2x3x5x4xf32>, tensor<2x3x5x6xf32>) {
    %product = cirh.MatMul %q, %k {transpose_a = false, transpose_b = true} : (tensor<2x3x5x4xf32>, tensor<2x3x6x4xf32>) -> tensor<2x3x5x6xf32>
    %half = cirh.Const dense<5.000000e-01> : tensor<2x3x5x6xf32>
    %scaled = cirh.Mul %product, %half : (tensor<2x3x5x6xf32>, tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %p = cirh.Softmax %scaled {axis = 3 : i64} : (tensor<2x3x5x6xf32>) -> tensor<2x3x5x6xf32>
    %context = cirh.MatMul %p, %v {transpose_a = false, transpose_b = false} : (tensor<2x3x5x6xf32>, tensor<2x3x6x4xf32>) -> tensor<2x3x5x4xf32>
    func.return %context, %scaled : tensor<2x3x5x4xf32>, tensor<2x3x5x6xf32>
  }
  // CHECK: @scores_gradient_read_elsewhere
  // CHECK-NOT: cirh.AttentionGrad
  // CHECK: func.return
  func.func @scores_gradient_read_elsewhere(%grad: tensor<2x3x5x4xf32>, %q: tensor<2x3x5x4xf32>, %k: tensor<2x3x6x4xf32>, %v: tensor<2x3x6x4xf32>) -> (tensor<2x3x5x4xf32>, tensor<2x3x6x4xf32>, tensor<2x3x6x4xf32>, tensor<2x3x5x6xf32>) {
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
    func.return %dq, %dk, %dv, %dss : tensor<2x3x5x4xf32>, tensor<2x3x6x4xf32>, tensor<2x3x6x4xf32>, tensor<2x3x5x6xf32>
  }
}
