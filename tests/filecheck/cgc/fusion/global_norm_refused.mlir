// A product of two tensors is no square, a product of squares no sum, and a wrong weight no norm.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @no_square
  // CHECK-NOT: cirh.L2Norm
  // CHECK: func.return
  func.func @no_square(%x: tensor<2x3x4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) -> (tensor<f32>) {
    %xx = cirh.Mul %x, %x : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %sx = cirh.Reduce %xx {reduce_kind = "ADD", dimensions = array<i64: 0, 1, 2>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<f32>
    %yy = cirh.Mul %y, %z : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %sy = cirh.Reduce %yy {reduce_kind = "ADD", dimensions = array<i64: 0>, keep_dims = false} : (tensor<4xf32>) -> tensor<f32>
    %all = cirh.Add %sx, %sy : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %norm = cirh.Sqrt %all : (tensor<f32>) -> tensor<f32>
    func.return %norm : tensor<f32>
  }
  // CHECK: @other_weight
  // CHECK-NOT: cirh.L2Norm
  // CHECK: func.return
  func.func @other_weight(%x: tensor<2x3x4xf32>, %y: tensor<4xf32>) -> (tensor<f32>) {
    %xx = cirh.Mul %x, %x : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
    %sx = cirh.Reduce %xx {reduce_kind = "ADD", dimensions = array<i64: 0, 1, 2>, keep_dims = false} : (tensor<2x3x4xf32>) -> tensor<f32>
    %yy = cirh.Mul %y, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %sy = cirh.Reduce %yy {reduce_kind = "ADD", dimensions = array<i64: 0>, keep_dims = false} : (tensor<4xf32>) -> tensor<f32>
    %half = cirh.Const dense<5.000000e-01> : tensor<f32>
    %hx = cirh.Mul %sx, %half : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %hy = cirh.Mul %sy, %half : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %ax = cirh.Reshape %hx : (tensor<f32>) -> tensor<1xf32>
    %ay = cirh.Reshape %hy : (tensor<f32>) -> tensor<1xf32>
    %stack = cirh.Concat %ax, %ay {axis = 0 : i64} : (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>
    %sum = cirh.Reduce %stack {reduce_kind = "ADD", dimensions = array<i64: 0>, keep_dims = false} : (tensor<2xf32>) -> tensor<f32>
    %two = cirh.Const dense<3.000000e+00> : tensor<f32>
    %all = cirh.Mul %sum, %two : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %norm = cirh.Sqrt %all : (tensor<f32>) -> tensor<f32>
    func.return %norm : tensor<f32>
  }
  // CHECK: @product_of_squares
  // CHECK-NOT: cirh.L2Norm
  // CHECK: func.return
  func.func @product_of_squares(%x: tensor<4xf32>) -> tensor<f32> {
    %xx = cirh.Mul %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %product = cirh.Reduce %xx {reduce_kind = "MUL", dimensions = array<i64: 0>, keep_dims = false} : (tensor<4xf32>) -> tensor<f32>
    %norm = cirh.Sqrt %product : (tensor<f32>) -> tensor<f32>
    func.return %norm : tensor<f32>
  }
}
