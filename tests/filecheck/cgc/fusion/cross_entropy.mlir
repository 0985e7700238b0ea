// Cross entropy of log probabilities and one-hot labels, or probabilities for labels.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @one_hot
  // CHECK-NEXT: %[[LOSS:.*]], %{{.*}} = cirh.SparseSoftmaxCrossEntropyWithLogits %x, %labels {axis = 1 : i64, ignore_out_of_range}
  // CHECK-NEXT: func.return %[[LOSS]]
  func.func @one_hot(%x: tensor<8x5xf32>, %labels: tensor<8xi32>) -> (tensor<8xf32>) {
    %lp = cirh.LogSoftmax %x {axis = 1 : i64} : (tensor<8x5xf32>) -> tensor<8x5xf32>
    %on = cirh.Const dense<1.000000e+00> : tensor<f32>
    %off = cirh.Const dense<0.000000e+00> : tensor<f32>
    %hot = cirh.OneHot %labels, %on, %off {depth = 5 : i64, axis = 1 : i64} : (tensor<8xi32>, tensor<f32>, tensor<f32>) -> tensor<8x5xf32>
    %picked = cirh.Mul %lp, %hot : (tensor<8x5xf32>, tensor<8x5xf32>) -> tensor<8x5xf32>
    %sum = cirh.Reduce %picked {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = false} : (tensor<8x5xf32>) -> tensor<8xf32>
    %loss = cirh.Neg %sum : (tensor<8xf32>) -> tensor<8xf32>
    func.return %loss : tensor<8xf32>
  }
  // CHECK: @probabilities
  // CHECK-NEXT: %[[LOSS:.*]], %{{.*}} = cirh.SoftmaxCrossEntropyWithLogits %x, %y
  // CHECK-NEXT: func.return %[[LOSS]]
  func.func @probabilities(%x: tensor<8x5xf32>, %y: tensor<8x5xf32>) -> (tensor<8xf32>) {
    %lp = cirh.LogSoftmax %x {axis = 1 : i64} : (tensor<8x5xf32>) -> tensor<8x5xf32>
    %picked = cirh.Mul %y, %lp : (tensor<8x5xf32>, tensor<8x5xf32>) -> tensor<8x5xf32>
    %sum = cirh.Reduce %picked {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = false} : (tensor<8x5xf32>) -> tensor<8xf32>
    %loss = cirh.Neg %sum : (tensor<8xf32>) -> tensor<8xf32>
    func.return %loss : tensor<8xf32>
  }
}
