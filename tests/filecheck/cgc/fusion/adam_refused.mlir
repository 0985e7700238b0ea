// Weights of a moment that do not add up to 1; the moment of another gradient; moments that depend on each other.
// RUN: cgc-opt %s --verify-each --passes canonicalize,cse,fuse,dce | filecheck %s

builtin.module {
  // CHECK: @other_weights
  // CHECK-NOT: cirh.Adam
  // CHECK: func.return
  func.func @other_weights(%param: tensor<3x2xf32>, %m: tensor<3x2xf32>, %v: tensor<3x2xf32>, %grad: tensor<3x2xf32>, %rate: tensor<f32>) -> (tensor<3x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>) {
    %part1 = cirh.Const dense<1.000000e-01> : tensor<3x2xf32>
    %part2 = cirh.Const dense<1.000000e-03> : tensor<3x2xf32>
    %gg = cirh.Mul %grad, %grad : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %beta1 = cirh.Const dense<8.000000e-01> : tensor<3x2xf32>
    %beta2 = cirh.Const dense<9.990000e-01> : tensor<3x2xf32>
    %rm = cirh.Mul %m, %beta1 : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %pm = cirh.Mul %grad, %part1 : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %m2 = cirh.Add %rm, %pm : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %rv = cirh.Mul %v, %beta2 : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %pv = cirh.Mul %gg, %part2 : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %v2 = cirh.Add %rv, %pv : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %root = cirh.Sqrt %v2 : (tensor<3x2xf32>) -> tensor<3x2xf32>
    %eps = cirh.Const dense<1.000000e-06> : tensor<3x2xf32>
    %div = cirh.Add %root, %eps : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %rates = cirh.BroadcastInDim %rate {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<3x2xf32>
    %quot = cirh.Div %m2, %div : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %wd = cirh.Const dense<1.000000e-02> : tensor<3x2xf32>
    %dec = cirh.Mul %param, %wd : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %sum = cirh.Add %quot, %dec : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %step = cirh.Mul %rates, %sum : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %new = cirh.Sub %param, %step : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    func.return %new, %m2, %v2 : tensor<3x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>
  }
  // CHECK: @other_gradient
  // CHECK-NOT: cirh.Adam
  // CHECK: func.return
  func.func @other_gradient(%param: tensor<3x2xf32>, %m: tensor<3x2xf32>, %v: tensor<3x2xf32>, %grad: tensor<3x2xf32>, %rate: tensor<f32>, %other: tensor<3x2xf32>) -> (tensor<3x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>) {
    %part1 = cirh.Const dense<1.000000e-01> : tensor<3x2xf32>
    %part2 = cirh.Const dense<1.000000e-03> : tensor<3x2xf32>
    %gg = cirh.Mul %grad, %grad : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %dm = cirh.Sub %other, %m : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %pm = cirh.Mul %dm, %part1 : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %m2 = cirh.Add %m, %pm : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %dv = cirh.Sub %gg, %v : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %pv = cirh.Mul %dv, %part2 : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %v2 = cirh.Add %v, %pv : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %root = cirh.Sqrt %v2 : (tensor<3x2xf32>) -> tensor<3x2xf32>
    %eps = cirh.Const dense<1.000000e-06> : tensor<3x2xf32>
    %div = cirh.Add %root, %eps : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %rates = cirh.BroadcastInDim %rate {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<3x2xf32>
    %dir = cirh.Mul %m2, %rates : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %step = cirh.Div %dir, %div : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %new = cirh.Sub %param, %step : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    func.return %new, %m2, %v2 : tensor<3x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>
  }
  // An Adam whose epsilon is TensorFlow's takes the decay in; that of the paper would lose where its epsilon is.
  // CHECK: @epsilon_hat
  // CHECK: cirh.AdamW
  func.func @epsilon_hat(%param: tensor<3x2xf32>, %m: tensor<3x2xf32>, %v: tensor<3x2xf32>, %grad: tensor<3x2xf32>, %p1: tensor<f32>, %p2: tensor<f32>, %rate: tensor<f32>, %b1: tensor<f32>, %b2: tensor<f32>, %eps: tensor<f32>) -> (tensor<3x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>) {
    %factor = cirh.Const dense<1.000000e-02> : tensor<f32>
    %part = cirh.Mul %rate, %factor : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %rates = cirh.BroadcastInDim %part {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<3x2xf32>
    %decay = cirh.Mul %param, %rates : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %decayed = cirh.Sub %param, %decay : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %new, %m2, %v2 = cirh.Adam %decayed, %m, %v, %p1, %p2, %rate, %b1, %b2, %eps, %grad {use_nesterov = false} : (tensor<3x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<3x2xf32>) -> (tensor<3x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>)
    func.return %new, %m2, %v2 : tensor<3x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>
  }
  // CHECK: @epsilon_of_the_paper
  // CHECK-NOT: cirh.AdamW
  // CHECK: cirh.Adam {{.*}} corrected_epsilon}
  func.func @epsilon_of_the_paper(%param: tensor<3x2xf32>, %m: tensor<3x2xf32>, %v: tensor<3x2xf32>, %grad: tensor<3x2xf32>, %p1: tensor<f32>, %p2: tensor<f32>, %rate: tensor<f32>, %b1: tensor<f32>, %b2: tensor<f32>, %eps: tensor<f32>) -> (tensor<3x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>) {
    %factor = cirh.Const dense<1.000000e-02> : tensor<f32>
    %part = cirh.Mul %rate, %factor : (tensor<f32>, tensor<f32>) -> tensor<f32>
    %rates = cirh.BroadcastInDim %part {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<3x2xf32>
    %decay = cirh.Mul %param, %rates : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %decayed = cirh.Sub %param, %decay : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
    %new, %m2, %v2 = cirh.Adam %decayed, %m, %v, %p1, %p2, %rate, %b1, %b2, %eps, %grad {use_nesterov = false, corrected_epsilon} : (tensor<3x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<3x2xf32>) -> (tensor<3x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>)
    func.return %new, %m2, %v2 : tensor<3x2xf32>, tensor<3x2xf32>, tensor<3x2xf32>
  }
  // The new second moment is an input of the first one, so that no place is left for an op of both.
  // CHECK: @dependent_moments
  // CHECK-NOT: cirh.Adam
  // CHECK: func.return
  func.func @dependent_moments(%param: tensor<4xf32>, %v: tensor<4xf32>, %grad: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %c1 = cirh.Const dense<1.000000e-01> : tensor<4xf32>
    %c2 = cirh.Const dense<1.000000e-03> : tensor<4xf32>
    %eps = cirh.Const dense<1.000000e-06> : tensor<4xf32>
    %gg = cirh.Mul %grad, %grad : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %dv = cirh.Sub %gg, %v : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %pv = cirh.Mul %dv, %c2 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %v2 = cirh.Add %v, %pv : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %dm = cirh.Sub %grad, %v2 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %pm = cirh.Mul %dm, %c1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %m2 = cirh.Add %v2, %pm : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %root = cirh.Sqrt %v2 : (tensor<4xf32>) -> tensor<4xf32>
    %div = cirh.Add %root, %eps : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %step = cirh.Mul %m2, %c1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %q = cirh.Div %step, %div : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %new = cirh.Sub %param, %q : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %new, %m2, %v2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
