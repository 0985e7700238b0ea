// Products, and what lies between two of them, are computed in 16 bits; casts stand on the border.
// RUN: cgc-opt %s --passes precision{mode=cbfloat16} --verify-each | filecheck %s
// RUN: cgc-opt %s --passes precision{mode=cbfloat16},precision{mode=cbfloat16} --verify-each | filecheck %s
// RUN: cgc-opt %s --passes precision{mode=mixed_float16} --verify-each | filecheck %s --check-prefix F16

builtin.module {
  // As in genuine CIRH text of a training step: casts around the products, state and loss in float32.
  // CHECK-LABEL: @step
  // CHECK-SAME: attributes {cs.mode = "train", cs.fp16_type = "cbfloat16"}
  // CHECK-NEXT: %[[XH:.*]] = cirh.Cast %x {Truncate = false} : (tensor<8x64xf32>) -> tensor<8x64xf16>
  // CHECK-NEXT: %[[WH:.*]] = cirh.Cast %w {Truncate = false} : (tensor<64x10xf32>) -> tensor<64x10xf16>
  // CHECK-NEXT: %[[VH:.*]] = cirh.Cast %v {Truncate = false} : (tensor<10x10xf32>) -> tensor<10x10xf16>
  // CHECK-NEXT: %[[H:.*]] = cirh.MatMul %[[XH]], %[[WH]] {{.*}} -> tensor<8x10xf16>
  // CHECK-NEXT: %[[R:.*]] = cirh.Relu %[[H]] : (tensor<8x10xf16>) -> tensor<8x10xf16>
  // CHECK-NEXT: %[[L:.*]] = cirh.MatMul %[[R]], %[[VH]] {{.*}} -> tensor<8x10xf16>
  // CHECK-NEXT: %[[LW:.*]] = cirh.Cast %[[L]] {Truncate = false} : (tensor<8x10xf16>) -> tensor<8x10xf32>
  // CHECK-NEXT: %[[LOGITS:.*]] = cirh.BiasAdd %[[LW]], %b : (tensor<8x10xf32>, tensor<10xf32>) -> tensor<8x10xf32>
  // CHECK-NEXT: %{{.*}}, %[[BACKPROP:.*]] = cirh.SparseSoftmaxCrossEntropyWithLogits %[[LOGITS]], %y
  // CHECK-NEXT: cirh.Reduce {{.*}} -> tensor<f32>
  // CHECK-NEXT: %[[D:.*]] = cirh.Mul %[[BACKPROP]], %eighth : (tensor<8x10xf32>, tensor<8x10xf32>) -> tensor<8x10xf32>
  // CHECK-NEXT: %[[DH:.*]] = cirh.Cast %[[D]] {Truncate = false} : (tensor<8x10xf32>) -> tensor<8x10xf16>
  // CHECK-NEXT: %[[DB:.*]] = cirh.BiasAddGrad %[[D]] : (tensor<8x10xf32>) -> tensor<10xf32>
  // CHECK-NEXT: %[[DV:.*]] = cirh.MatMul %[[R]], %[[DH]] {{.*}} -> tensor<10x10xf16>
  // CHECK-NEXT: %[[DVW:.*]] = cirh.Cast %[[DV]] {Truncate = false} : (tensor<10x10xf16>) -> tensor<10x10xf32>
  // CHECK-NEXT: %[[DR:.*]] = cirh.MatMul %[[DH]], %[[VH]] {{.*}} -> tensor<8x10xf16>
  // CHECK-NEXT: %[[DX:.*]] = cirh.ReluGrad %[[DR]], %[[R]] : (tensor<8x10xf16>, tensor<8x10xf16>) -> tensor<8x10xf16>
  // CHECK-NEXT: %[[DW:.*]] = cirh.MatMul %[[XH]], %[[DX]] {{.*}} -> tensor<64x10xf16>
  // CHECK-NEXT: %[[DWW:.*]] = cirh.Cast %[[DW]] {Truncate = false} : (tensor<64x10xf16>) -> tensor<64x10xf32>
  // CHECK-NEXT: cirh.Mul %[[DWW]], %decay : (tensor<64x10xf32>, tensor<64x10xf32>) -> tensor<64x10xf32>
  // CHECK-NEXT: cirh.GradientDescent %w, %lr, {{.*}} : (tensor<64x10xf32>, tensor<f32>, tensor<64x10xf32>)
  // CHECK-NEXT: cirh.GradientDescent %v, %lr, %[[DVW]] : (tensor<10x10xf32>, tensor<f32>, tensor<10x10xf32>)
  // CHECK-NEXT: cirh.GradientDescent %b, %lr, %[[DB]] : (tensor<10xf32>, tensor<f32>, tensor<10xf32>)
  // CHECK-NEXT: func.return
  // F16-LABEL: @step
  // F16-SAME: attributes {cs.mode = "train", cs.fp16_type = "float16"}
  // F16: cirh.MatMul {{.*}} -> tensor<8x10xf16>
  func.func @step(
    %w: tensor<64x10xf32> {tf.resource_name = "state.model.w", tf.aliasing_output = 0 : i64},
    %v: tensor<10x10xf32> {tf.resource_name = "state.model.v", tf.aliasing_output = 1 : i64},
    %b: tensor<10xf32> {tf.resource_name = "state.model.b", tf.aliasing_output = 2 : i64},
    %lr: tensor<f32> {tf.resource_name = "state.optimizer.lr"},
    %eighth: tensor<8x10xf32> {tf.resource_name = "state.optimizer.eighth"},
    %decay: tensor<64x10xf32> {tf.resource_name = "state.optimizer.decay"},
    %x: tensor<8x64xf32> {cs.input_name = "input_0"},
    %y: tensor<8xi32> {cs.input_name = "input_1"}
  ) -> (tensor<64x10xf32>, tensor<10x10xf32>, tensor<10xf32>, tensor<f32> {cs.output_name = "output_loss"}) attributes {cs.mode = "train"} {
    %h = cirh.MatMul %x, %w {transpose_a = false, transpose_b = false} : (tensor<8x64xf32>, tensor<64x10xf32>) -> tensor<8x10xf32>
    %r = cirh.Relu %h : (tensor<8x10xf32>) -> tensor<8x10xf32>
    %l = cirh.MatMul %r, %v {transpose_a = false, transpose_b = false} : (tensor<8x10xf32>, tensor<10x10xf32>) -> tensor<8x10xf32>
    %logits = cirh.BiasAdd %l, %b : (tensor<8x10xf32>, tensor<10xf32>) -> tensor<8x10xf32>
    %losses, %backprop = cirh.SparseSoftmaxCrossEntropyWithLogits %logits, %y {axis = 1 : i64} : (tensor<8x10xf32>, tensor<8xi32>) -> (tensor<8xf32>, tensor<8x10xf32>)
    %loss = cirh.Reduce %losses {reduce_kind = "MEAN", dimensions = array<i64: 0>, keep_dims = false} : (tensor<8xf32>) -> tensor<f32>
    %d = cirh.Mul %backprop, %eighth : (tensor<8x10xf32>, tensor<8x10xf32>) -> tensor<8x10xf32>
    %db = cirh.BiasAddGrad %d : (tensor<8x10xf32>) -> tensor<10xf32>
    %dv = cirh.MatMul %r, %d {transpose_a = true, transpose_b = false} : (tensor<8x10xf32>, tensor<8x10xf32>) -> tensor<10x10xf32>
    %dr = cirh.MatMul %d, %v {transpose_a = false, transpose_b = true} : (tensor<8x10xf32>, tensor<10x10xf32>) -> tensor<8x10xf32>
    %dh = cirh.ReluGrad %dr, %r : (tensor<8x10xf32>, tensor<8x10xf32>) -> tensor<8x10xf32>
    %dw = cirh.MatMul %x, %dh {transpose_a = true, transpose_b = false} : (tensor<8x64xf32>, tensor<8x10xf32>) -> tensor<64x10xf32>
    %dwd = cirh.Mul %dw, %decay : (tensor<64x10xf32>, tensor<64x10xf32>) -> tensor<64x10xf32>
    %new_w = cirh.GradientDescent %w, %lr, %dwd : (tensor<64x10xf32>, tensor<f32>, tensor<64x10xf32>) -> tensor<64x10xf32>
    %new_v = cirh.GradientDescent %v, %lr, %dv : (tensor<10x10xf32>, tensor<f32>, tensor<10x10xf32>) -> tensor<10x10xf32>
    %new_b = cirh.GradientDescent %b, %lr, %db : (tensor<10xf32>, tensor<f32>, tensor<10xf32>) -> tensor<10xf32>
    func.return %new_w, %new_v, %new_b, %loss : tensor<64x10xf32>, tensor<10x10xf32>, tensor<10xf32>, tensor<f32>
  }

  // Batch normalization takes and gives 16 bits; scale, offset and statistics stay float32.
  // CHECK-LABEL: @batch_norm
  // CHECK: %[[C:.*]] = cirh.Convolution {{.*}} -> tensor<2x4x4x8xf16>
  // CHECK-NEXT: %n, {{.*}} = cirh.FusedBatchNorm %[[C]], %s, %s, %s, %s {{.*}} : (tensor<2x4x4x8xf16>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) -> (tensor<2x4x4x8xf16>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>)
  // CHECK-NEXT: cirh.Convolution %n,
  func.func @batch_norm(
    %x: tensor<2x4x4x8xf32> {cs.input_name = "input_0"},
    %k: tensor<1x1x8x8xf32> {tf.resource_name = "state.model.k"},
    %s: tensor<8xf32> {tf.resource_name = "state.model.s"}
  ) -> (tensor<2x4x4x8xf32> {cs.output_name = "output_y"}) attributes {cs.mode = "infer"} {
    %c = cirh.Convolution %x, %k {stride = array<i64: 1, 1>, padding = array<i64: 0, 0, 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, conv_pass_direction = "FWD", data_format = "NHWC"} : (tensor<2x4x4x8xf32>, tensor<1x1x8x8xf32>) -> tensor<2x4x4x8xf32>
    %n, %a, %b, %d, %e = cirh.FusedBatchNorm %c, %s, %s, %s, %s {data_format = "NHWC", epsilon = 1.0e-3 : f32, is_training = false, exponential_avg_factor = 1.0 : f32} : (tensor<2x4x4x8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) -> (tensor<2x4x4x8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>)
    %c2 = cirh.Convolution %n, %k {stride = array<i64: 1, 1>, padding = array<i64: 0, 0, 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, conv_pass_direction = "FWD", data_format = "NHWC"} : (tensor<2x4x4x8xf32>, tensor<1x1x8x8xf32>) -> tensor<2x4x4x8xf32>
    func.return %c2 : tensor<2x4x4x8xf32>
  }

  // A mask of -1e9 is cut to what float16 holds, so that no row is all infinite. Constants are rounded here.
  // CHECK-LABEL: @mask
  // CHECK-NOT: cirh.Clamp
  // CHECK: cirh.MatMul
  // CHECK: %[[HALF:.*]] = cirh.Const dense<5.000000e-01> : tensor<4x4xf16>
  // CHECK-NEXT: cirh.Mul {{.*}}, %[[HALF]]
  // CHECK: cirh.Add {{.*}} : (tensor<4x4xf16>, tensor<4x4xf16>)
  // CHECK-NEXT: cirh.Softmax {{.*}} -> tensor<4x4xf16>
  // F16-LABEL: @mask
  // F16-DAG: %[[LOW:.*]] = cirh.Const dense<-3.276800e+04> : tensor<f32>
  // F16-DAG: %[[HIGH:.*]] = cirh.Const dense<3.276800e+04> : tensor<f32>
  // F16: %[[CUT:.*]] = cirh.Clamp %mask, %[[LOW]], %[[HIGH]]
  // F16-NEXT: %[[MASK:.*]] = cirh.Cast %[[CUT]]
  // F16: cirh.Add %{{.*}}, %[[MASK]]
  func.func @mask(
    %q: tensor<4x4xf32> {cs.input_name = "input_0"},
    %m: tensor<4x4xf32> {cs.input_name = "input_1"}
  ) -> (tensor<4x4xf32> {cs.output_name = "output_y"}) attributes {cs.mode = "infer"} {
    %scores = cirh.MatMul %q, %q {transpose_a = false, transpose_b = true} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %half = cirh.Const dense<5.0e-01> : tensor<4x4xf32>
    %scaled = cirh.Mul %scores, %half : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %low = cirh.Const dense<-1.0e+09> : tensor<4x4xf32>
    %mask = cirh.Mul %m, %low : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %masked = cirh.Add %scaled, %mask : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %p = cirh.Softmax %masked {axis = 1 : i64} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %context = cirh.MatMul %p, %q {transpose_a = false, transpose_b = false} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    func.return %context : tensor<4x4xf32>
  }

  // A weight is cast before it is moved, and the tokens of a table behind their lookup.
  // CHECK-LABEL: @embedding
  // CHECK-NEXT: %[[WH:.*]] = cirh.Cast %w {{.*}} -> tensor<4x4xf16>
  // CHECK-NEXT: %[[E:.*]] = cirh.Gather %table, %ids {{.*}} -> tensor<4x4xf32>
  // CHECK-NEXT: %[[EH:.*]] = cirh.Cast %[[E]]
  // CHECK-NEXT: %[[T:.*]] = cirh.Transpose %[[WH]] {{.*}} -> tensor<4x4xf16>
  // CHECK-NEXT: %[[TWICE:.*]] = cirh.Add %[[EH]], %[[EH]] : (tensor<4x4xf16>
  // CHECK-NEXT: cirh.MatMul %[[TWICE]], %[[T]]
  func.func @embedding(
    %table: tensor<9x4xf32> {tf.resource_name = "state.model.table"},
    %w: tensor<4x4xf32> {tf.resource_name = "state.model.w"},
    %ids: tensor<4xi32> {cs.input_name = "input_0"}
  ) -> (tensor<4x4xf32> {cs.output_name = "output_y"}) attributes {cs.mode = "infer"} {
    %e = cirh.Gather %table, %ids {axis = 0 : i64} : (tensor<9x4xf32>, tensor<4xi32>) -> tensor<4x4xf32>
    %t = cirh.Transpose %w {permutation = array<i64: 1, 0>} : (tensor<4x4xf32>) -> tensor<4x4xf32>
    %twice = cirh.Add %e, %e : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    %y = cirh.MatMul %twice, %t {transpose_a = false, transpose_b = false} : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
    func.return %y : tensor<4x4xf32>
  }
}
