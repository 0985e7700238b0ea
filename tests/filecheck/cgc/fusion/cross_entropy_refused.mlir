// Log probabilities along another axis or read elsewhere, one-hot labels of another height.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @other_axis
  // CHECK-NOT: CrossEntropy
  // CHECK: func.return
  func.func @other_axis(%x: tensor<8x5xf32>, %labels: tensor<8xi32>) -> (tensor<8xf32>) {
    %lp = cirh.LogSoftmax %x {axis = 0 : i64} : (tensor<8x5xf32>) -> tensor<8x5xf32>
    %on = cirh.Const dense<1.000000e+00> : tensor<f32>
    %off = cirh.Const dense<0.000000e+00> : tensor<f32>
    %hot = cirh.OneHot %labels, %on, %off {depth = 5 : i64, axis = 1 : i64} : (tensor<8xi32>, tensor<f32>, tensor<f32>) -> tensor<8x5xf32>
    %picked = cirh.Mul %lp, %hot : (tensor<8x5xf32>, tensor<8x5xf32>) -> tensor<8x5xf32>
    %sum = cirh.Reduce %picked {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = false} : (tensor<8x5xf32>) -> tensor<8xf32>
    %loss = cirh.Neg %sum : (tensor<8xf32>) -> tensor<8xf32>
    func.return %loss : tensor<8xf32>
  }
  // CHECK: @read_elsewhere
  // CHECK-NOT: CrossEntropy
  // CHECK: func.return
  func.func @read_elsewhere(%x: tensor<8x5xf32>, %labels: tensor<8xi32>) -> (tensor<8xf32>, tensor<8x5xf32>) {
    %lp = cirh.LogSoftmax %x {axis = 1 : i64} : (tensor<8x5xf32>) -> tensor<8x5xf32>
    %on = cirh.Const dense<1.000000e+00> : tensor<f32>
    %off = cirh.Const dense<0.000000e+00> : tensor<f32>
    %hot = cirh.OneHot %labels, %on, %off {depth = 5 : i64, axis = 1 : i64} : (tensor<8xi32>, tensor<f32>, tensor<f32>) -> tensor<8x5xf32>
    %picked = cirh.Mul %lp, %hot : (tensor<8x5xf32>, tensor<8x5xf32>) -> tensor<8x5xf32>
    %sum = cirh.Reduce %picked {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = false} : (tensor<8x5xf32>) -> tensor<8xf32>
    %loss = cirh.Neg %sum : (tensor<8xf32>) -> tensor<8xf32>
    func.return %loss, %lp : tensor<8xf32>, tensor<8x5xf32>
  }
  // CHECK: @smoothed
  // CHECK-NOT: cirh.SparseSoftmaxCrossEntropyWithLogits
  // CHECK: func.return
  func.func @smoothed(%x: tensor<8x5xf32>, %labels: tensor<8xi32>) -> (tensor<8xf32>) {
    %lp = cirh.LogSoftmax %x {axis = 1 : i64} : (tensor<8x5xf32>) -> tensor<8x5xf32>
    %on = cirh.Const dense<9.000000e-01> : tensor<f32>
    %off = cirh.Const dense<0.000000e+00> : tensor<f32>
    %hot = cirh.OneHot %labels, %on, %off {depth = 5 : i64, axis = 1 : i64} : (tensor<8xi32>, tensor<f32>, tensor<f32>) -> tensor<8x5xf32>
    %picked = cirh.Mul %lp, %hot : (tensor<8x5xf32>, tensor<8x5xf32>) -> tensor<8x5xf32>
    %sum = cirh.Reduce %picked {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = false} : (tensor<8x5xf32>) -> tensor<8xf32>
    %loss = cirh.Neg %sum : (tensor<8xf32>) -> tensor<8xf32>
    func.return %loss : tensor<8xf32>
  }
}
