// RUN: cgc-opt %s --passes constant-fold,dce --verify-each | filecheck %s

builtin.module {
  // Rounded once, to f32.
  // CHECK-LABEL: @arithmetic
  // CHECK-NEXT: cirh.Const dense<0.0100000007> : tensor<f32>
  // CHECK-NEXT: cirh.Const dense<0.333333343> : tensor<f32>
  // CHECK-NEXT: func.return
  func.func @arithmetic() -> (tensor<f32>, tensor<f32>) {
    %a = cirh.Const dense<0.1> : tensor<f32>
    %one = cirh.Const dense<1.0> : tensor<f32>
    %three = cirh.Const dense<3.0> : tensor<f32>
    %s = cirh.Mul %a, %a : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %q = cirh.Div %one, %three : (tensor<f32>, tensor<f32>) -> tensor<f32>
    func.return %s, %q : tensor<f32>, tensor<f32>
  }

  // CHECK-LABEL: @chain
  // CHECK-NEXT: cirh.Const {cs.layer = ["model"], cs.name = "model/scale"} dense<{{\[}}[3.000000e+00, 6.000000e+00], [9.000000e+00, 1.200000e+01]]> : tensor<2x2xf32>
  // CHECK-NEXT: func.return
  func.func @chain() -> tensor<2x2xf32> {
    %i = cirh.Arange {start = 1 : i64, step = 1 : i64} : () -> tensor<4xi32>
    %f = cirh.Cast %i {Truncate = false} : (tensor<4xi32>) -> tensor<4xf32>
    %m = cirh.Reshape %f : (tensor<4xf32>) -> tensor<2x2xf32>
    %c = cirh.Const dense<3.0> : tensor<f32>
    %cb = cirh.BroadcastInDim %c {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<2x2xf32>
    %y = cirh.Mul %m, %cb {cs.layer = ["model"], cs.name = "model/scale"} : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>
    func.return %y : tensor<2x2xf32>
  }

  // Integers wrap as on the device.
  // CHECK-LABEL: @integers
  // CHECK-NEXT: cirh.Const dense<-2147483648> : tensor<i32>
  // CHECK-NEXT: cirh.Const dense<-4> : tensor<i32>
  // CHECK-NEXT: cirh.Const dense<1> : tensor<i32>
  func.func @integers() -> (tensor<i32>, tensor<i32>, tensor<i32>) {
    %max = cirh.Const dense<2147483647> : tensor<i32>
    %one = cirh.Const dense<1> : tensor<i32>
    %a = cirh.Const dense<-7> : tensor<i32>
    %two = cirh.Const dense<2> : tensor<i32>
    %s = cirh.Add %max, %one : (tensor<i32>, tensor<i32>) -> tensor<i32>
    %q = cirh.FloorDiv %a, %two : (tensor<i32>, tensor<i32>) -> tensor<i32>
    %r = cirh.FloorMod %a, %two : (tensor<i32>, tensor<i32>) -> tensor<i32>
    func.return %s, %q, %r : tensor<i32>, tensor<i32>, tensor<i32>
  }

  // CHECK-LABEL: @shapes
  // CHECK-NEXT: cirh.Const dense<{{\[}}[1, 4], [2, 5], [3, 6]]> : tensor<3x2xi32>
  // CHECK-NEXT: cirh.Const dense<{{\[}}[2, 3], [5, 6]]> : tensor<2x2xi32>
  // CHECK-NEXT: cirh.Const dense<[6, 15]> : tensor<2xi32>
  // CHECK-NEXT: cirh.Const dense<{{\[}}[14, 32], [32, 77]]> : tensor<2x2xi32>
  // CHECK-NEXT: cirh.Const dense<{{\[}}[0, 1, 3], [0, 4, 9]]> : tensor<2x3xi32>
  // CHECK-NEXT: cirh.Const dense<{{\[}}[4, 5, 6], [1, 2, 3], [4, 5, 6]]> : tensor<3x3xi32>
  func.func @shapes() -> (tensor<3x2xi32>, tensor<2x2xi32>, tensor<2xi32>, tensor<2x2xi32>, tensor<2x3xi32>, tensor<3x3xi32>) {
    %x = cirh.Const dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32>
    %i = cirh.Const dense<[1, 0, 1]> : tensor<3xi32>
    %t = cirh.Transpose %x {permutation = array<i64: 1, 0>} : (tensor<2x3xi32>) -> tensor<3x2xi32>
    %s = cirh.Slice %x {start_indices = array<i64: 0, 1>, limit_indices = array<i64: 2, 3>, strides = array<i64: 1, 1>} : (tensor<2x3xi32>) -> tensor<2x2xi32>
    %r = cirh.Reduce %x {reduce_kind = "ADD", dimensions = array<i64: 1>, keep_dims = false} : (tensor<2x3xi32>) -> tensor<2xi32>
    %m = cirh.MatMul %x, %x {transpose_a = false, transpose_b = true} : (tensor<2x3xi32>, tensor<2x3xi32>) -> tensor<2x2xi32>
    %c = cirh.CumSum %x {axis = 1 : i64, exclusive = true, reverse = false} : (tensor<2x3xi32>) -> tensor<2x3xi32>
    %g = cirh.Gather %x, %i {axis = 0 : i64} : (tensor<2x3xi32>, tensor<3xi32>) -> tensor<3x3xi32>
    func.return %t, %s, %r, %m, %c, %g : tensor<3x2xi32>, tensor<2x2xi32>, tensor<2xi32>, tensor<2x2xi32>, tensor<2x3xi32>, tensor<3x3xi32>
  }

  // Infinity and NaN are values like others.
  // CHECK-LABEL: @special_values
  // CHECK-NEXT: cirh.Const dense<0x7F800000> : tensor<f32>
  // CHECK-NEXT: cirh.Const dense<[true, false, false]> : tensor<3xi1>
  func.func @special_values() -> (tensor<f32>, tensor<3xi1>) {
    %one = cirh.Const dense<1.0> : tensor<f32>
    %zero = cirh.Const dense<0.0> : tensor<f32>
    %x = cirh.Const dense<[1.0, 0x7FC00000, 0xFF800000]> : tensor<3xf32>
    %inf = cirh.Div %one, %zero : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %finite = cirh.IsFinite %x : (tensor<3xf32>) -> tensor<3xi1>
    func.return %inf, %finite : tensor<f32>, tensor<3xi1>
  }
}
