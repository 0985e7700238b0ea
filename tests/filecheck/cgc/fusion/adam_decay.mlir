// A parameter that loses a constant part of itself before Adam: the part is the decay times the learning rate.
// RUN: cgc-opt %s --verify-each --passes default | filecheck %s

builtin.module {
  // CHECK: @decay
  // CHECK: cirh.AdamW %param,
  func.func @decay(%param: tensor<4xf32>, %m: tensor<4xf32>, %v: tensor<4xf32>, %grad: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %decay = cirh.Const dense<1.000000e-02> : tensor<4xf32>
    %lost = cirh.Mul %param, %decay : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %left = cirh.Sub %param, %lost : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %p1 = cirh.Const dense<9.000000e-01> : tensor<f32>
    %p2 = cirh.Const dense<9.900000e-01> : tensor<f32>
    %rate = cirh.Const dense<1.000000e-01> : tensor<f32>
    %eps = cirh.Const dense<1.000000e-08> : tensor<f32>
    %new, %m2, %v2 = cirh.Adam %left, %m, %v, %p1, %p2, %rate, %p1, %p2, %eps, %grad {use_nesterov = false} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
    func.return %new, %m2, %v2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  // CHECK: @no_decay
  // CHECK: cirh.AdamW %param,
  func.func @no_decay(%param: tensor<4xf32>, %m: tensor<4xf32>, %v: tensor<4xf32>, %grad: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %decay = cirh.Const dense<0.000000e+00> : tensor<4xf32>
    %lost = cirh.Mul %param, %decay : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %left = cirh.Sub %param, %lost : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %p1 = cirh.Const dense<9.000000e-01> : tensor<f32>
    %p2 = cirh.Const dense<9.900000e-01> : tensor<f32>
    %rate = cirh.Const dense<1.000000e-01> : tensor<f32>
    %eps = cirh.Const dense<1.000000e-08> : tensor<f32>
    %new, %m2, %v2 = cirh.Adam %left, %m, %v, %p1, %p2, %rate, %p1, %p2, %eps, %grad {use_nesterov = false} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
    func.return %new, %m2, %v2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  // At a learning rate of zero no decay times the rate is the part.
  // CHECK: @decay_at_rate_zero
  // CHECK-NOT: cirh.AdamW
  // CHECK: cirh.Adam %
  // CHECK: func.return
  func.func @decay_at_rate_zero(%param: tensor<4xf32>, %m: tensor<4xf32>, %v: tensor<4xf32>, %grad: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %decay = cirh.Const dense<1.000000e-02> : tensor<4xf32>
    %lost = cirh.Mul %param, %decay : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %left = cirh.Sub %param, %lost : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %p1 = cirh.Const dense<9.000000e-01> : tensor<f32>
    %p2 = cirh.Const dense<9.900000e-01> : tensor<f32>
    %rate = cirh.Const dense<0.000000e+00> : tensor<f32>
    %eps = cirh.Const dense<1.000000e-08> : tensor<f32>
    %new, %m2, %v2 = cirh.Adam %left, %m, %v, %p1, %p2, %rate, %p1, %p2, %eps, %grad {use_nesterov = false} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
    func.return %new, %m2, %v2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
  // CHECK: @no_decay_at_rate_zero
  // CHECK-NOT: cirh.AdamW
  // CHECK: cirh.Adam %
  // CHECK: func.return
  func.func @no_decay_at_rate_zero(%param: tensor<4xf32>, %m: tensor<4xf32>, %v: tensor<4xf32>, %grad: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %decay = cirh.Const dense<0.000000e+00> : tensor<4xf32>
    %lost = cirh.Mul %param, %decay : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %left = cirh.Sub %param, %lost : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %p1 = cirh.Const dense<9.000000e-01> : tensor<f32>
    %p2 = cirh.Const dense<9.900000e-01> : tensor<f32>
    %rate = cirh.Const dense<0.000000e+00> : tensor<f32>
    %eps = cirh.Const dense<1.000000e-08> : tensor<f32>
    %new, %m2, %v2 = cirh.Adam %left, %m, %v, %p1, %p2, %rate, %p1, %p2, %eps, %grad {use_nesterov = false} : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
    func.return %new, %m2, %v2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}
