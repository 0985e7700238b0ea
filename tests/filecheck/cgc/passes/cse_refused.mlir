// Ops that differ in what they compute stay apart.
// RUN: cgc-opt %s --passes cse --verify-each | filecheck %s

builtin.module {
  // CHECK-LABEL: @order_matters
  // CHECK-NEXT: cirh.Sub %x, %y
  // CHECK-NEXT: cirh.Sub %y, %x
  func.func @order_matters(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %a = cirh.Sub %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %b = cirh.Sub %y, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %a, %b : tensor<4xf32>, tensor<4xf32>
  }

  // CHECK-LABEL: @attributes_matter
  // CHECK-NEXT: cirh.Softmax %x {axis = 0 : i64}
  // CHECK-NEXT: cirh.Softmax %x {axis = 1 : i64}
  func.func @attributes_matter(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {
    %a = cirh.Softmax %x {axis = 0 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %b = cirh.Softmax %x {axis = 1 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    func.return %a, %b : tensor<4x4xf32>, tensor<4x4xf32>
  }

  // CHECK-LABEL: @result_types_matter
  // CHECK-NEXT: cirh.Reshape %x : (tensor<4xf32>) -> tensor<2x2xf32>
  // CHECK-NEXT: cirh.Reshape %x : (tensor<4xf32>) -> tensor<4x1xf32>
  func.func @result_types_matter(%x: tensor<4xf32>) -> (tensor<2x2xf32>, tensor<4x1xf32>) {
    %a = cirh.Reshape %x : (tensor<4xf32>) -> tensor<2x2xf32>
    %b = cirh.Reshape %x : (tensor<4xf32>) -> tensor<4x1xf32>
    func.return %a, %b : tensor<2x2xf32>, tensor<4x1xf32>
  }

  // CHECK-LABEL: @signed_zeros
  // CHECK-NEXT: cirh.Const dense<0.000000e+00>
  // CHECK-NEXT: cirh.Const dense<-0.000000e+00>
  func.func @signed_zeros() -> (tensor<f32>, tensor<f32>) {
    %a = cirh.Const dense<0.0> : tensor<f32>
    %b = cirh.Const dense<-0.0> : tensor<f32>
    func.return %a, %b : tensor<f32>, tensor<f32>
  }

  // Two dropout masks of one layer size must not become one.
  // CHECK-LABEL: @op_seeds_matter
  // CHECK-NEXT: cirh.RandomUniform {{.*}}op_seed = 2
  // CHECK-NEXT: cirh.RandomUniform {{.*}}op_seed = 3
  func.func @op_seeds_matter(%s: tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %a = cirh.RandomUniform %s {global_seed = 1 : i64, op_seed = 2 : i64} : (tensor<i32>) -> tensor<4xf32>
    %b = cirh.RandomUniform %s {global_seed = 1 : i64, op_seed = 3 : i64} : (tensor<i32>) -> tensor<4xf32>
    func.return %a, %b : tensor<4xf32>, tensor<4xf32>
  }

  // Functions do not share values.
  // CHECK-LABEL: @first
  // CHECK-NEXT: cirh.Const
  func.func @first() -> tensor<f32> {
    %a = cirh.Const dense<5.0> : tensor<f32>
    func.return %a : tensor<f32>
  }
  // CHECK-LABEL: @second
  // CHECK-NEXT: cirh.Const
  func.func @second() -> tensor<f32> {
    %a = cirh.Const dense<5.0> : tensor<f32>
    func.return %a : tensor<f32>
  }
}
