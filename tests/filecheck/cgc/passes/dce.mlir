// RUN: cgc-opt %s --passes dce --verify-each | filecheck %s

builtin.module {
  // A chain of unused ops goes; an op with one used result of two stays; arguments stay.
  // CHECK-LABEL: @graph(%x: tensor<4x2xf32>, %y: tensor<4x2xf32>, %unused: tensor<4xf32>)
  // CHECK-NEXT: %loss, %backprop = cirh.SoftmaxCrossEntropyWithLogits
  // CHECK-NEXT: func.return %loss
  func.func @graph(%x: tensor<4x2xf32>, %y: tensor<4x2xf32>, %unused: tensor<4xf32>) -> tensor<4xf32> {
    %c = cirh.Const dense<1.0> : tensor<4xf32>
    %a = cirh.Add %unused, %c : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    %b = cirh.Exp %a : (tensor<4xf32>) -> tensor<4xf32>
    %loss, %backprop = cirh.SoftmaxCrossEntropyWithLogits %x, %y : (tensor<4x2xf32>, tensor<4x2xf32>) -> (tensor<4xf32>, tensor<4x2xf32>)
    %d = cirh.Mul %loss, %b : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    func.return %loss : tensor<4xf32>
  }
}
