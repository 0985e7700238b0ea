// RUN: cgc-opt %s --canonical | filecheck %s

// CHECK: func.func @graph(%0: tensor<4xf32> {tf.aliasing_output = 0 : i64, tf.resource_name = "state.model.w"}) -> tensor<4xf32> attributes {cs.mode = "train", cs.seed = 7 : i64}
// CHECK-NEXT: %1 = cirh.Const dense<1.000000e+00> : tensor<4xf32>
// CHECK-NEXT: %2 = cirh.Add %0, %1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT: func.return %2 : tensor<4xf32>
builtin.module {
  func.func @graph(%weight: tensor<4xf32> {tf.resource_name = "state.model.w", tf.aliasing_output = 0 : i64}) -> tensor<4xf32> attributes {cs.seed = 7 : i64, cs.mode = "train"} {
    %one = cirh.Const {cs.name = "one"} dense<1.0> : tensor<4xf32>
    %sum = cirh.Add %weight, %one {cs.source = "model.py:3", cs.name = "add", cs.layer = ["sum"]} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %sum : tensor<4xf32>
  }
}
