// Roots that a value is divided by, as reciprocal roots.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @reciprocal
  // CHECK: %[[S:.*]] = cirh.Add %x, %{{.*}}
  // CHECK-NEXT: %[[R:.*]] = cirh.Rsqrt %[[S]]
  // CHECK-NEXT: func.return %[[R]]
  func.func @reciprocal(%x: tensor<4xf32>) -> tensor<4xf32> {
    %one = cirh.Const dense<1.0> : tensor<4xf32>
    %epsilon = cirh.Const dense<0.001> : tensor<4xf32>
    %shifted = cirh.Add %x, %epsilon : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %root = cirh.Sqrt %shifted : (tensor<4xf32>) -> tensor<4xf32>
    %y = cirh.Div %one, %root : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // The quotient would be rounded twice in float16.
  // CHECK: @in_float16
  // CHECK: cirh.Sqrt
  // CHECK: cirh.Div
  func.func @in_float16(%x: tensor<4xf16>) -> tensor<4xf16> {
    %one = cirh.Const dense<1.0> : tensor<4xf16>
    %epsilon = cirh.Const dense<0.001> : tensor<4xf16>
    %shifted = cirh.Add %x, %epsilon : (tensor<4xf16>, tensor<4xf16>) -> tensor<4xf16>
    %root = cirh.Sqrt %shifted : (tensor<4xf16>) -> tensor<4xf16>
    %y = cirh.Div %one, %root : (tensor<4xf16>, tensor<4xf16>) -> tensor<4xf16>
    func.return %y : tensor<4xf16>
  }

  // A global norm is not divided by as a deviation is.
  // CHECK: @root_alone
  // CHECK: cirh.Sqrt %x
  // CHECK: cirh.Div
  func.func @root_alone(%x: tensor<4xf32>) -> tensor<4xf32> {
    %one = cirh.Const dense<1.0> : tensor<4xf32>
    %root = cirh.Sqrt %x : (tensor<4xf32>) -> tensor<4xf32>
    %y = cirh.Div %one, %root : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // CHECK: @powers
  // CHECK: %[[S:.*]] = cirh.Add %x, %{{.*}}
  // CHECK-NEXT: %[[R:.*]] = cirh.Rsqrt %[[S]]
  // CHECK-NEXT: %[[Q:.*]] = cirh.Mul %[[R]], %[[R]]
  // CHECK-NEXT: %[[C:.*]] = cirh.Mul %[[Q]], %[[R]]
  // CHECK-NEXT: func.return %[[R]], %[[C]]
  func.func @powers(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %epsilon = cirh.Const dense<0.001> : tensor<4xf32>
    %half = cirh.Const dense<-0.5> : tensor<4xf32>
    %more = cirh.Const dense<-1.5> : tensor<4xf32>
    %shifted = cirh.Add %x, %epsilon : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %root = cirh.Pow %shifted, %half : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %cube = cirh.Pow %shifted, %more : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %root, %cube : tensor<4xf32>, tensor<4xf32>
  }

  // Of -0.0, the power is infinity and the reciprocal root is -infinity.
  // CHECK: @power_of_anything
  // CHECK: cirh.Pow %x
  func.func @power_of_anything(%x: tensor<4xf32>) -> tensor<4xf32> {
    %half = cirh.Const dense<-0.5> : tensor<4xf32>
    %y = cirh.Pow %x, %half : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}
