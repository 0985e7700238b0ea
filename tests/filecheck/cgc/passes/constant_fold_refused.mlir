// What the device may compute differently, or is not known at compile time, is left alone.
// RUN: cgc-opt %s --passes constant-fold,dce --verify-each | filecheck %s
// RUN: cgc-opt %s --passes "constant-fold{max-elements=8},dce" | filecheck %s --check-prefix LIMIT

builtin.module {
  // CHECK-LABEL: @division_by_zero
  // CHECK: cirh.FloorDiv
  func.func @division_by_zero() -> tensor<i32> {
    %one = cirh.Const dense<1> : tensor<i32>
    %zero = cirh.Const dense<0> : tensor<i32>
    %q = cirh.FloorDiv %one, %zero : (tensor<i32>, tensor<i32>) -> tensor<i32>
    func.return %q : tensor<i32>
  }

  // CHECK-LABEL: @cast_out_of_range
  // CHECK: cirh.Cast
  // CHECK: cirh.Cast
  func.func @cast_out_of_range() -> (tensor<i32>, tensor<ui8>) {
    %big = cirh.Const dense<3.0e9> : tensor<f32>
    %negative = cirh.Const dense<-1.5> : tensor<f32>
    %a = cirh.Cast %big {Truncate = false} : (tensor<f32>) -> tensor<i32>
    %b = cirh.Cast %negative {Truncate = false} : (tensor<f32>) -> tensor<ui8>
    func.return %a, %b : tensor<i32>, tensor<ui8>
  }

  // The device computes i64 in 32 bits.
  // CHECK-LABEL: @beyond_32_bits
  // CHECK: cirh.Mul
  func.func @beyond_32_bits() -> tensor<i64> {
    %big = cirh.Const dense<2000000000> : tensor<i64>
    %two = cirh.Const dense<2> : tensor<i64>
    %y = cirh.Mul %big, %two : (tensor<i64>, tensor<i64>) -> tensor<i64>
    func.return %y : tensor<i64>
  }

  // CHECK-LABEL: @gather_out_of_range
  // CHECK: cirh.Gather
  func.func @gather_out_of_range() -> tensor<1xf32> {
    %x = cirh.Const dense<[1.0, 2.0]> : tensor<2xf32>
    %i = cirh.Const dense<[2]> : tensor<1xi32>
    %y = cirh.Gather %x, %i {axis = 0 : i64} : (tensor<2xf32>, tensor<1xi32>) -> tensor<1xf32>
    func.return %y : tensor<1xf32>
  }

  // Rows of a table are found and written on the device.
  // CHECK-LABEL: @rows
  // CHECK: cirh.Unique
  // CHECK-NEXT: cirh.Scatter
  func.func @rows() -> (tensor<3xf32>, tensor<2xi32>) {
    %x = cirh.Const dense<[1.0, 2.0, 3.0]> : tensor<3xf32>
    %u = cirh.Const dense<[4.0, 5.0]> : tensor<2xf32>
    %i = cirh.Const dense<[2, 2]> : tensor<2xi32>
    %v, %n = cirh.Unique %i : (tensor<2xi32>) -> (tensor<2xi32>, tensor<2xi32>)
    %y = cirh.Scatter %x, %v, %u {reduce_kind = "SET"} : (tensor<3xf32>, tensor<2xi32>, tensor<2xf32>) -> tensor<3xf32>
    func.return %y, %n : tensor<3xf32>, tensor<2xi32>
  }

  // CHECK-LABEL: @random
  // CHECK: cirh.RandomUniform
  func.func @random() -> tensor<4xf32> {
    %step = cirh.Const dense<0> : tensor<i32>
    %y = cirh.RandomUniform %step {global_seed = 1 : i64, op_seed = 2 : i64} : (tensor<i32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // CHECK-LABEL: @argument
  // CHECK: cirh.Add
  func.func @argument(%x: tensor<f32>) -> tensor<f32> {
    %c = cirh.Const dense<1.0> : tensor<f32>
    %y = cirh.Add %c, %x : (tensor<f32>, tensor<f32>) -> tensor<f32>
    func.return %y : tensor<f32>
  }

  // Beyond the limit only what does not grow is folded.
  // CHECK-LABEL: @size_limit
  // CHECK-NEXT: cirh.Const dense<1.000000e+00> : tensor<9xf32>
  // CHECK-NEXT: cirh.Const dense<-2.000000e+00> : tensor<9xf32>
  // LIMIT-LABEL: @size_limit
  // LIMIT-NEXT: cirh.Const dense<1.000000e+00> : tensor<f32>
  // LIMIT-NEXT: cirh.BroadcastInDim
  // LIMIT-NEXT: cirh.Const dense<-2.000000e+00> : tensor<9xf32>
  func.func @size_limit() -> (tensor<9xf32>, tensor<9xf32>) {
    %c = cirh.Const dense<1.0> : tensor<f32>
    %a = cirh.BroadcastInDim %c {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<9xf32>
    %b = cirh.Const dense<2.0> : tensor<9xf32>
    %n = cirh.Neg %b : (tensor<9xf32>) -> tensor<9xf32>
    func.return %a, %n : tensor<9xf32>, tensor<9xf32>
  }
}
