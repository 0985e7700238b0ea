// RUN: cgc-opt %s --passes canonicalize,dce --verify-each | filecheck %s

builtin.module {
  // CHECK-LABEL: @mul_by_one
  // CHECK-NEXT: func.return %x
  func.func @mul_by_one(%x: tensor<4xf32>) -> tensor<4xf32> {
    %one = cirh.Const dense<1.0> : tensor<4xf32>
    %y = cirh.Mul %one, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %z = cirh.Div %y, %one : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %z : tensor<4xf32>
  }

  // The one is seen through the broadcast.
  // CHECK-LABEL: @mul_by_broadcast_one
  // CHECK-NEXT: func.return %x
  func.func @mul_by_broadcast_one(%x: tensor<4xf32>) -> tensor<4xf32> {
    %one = cirh.Const dense<1.0> : tensor<f32>
    %ones = cirh.BroadcastInDim %one {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<4xf32>
    %y = cirh.Mul %ones, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // CHECK-LABEL: @mul_by_minus_one
  // CHECK-NEXT: %[[R:.*]] = cirh.Neg %x : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: func.return %[[R]]
  func.func @mul_by_minus_one(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<-1.0> : tensor<4xf32>
    %y = cirh.Mul %x, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // CHECK-LABEL: @add_negative_zero
  // CHECK-NEXT: func.return %x
  func.func @add_negative_zero(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<-0.0> : tensor<4xf32>
    %y = cirh.Add %x, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // CHECK-LABEL: @sub_zero
  // CHECK-NEXT: func.return %x
  func.func @sub_zero(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<0.0> : tensor<4xf32>
    %y = cirh.Sub %x, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // CHECK-LABEL: @integers
  // CHECK-NEXT: %[[ZERO:.*]] = cirh.Const dense<0> : tensor<4xi32>
  // CHECK-NEXT: func.return %x, %[[ZERO]]
  func.func @integers(%x: tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>) {
    %zero = cirh.Const dense<0> : tensor<4xi32>
    %one = cirh.Const dense<1> : tensor<4xi32>
    %a = cirh.Add %zero, %x : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
    %b = cirh.FloorDiv %a, %one : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
    %c = cirh.Mul %b, %zero : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
    func.return %b, %c : tensor<4xi32>, tensor<4xi32>
  }

  // CHECK-LABEL: @add_of_neg
  // CHECK-NEXT: %[[A:.*]] = cirh.Sub %x, %y
  // CHECK-NEXT: %[[B:.*]] = cirh.Add %x, %y
  // CHECK-NEXT: func.return %[[A]], %[[B]]
  func.func @add_of_neg(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %n = cirh.Neg %y : (tensor<4xf32>) -> tensor<4xf32>
    %a = cirh.Add %n, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %b = cirh.Sub %x, %n : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %a, %b : tensor<4xf32>, tensor<4xf32>
  }

  // CHECK-LABEL: @double_negation
  // CHECK-NEXT: func.return %x, %p
  func.func @double_negation(%x: tensor<4xf32>, %p: tensor<4xi1>) -> (tensor<4xf32>, tensor<4xi1>) {
    %a = cirh.Neg %x : (tensor<4xf32>) -> tensor<4xf32>
    %b = cirh.Neg %a : (tensor<4xf32>) -> tensor<4xf32>
    %c = cirh.Not %p : (tensor<4xi1>) -> tensor<4xi1>
    %d = cirh.Not %c : (tensor<4xi1>) -> tensor<4xi1>
    func.return %b, %d : tensor<4xf32>, tensor<4xi1>
  }

  // CHECK-LABEL: @relu_of_relu
  // CHECK-NEXT: %[[R:.*]] = cirh.Relu %x
  // CHECK-NEXT: func.return %[[R]]
  func.func @relu_of_relu(%x: tensor<4xf32>) -> tensor<4xf32> {
    %a = cirh.Relu %x : (tensor<4xf32>) -> tensor<4xf32>
    %b = cirh.Relu %a : (tensor<4xf32>) -> tensor<4xf32>
    func.return %b : tensor<4xf32>
  }

  // CHECK-LABEL: @abs_of_neg
  // CHECK-NEXT: %[[R:.*]] = cirh.Abs %x
  // CHECK-NEXT: func.return %[[R]]
  func.func @abs_of_neg(%x: tensor<4xf32>) -> tensor<4xf32> {
    %a = cirh.Neg %x : (tensor<4xf32>) -> tensor<4xf32>
    %b = cirh.Abs %a : (tensor<4xf32>) -> tensor<4xf32>
    func.return %b : tensor<4xf32>
  }

  // CHECK-LABEL: @same_operands
  // CHECK-NEXT: func.return %x
  func.func @same_operands(%x: tensor<4xf32>) -> tensor<4xf32> {
    %a = cirh.Max %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %b = cirh.Min %a, %a : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %b : tensor<4xf32>
  }

  // CHECK-LABEL: @logic
  // CHECK-NEXT: func.return %p, %i
  func.func @logic(%p: tensor<4xi1>, %i: tensor<4xi32>) -> (tensor<4xi1>, tensor<4xi32>) {
    %true = cirh.Const dense<true> : tensor<4xi1>
    %false = cirh.Const dense<false> : tensor<4xi1>
    %ones = cirh.Const dense<-1> : tensor<4xi32>
    %a = cirh.And %true, %p : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>
    %b = cirh.Or %a, %false : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>
    %c = cirh.Xor %b, %false : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>
    %d = cirh.And %i, %ones : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
    func.return %c, %d : tensor<4xi1>, tensor<4xi32>
  }

  // CHECK-LABEL: @not_of_compare
  // CHECK-NEXT: %[[A:.*]] = cirh.Compare %x, %y {comparison_direction = "NE"}
  // CHECK-NEXT: %[[B:.*]] = cirh.Compare %i, %i {comparison_direction = "GE"}
  // CHECK-NEXT: func.return %[[A]], %[[B]]
  func.func @not_of_compare(%x: tensor<4xf32>, %y: tensor<4xf32>, %i: tensor<4xi32>) -> (tensor<4xi1>, tensor<4xi1>) {
    %a = cirh.Compare %x, %y {comparison_direction = "EQ"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
    %b = cirh.Not %a : (tensor<4xi1>) -> tensor<4xi1>
    %c = cirh.Compare %i, %i {comparison_direction = "LT"} : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
    %d = cirh.Not %c : (tensor<4xi1>) -> tensor<4xi1>
    func.return %b, %d : tensor<4xi1>, tensor<4xi1>
  }

  // CHECK-LABEL: @selects
  // CHECK-NEXT: %[[R:.*]] = cirh.Select %p, %y, %x
  // CHECK-NEXT: func.return %x, %y, %[[R]]
  func.func @selects(%p: tensor<4xi1>, %x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %false = cirh.Const dense<false> : tensor<4xi1>
    %n = cirh.Not %p : (tensor<4xi1>) -> tensor<4xi1>
    %a = cirh.Select %p, %x, %x : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %b = cirh.Select %false, %x, %y : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %c = cirh.Select %n, %x, %y : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %a, %b, %c : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }

  // CHECK-LABEL: @pow_one
  // CHECK-NEXT: func.return %x
  func.func @pow_one(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<1.0> : tensor<4xf32>
    %y = cirh.Pow %x, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // CHECK-LABEL: @pow_two
  // CHECK-NEXT: %[[R:.*]] = cirh.Mul %x, %x
  // CHECK-NEXT: func.return %[[R]]
  func.func @pow_two(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<2.0> : tensor<4xf32>
    %y = cirh.Pow %x, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }

  // The node and the source line stay with what replaces an op.
  // CHECK-LABEL: @debug_attributes
  // CHECK: cirh.Add %x, %{{.*}} {cs.layer = ["model"], cs.name = "model/add", cs.source = "model.py:41"}
  func.func @debug_attributes(%x: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<2.0> : tensor<4xf32>
    %y = cirh.Add %c, %x {cs.layer = ["model"], cs.name = "model/add", cs.source = "model.py:41"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %y : tensor<4xf32>
  }
}
