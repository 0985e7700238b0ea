// Sums that are divided by the number of their elements.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @of_rows
  // CHECK-NEXT: %[[M:.*]] = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 1>, keep_dims = true}
  // CHECK-NEXT: func.return %[[M]]
  func.func @of_rows(%x: tensor<3x4xf32>) -> tensor<3x1xf32> {
    %size = cirh.Const dense<4.0> : tensor<3x1xf32>
    %sum = cirh.Reduce %x {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = true} : (tensor<3x4xf32>) -> tensor<3x1xf32>
    %y = cirh.Div %sum, %size : (tensor<3x1xf32>, tensor<3x1xf32>) -> tensor<3x1xf32>
    func.return %y : tensor<3x1xf32>
  }

  // CHECK: @by_another_number
  // CHECK: cirh.Div
  func.func @by_another_number(%x: tensor<3x4xf32>) -> tensor<3x1xf32> {
    %size = cirh.Const dense<3.0> : tensor<3x1xf32>
    %sum = cirh.Reduce %x {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = true} : (tensor<3x4xf32>) -> tensor<3x1xf32>
    %y = cirh.Div %sum, %size : (tensor<3x1xf32>, tensor<3x1xf32>) -> tensor<3x1xf32>
    func.return %y : tensor<3x1xf32>
  }
}
