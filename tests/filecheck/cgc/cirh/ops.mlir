// The text form of every op: what is printed is what was read.
// RUN: cgc-opt %s --verify-each | filecheck %s

builtin.module {
  // CHECK: func.func @all_ops
  func.func @all_ops(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>, %p: tensor<2x3xi1>, %i: tensor<2xi32>, %s: tensor<f32>, %step: tensor<i64>, %key: tensor<2xi32>, %bias: tensor<3xf32>, %image: tensor<2x4x4x2xf32>, %pooled: tensor<2x2x2x2xf32>, %kernel: tensor<3x3x2x2xf32>, %c: tensor<2xf32>, %logits: tensor<2x3x4xf32>, %labels: tensor<2x1xi32>, %n: tensor<2x3xi32>, %stop: tensor<2x1x4xi32>) {
    // CHECK-NEXT: %{{.*}} = cirh.Const dense<{{\[}}[1.500000e+00, -0.000000e+00], [0x7F800000, 1.000000e-01]]> : tensor<2x2xf32>
    %0 = cirh.Const dense<[[1.500000e+00, -0.000000e+00], [0x7F800000, 1.000000e-01]]> : tensor<2x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Arange {start = 1 : i64, step = 2 : i64} : () -> tensor<4xi32>
    %1 = cirh.Arange {start = 1 : i64, step = 2 : i64} : () -> tensor<4xi32>
    // CHECK-NEXT: %{{.*}} = cirh.OneHot %i, %s, %s {depth = 5 : i64, axis = 1 : i64} : (tensor<2xi32>, tensor<f32>, tensor<f32>) -> tensor<2x5xf32>
    %2 = cirh.OneHot %i, %s, %s {depth = 5 : i64, axis = 1 : i64} : (tensor<2xi32>, tensor<f32>, tensor<f32>) -> tensor<2x5xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Add %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %3 = cirh.Add %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Sub %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %4 = cirh.Sub %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Mul %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %5 = cirh.Mul %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Div %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %6 = cirh.Div %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Pow %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %7 = cirh.Pow %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Max %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %8 = cirh.Max %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Min %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %9 = cirh.Min %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.FloorDiv %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %10 = cirh.FloorDiv %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.FloorMod %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %11 = cirh.FloorMod %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Atan2 %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %12 = cirh.Atan2 %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.And %p, %p : (tensor<2x3xi1>, tensor<2x3xi1>) -> tensor<2x3xi1>
    %13 = cirh.And %p, %p : (tensor<2x3xi1>, tensor<2x3xi1>) -> tensor<2x3xi1>
    // CHECK-NEXT: %{{.*}} = cirh.Or %p, %p : (tensor<2x3xi1>, tensor<2x3xi1>) -> tensor<2x3xi1>
    %14 = cirh.Or %p, %p : (tensor<2x3xi1>, tensor<2x3xi1>) -> tensor<2x3xi1>
    // CHECK-NEXT: %{{.*}} = cirh.Xor %p, %p : (tensor<2x3xi1>, tensor<2x3xi1>) -> tensor<2x3xi1>
    %15 = cirh.Xor %p, %p : (tensor<2x3xi1>, tensor<2x3xi1>) -> tensor<2x3xi1>
    // CHECK-NEXT: %{{.*}} = cirh.Neg %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %16 = cirh.Neg %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Abs %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %17 = cirh.Abs %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Exp %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %18 = cirh.Exp %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Expm1 %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %19 = cirh.Expm1 %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Log %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %20 = cirh.Log %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Log1p %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %21 = cirh.Log1p %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Sqrt %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %22 = cirh.Sqrt %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Rsqrt %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %23 = cirh.Rsqrt %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Reciprocal %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %24 = cirh.Reciprocal %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Sin %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %25 = cirh.Sin %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Cos %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %26 = cirh.Cos %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Tanh %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %27 = cirh.Tanh %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Sigmoid %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %28 = cirh.Sigmoid %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Sign %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %29 = cirh.Sign %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Floor %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %30 = cirh.Floor %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Ceil %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %31 = cirh.Ceil %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Round %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %32 = cirh.Round %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Erf %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %33 = cirh.Erf %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Relu %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %34 = cirh.Relu %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Elu %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %35 = cirh.Elu %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Softplus %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %36 = cirh.Softplus %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Not %p : (tensor<2x3xi1>) -> tensor<2x3xi1>
    %37 = cirh.Not %p : (tensor<2x3xi1>) -> tensor<2x3xi1>
    // CHECK-NEXT: %{{.*}} = cirh.Gelu %x {approximation = "TANH"} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %38 = cirh.Gelu %x {approximation = "TANH"} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.LeakyRelu %x {alpha = 2.000000e-01 : f32} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %39 = cirh.LeakyRelu %x {alpha = 2.000000e-01 : f32} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.IsFinite %x : (tensor<2x3xf32>) -> tensor<2x3xi1>
    %40 = cirh.IsFinite %x : (tensor<2x3xf32>) -> tensor<2x3xi1>
    // CHECK-NEXT: %{{.*}} = cirh.ReluGrad %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %41 = cirh.ReluGrad %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.LeakyReluGrad %x, %y {alpha = 2.000000e-01 : f32} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %42 = cirh.LeakyReluGrad %x, %y {alpha = 2.000000e-01 : f32} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.GeluGrad %x, %y {approximation = "NONE"} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %43 = cirh.GeluGrad %x, %y {approximation = "NONE"} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.SoftplusGrad %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %44 = cirh.SoftplusGrad %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.SigmoidGrad %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %45 = cirh.SigmoidGrad %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.TanhGrad %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %46 = cirh.TanhGrad %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.EluGrad %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %47 = cirh.EluGrad %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Compare %x, %y {comparison_direction = "LT"} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %48 = cirh.Compare %x, %y {comparison_direction = "LT"} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    // CHECK-NEXT: %{{.*}} = cirh.Select %p, %x, %y : (tensor<2x3xi1>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %49 = cirh.Select %p, %x, %y : (tensor<2x3xi1>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Clamp %x, %s, %s : (tensor<2x3xf32>, tensor<f32>, tensor<f32>) -> tensor<2x3xf32>
    %50 = cirh.Clamp %x, %s, %s : (tensor<2x3xf32>, tensor<f32>, tensor<f32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Cast %x {Truncate = false} : (tensor<2x3xf32>) -> tensor<2x3xf16>
    %51 = cirh.Cast %x {Truncate = false} : (tensor<2x3xf32>) -> tensor<2x3xf16>
    // CHECK-NEXT: %{{.*}} = cirh.Reshape %x : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %52 = cirh.Reshape %x : (tensor<2x3xf32>) -> tensor<3x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Transpose %x {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %53 = cirh.Transpose %x {permutation = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<3x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.BroadcastInDim %x {broadcast_dimensions = array<i64: 1, 2>} : (tensor<2x3xf32>) -> tensor<4x2x3xf32>
    %54 = cirh.BroadcastInDim %x {broadcast_dimensions = array<i64: 1, 2>} : (tensor<2x3xf32>) -> tensor<4x2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Concat %x, %y, %x {axis = 0 : i64} : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<6x3xf32>
    %55 = cirh.Concat %x, %y, %x {axis = 0 : i64} : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<6x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Slice %x {start_indices = array<i64: 0, 1>, limit_indices = array<i64: 2, 3>, strides = array<i64: 1, 1>} : (tensor<2x3xf32>) -> tensor<2x2xf32>
    %56 = cirh.Slice %x {start_indices = array<i64: 0, 1>, limit_indices = array<i64: 2, 3>, strides = array<i64: 1, 1>} : (tensor<2x3xf32>) -> tensor<2x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.pad %x, %s {low = array<i64: 0, 1>, high = array<i64: 1, 0>} : (tensor<2x3xf32>, tensor<f32>) -> tensor<3x4xf32>
    %57 = cirh.pad %x, %s {low = array<i64: 0, 1>, high = array<i64: 1, 0>} : (tensor<2x3xf32>, tensor<f32>) -> tensor<3x4xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Gather %x, %i {axis = 0 : i64} : (tensor<2x3xf32>, tensor<2xi32>) -> tensor<2x3xf32>
    %58 = cirh.Gather %x, %i {axis = 0 : i64} : (tensor<2x3xf32>, tensor<2xi32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.ScatterNd %i, %x {reduce_kind = "ADD"} : (tensor<2xi32>, tensor<2x3xf32>) -> tensor<10x3xf32>
    %59 = cirh.ScatterNd %i, %x {reduce_kind = "ADD"} : (tensor<2xi32>, tensor<2x3xf32>) -> tensor<10x3xf32>
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.Unique %i : (tensor<2xi32>) -> (tensor<2xi32>, tensor<2xi64>)
    %86, %87 = cirh.Unique %i : (tensor<2xi32>) -> (tensor<2xi32>, tensor<2xi64>)
    // CHECK-NEXT: %{{.*}} = cirh.Scatter %x, %i, %y {reduce_kind = "SET"} : (tensor<2x3xf32>, tensor<2xi32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %88 = cirh.Scatter %x, %i, %y {reduce_kind = "SET"} : (tensor<2x3xf32>, tensor<2xi32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 1>, keep_dims = true} : (tensor<2x3xf32>) -> tensor<2x1xf32>
    %60 = cirh.Reduce %x {reduce_kind = "MEAN", dimensions = array<i64: 1>, keep_dims = true} : (tensor<2x3xf32>) -> tensor<2x1xf32>
    // CHECK-NEXT: %{{.*}} = cirh.ArgMax %x {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2xi64>
    %61 = cirh.ArgMax %x {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2xi64>
    // CHECK-NEXT: %{{.*}} = cirh.CumSum %x {axis = 1 : i64, exclusive = false, reverse = false} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %62 = cirh.CumSum %x {axis = 1 : i64, exclusive = false, reverse = false} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.MatMul %x, %y {transpose_a = false, transpose_b = true} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x2xf32>
    %63 = cirh.MatMul %x, %y {transpose_a = false, transpose_b = true} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.BiasAdd %x, %bias : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
    %64 = cirh.BiasAdd %x, %bias : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.BiasAddGrad %x : (tensor<2x3xf32>) -> tensor<3xf32>
    %65 = cirh.BiasAddGrad %x : (tensor<2x3xf32>) -> tensor<3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Convolution %image, %kernel {conv_pass_direction = "FWD", data_format = "NHWC", dilation = array<i64: 1, 1>, groups = 1 : i64, padding = array<i64: 1, 1, 1, 1>, stride = array<i64: 1, 1>} : (tensor<2x4x4x2xf32>, tensor<3x3x2x2xf32>) -> tensor<2x4x4x2xf32>
    %100 = cirh.Convolution %image, %kernel {conv_pass_direction = "FWD", data_format = "NHWC", dilation = array<i64: 1, 1>, groups = 1 : i64, padding = array<i64: 1, 1, 1, 1>, stride = array<i64: 1, 1>} : (tensor<2x4x4x2xf32>, tensor<3x3x2x2xf32>) -> tensor<2x4x4x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Convolution %image, %kernel {conv_pass_direction = "BWD_INPUT", data_format = "NHWC", dilation = array<i64: 1, 1>, groups = 1 : i64, padding = array<i64: 1, 1, 1, 1>, stride = array<i64: 1, 1>} : (tensor<2x4x4x2xf32>, tensor<3x3x2x2xf32>) -> tensor<2x4x4x2xf32>
    %101 = cirh.Convolution %image, %kernel {conv_pass_direction = "BWD_INPUT", data_format = "NHWC", dilation = array<i64: 1, 1>, groups = 1 : i64, padding = array<i64: 1, 1, 1, 1>, stride = array<i64: 1, 1>} : (tensor<2x4x4x2xf32>, tensor<3x3x2x2xf32>) -> tensor<2x4x4x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Convolution %image, %image {conv_pass_direction = "BWD_KERNEL", data_format = "NHWC", dilation = array<i64: 1, 1>, groups = 1 : i64, padding = array<i64: 1, 1, 1, 1>, stride = array<i64: 1, 1>} : (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>) -> tensor<3x3x2x2xf32>
    %102 = cirh.Convolution %image, %image {conv_pass_direction = "BWD_KERNEL", data_format = "NHWC", dilation = array<i64: 1, 1>, groups = 1 : i64, padding = array<i64: 1, 1, 1, 1>, stride = array<i64: 1, 1>} : (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>) -> tensor<3x3x2x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Pool %image {pool_type = "AVG", data_format = "NHWC", ksize = array<i64: 2, 2>, padding = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : (tensor<2x4x4x2xf32>) -> tensor<2x2x2x2xf32>
    %103 = cirh.Pool %image {pool_type = "AVG", data_format = "NHWC", ksize = array<i64: 2, 2>, padding = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : (tensor<2x4x4x2xf32>) -> tensor<2x2x2x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.MaxPoolGrad %image, %pooled {data_format = "NHWC", ksize = array<i64: 2, 2>, padding = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : (tensor<2x4x4x2xf32>, tensor<2x2x2x2xf32>) -> tensor<2x4x4x2xf32>
    %104 = cirh.MaxPoolGrad %image, %pooled {data_format = "NHWC", ksize = array<i64: 2, 2>, padding = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : (tensor<2x4x4x2xf32>, tensor<2x2x2x2xf32>) -> tensor<2x4x4x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.AvgPoolGrad %pooled {data_format = "NHWC", ksize = array<i64: 2, 2>, padding = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : (tensor<2x2x2x2xf32>) -> tensor<2x4x4x2xf32>
    %105 = cirh.AvgPoolGrad %pooled {data_format = "NHWC", ksize = array<i64: 2, 2>, padding = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} : (tensor<2x2x2x2xf32>) -> tensor<2x4x4x2xf32>
    // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} = cirh.FusedBatchNorm %image, %c, %c, %c, %c {exponential_avg_factor = 1.000000e+00 : f32, data_format = "NHWC", epsilon = 1.000000e-03 : f32, is_training = true} : (tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>)
    %106, %107, %108, %109, %110 = cirh.FusedBatchNorm %image, %c, %c, %c, %c {exponential_avg_factor = 1.000000e+00 : f32, data_format = "NHWC", epsilon = 1.000000e-03 : f32, is_training = true} : (tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.FusedBatchNormGrad %image, %image, %c, %c, %c {data_format = "NHWC", epsilon = 1.000000e-03 : f32, is_training = true} : (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2xf32>)
    %111, %112, %113 = cirh.FusedBatchNormGrad %image, %image, %c, %c, %c {data_format = "NHWC", epsilon = 1.000000e-03 : f32, is_training = true} : (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2xf32>)
    // CHECK-NEXT: %{{.*}} = cirh.Softmax %x {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %66 = cirh.Softmax %x {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.LogSoftmax %x {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %67 = cirh.LogSoftmax %x {axis = 1 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.SparseSoftmaxCrossEntropyWithLogits %x, %i {axis = 1 : i64} : (tensor<2x3xf32>, tensor<2xi32>) -> (tensor<2xf32>, tensor<2x3xf32>)
    %68, %69 = cirh.SparseSoftmaxCrossEntropyWithLogits %x, %i {axis = 1 : i64} : (tensor<2x3xf32>, tensor<2xi32>) -> (tensor<2xf32>, tensor<2x3xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.SoftmaxCrossEntropyWithLogits %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> (tensor<2xf32>, tensor<2x3xf32>)
    %70, %71 = cirh.SoftmaxCrossEntropyWithLogits %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> (tensor<2xf32>, tensor<2x3xf32>)
    // CHECK-NEXT: %{{.*}} = cirh.RandomUniform %step {global_seed = 7 : i64, op_seed = 1 : i64} : (tensor<i64>) -> tensor<4xf32>
    %72 = cirh.RandomUniform %step {global_seed = 7 : i64, op_seed = 1 : i64} : (tensor<i64>) -> tensor<4xf32>
    // CHECK-NEXT: %{{.*}} = cirh.RandomNormal %step {global_seed = 7 : i64, op_seed = 2 : i64} : (tensor<i64>) -> tensor<4xf32>
    %73 = cirh.RandomNormal %step {global_seed = 7 : i64, op_seed = 2 : i64} : (tensor<i64>) -> tensor<4xf32>
    // CHECK-NEXT: %{{.*}} = cirh.StatelessRandomUniform %key : (tensor<2xi32>) -> tensor<4xf32>
    %74 = cirh.StatelessRandomUniform %key : (tensor<2xi32>) -> tensor<4xf32>
    // CHECK-NEXT: %{{.*}} = cirh.GradientDescent %x, %s, %y : (tensor<2x3xf32>, tensor<f32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %75 = cirh.GradientDescent %x, %s, %y : (tensor<2x3xf32>, tensor<f32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.Momentum %x, %y, %s, %y, %s {use_nesterov = true} : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<2x3xf32>, tensor<f32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
    %76, %77 = cirh.Momentum %x, %y, %s, %y, %s {use_nesterov = true} : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<2x3xf32>, tensor<f32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.Adam %x, %y, %y, %s, %s, %s, %s, %s, %s, %y {use_nesterov = false} : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>)
    %78, %79, %80 = cirh.Adam %x, %y, %y, %s, %s, %s, %s, %s, %s, %y {use_nesterov = false} : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.RMSProp %x, %y, %y, %s, %s, %s, %s, %y : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>)
    %81, %82, %83 = cirh.RMSProp %x, %y, %y, %s, %s, %s, %s, %y : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.Adagrad %x, %y, %s, %y : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
    %84, %85 = cirh.Adagrad %x, %y, %s, %y : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
    // CHECK-NEXT: %{{.*}} = cirh.HardSigmoid %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %200 = cirh.HardSigmoid %x : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.HardSigmoidGrad %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %201 = cirh.HardSigmoidGrad %x, %y : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.ExtSI %i : (tensor<2xi32>) -> tensor<2xi64>
    %202 = cirh.ExtSI %i : (tensor<2xi32>) -> tensor<2xi64>
    // CHECK-NEXT: %{{.*}} = cirh.ExtUI %p : (tensor<2x3xi1>) -> tensor<2x3xi32>
    %203 = cirh.ExtUI %p : (tensor<2x3xi1>) -> tensor<2x3xi32>
    // CHECK-NEXT: %{{.*}} = cirh.Reduce %i {reduce_kind = "ADD", dimensions = array<i64: 0>, keep_dims = false} : (tensor<2xi32>) -> tensor<i32>
    %204 = cirh.Reduce %i {reduce_kind = "ADD", dimensions = array<i64: 0>, keep_dims = false} : (tensor<2xi32>) -> tensor<i32>
    // CHECK-NEXT: %{{.*}} = cirh.Fscale %x, %{{.*}} : (tensor<2x3xf32>, tensor<i32>) -> tensor<2x3xf32>
    %205 = cirh.Fscale %x, %204 : (tensor<2x3xf32>, tensor<i32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.GatherNd %x, %i : (tensor<2x3xf32>, tensor<2xi32>) -> tensor<f32>
    %206 = cirh.GatherNd %x, %i : (tensor<2x3xf32>, tensor<2xi32>) -> tensor<f32>
    // CHECK-NEXT: %{{.*}} = cirh.StridedSlice %x {begin = array<i64: 1, 0>, end = array<i64: -1, 3>, strides = array<i64: -1, 2>} : (tensor<2x3xf32>) -> tensor<2x2xf32>
    %207 = cirh.StridedSlice %x {begin = array<i64: 1, 0>, end = array<i64: -1, 3>, strides = array<i64: -1, 2>} : (tensor<2x3xf32>) -> tensor<2x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.StridedSliceGrad %x {begin = array<i64: 0, 0>, end = array<i64: 2, 5>, strides = array<i64: 1, 2>} : (tensor<2x3xf32>) -> tensor<2x5xf32>
    %208 = cirh.StridedSliceGrad %x {begin = array<i64: 0, 0>, end = array<i64: 2, 5>, strides = array<i64: 1, 2>} : (tensor<2x3xf32>) -> tensor<2x5xf32>
    // CHECK-NEXT: %{{.*}} = cirh.unpad %x {low = array<i64: 0, 1>, high = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<1x2xf32>
    %209 = cirh.unpad %x {low = array<i64: 0, 1>, high = array<i64: 1, 0>} : (tensor<2x3xf32>) -> tensor<1x2xf32>
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.Split %x {axis = 1 : i64, sizes = array<i64: 1, 2>} : (tensor<2x3xf32>) -> (tensor<2x1xf32>, tensor<2x2xf32>)
    %210, %211 = cirh.Split %x {axis = 1 : i64, sizes = array<i64: 1, 2>} : (tensor<2x3xf32>) -> (tensor<2x1xf32>, tensor<2x2xf32>)
    // CHECK-NEXT: %{{.*}} = cirh.Repeat %x {axis = 0 : i64, repeats = 2 : i64} : (tensor<2x3xf32>) -> tensor<4x3xf32>
    %212 = cirh.Repeat %x {axis = 0 : i64, repeats = 2 : i64} : (tensor<2x3xf32>) -> tensor<4x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.MatrixBandPart %x {num_lower = -1 : i64, num_upper = 0 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %213 = cirh.MatrixBandPart %x {num_lower = -1 : i64, num_upper = 0 : i64} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.ConditionalArange %p {start = 1 : i64, fill = 0 : i64} : (tensor<2x3xi1>) -> tensor<2x3xi32>
    %214 = cirh.ConditionalArange %p {start = 1 : i64, fill = 0 : i64} : (tensor<2x3xi1>) -> tensor<2x3xi32>
    // CHECK-NEXT: %{{.*}} = cirh.CumProd %x {axis = 1 : i64, exclusive = false, reverse = false} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %215 = cirh.CumProd %x {axis = 1 : i64, exclusive = false, reverse = false} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.NthOrderStatistic %x {n = 1 : i64, reverse = false} : (tensor<2x3xf32>) -> tensor<2xf32>
    %216 = cirh.NthOrderStatistic %x {n = 1 : i64, reverse = false} : (tensor<2x3xf32>) -> tensor<2xf32>
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.TopK %x {k = 2 : i64} : (tensor<2x3xf32>) -> (tensor<2x2xf32>, tensor<2x2xi32>)
    %217, %218 = cirh.TopK %x {k = 2 : i64} : (tensor<2x3xf32>) -> (tensor<2x2xf32>, tensor<2x2xi32>)
    // CHECK-NEXT: %{{.*}} = cirh.L2Norm %x, %bias : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<f32>
    %219 = cirh.L2Norm %x, %bias : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<f32>
    // CHECK-NEXT: %{{.*}} = cirh.DotGeneral %x, %y {lhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_batching_dimensions = array<i64>, rhs_contracting_dimensions = array<i64: 1>} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x2xf32>
    %220 = cirh.DotGeneral %x, %y {lhs_batching_dimensions = array<i64>, lhs_contracting_dimensions = array<i64: 1>, rhs_batching_dimensions = array<i64>, rhs_contracting_dimensions = array<i64: 1>} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.ReduceBias %image {dim = 2 : i64} : (tensor<2x4x4x2xf32>) -> tensor<4xf32>
    %221 = cirh.ReduceBias %image {dim = 2 : i64} : (tensor<2x4x4x2xf32>) -> tensor<4xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Composite %x, %bias {function = "BiasGelu"} : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
    %222 = cirh.Composite %x, %bias {function = "BiasGelu"} : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.LayerNorm %x, %bias, %bias {epsilon = 1.000000e-05 : f32} : (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<2x3xf32>, tensor<2x1xf32>, tensor<2x1xf32>)
    %223, %224, %225 = cirh.LayerNorm %x, %bias, %bias {epsilon = 1.000000e-05 : f32} : (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>) -> (tensor<2x3xf32>, tensor<2x1xf32>, tensor<2x1xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.LayerNormGrad %x, %y, %bias, %{{.*}}, %{{.*}} : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<3xf32>, tensor<2x1xf32>, tensor<2x1xf32>) -> (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>)
    %226, %227, %228 = cirh.LayerNormGrad %x, %y, %bias, %224, %225 : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<3xf32>, tensor<2x1xf32>, tensor<2x1xf32>) -> (tensor<2x3xf32>, tensor<3xf32>, tensor<3xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.GroupNorm %image, %c, %c {num_groups = 2 : i64, epsilon = 1.000000e-05 : f32} : (tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2x4x4x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>)
    %229, %230, %231 = cirh.GroupNorm %image, %c, %c {num_groups = 2 : i64, epsilon = 1.000000e-05 : f32} : (tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2xf32>) -> (tensor<2x4x4x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.GroupNormGrad %image, %image, %c, %{{.*}}, %{{.*}} {num_groups = 2 : i64} : (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2x2xf32>, tensor<2x2xf32>) -> (tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2xf32>)
    %232, %233, %234 = cirh.GroupNormGrad %image, %image, %c, %230, %231 {num_groups = 2 : i64} : (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2x2xf32>, tensor<2x2xf32>) -> (tensor<2x4x4x2xf32>, tensor<2xf32>, tensor<2xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.Attention %image, %image, %image {scale = 5.000000e-01 : f32, has_bias = false, has_keep = false} : (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>) -> (tensor<2x4x4x2xf32>, tensor<2x4x4x4xf32>)
    %235, %236 = cirh.Attention %image, %image, %image {scale = 5.000000e-01 : f32, has_bias = false, has_keep = false} : (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>) -> (tensor<2x4x4x2xf32>, tensor<2x4x4x4xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.AttentionGrad %image, %image, %image, %image, %{{.*}}, %{{.*}} {scale = 5.000000e-01 : f32, has_keep = true} : (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2x4x4x4xf32>, tensor<2x4x4x4xf32>) -> (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>)
    %237, %238, %239 = cirh.AttentionGrad %image, %image, %image, %image, %236, %236 {scale = 5.000000e-01 : f32, has_keep = true} : (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2x4x4x4xf32>, tensor<2x4x4x4xf32>) -> (tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>, tensor<2x4x4x2xf32>)
    // CHECK-NEXT: %{{.*}} = cirh.SoftmaxGrad %x, %y {axis = 1 : i64} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %240 = cirh.SoftmaxGrad %x, %y {axis = 1 : i64} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.RandomMultinomial %step, %x {num_samples = 4 : i64, global_seed = 7 : i64, op_seed = 3 : i64} : (tensor<i64>, tensor<2x3xf32>) -> tensor<2x4xi32>
    %241 = cirh.RandomMultinomial %step, %x {num_samples = 4 : i64, global_seed = 7 : i64, op_seed = 3 : i64} : (tensor<i64>, tensor<2x3xf32>) -> tensor<2x4xi32>
    // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.AdamW %x, %y, %y, %s, %s, %s, %s, %s, %s, %y, %s {use_nesterov = false} : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<2x3xf32>, tensor<f32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>)
    %242, %243, %244 = cirh.AdamW %x, %y, %y, %s, %s, %s, %s, %s, %s, %y, %s {use_nesterov = false} : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<2x3xf32>, tensor<f32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>)
    // CHECK-NEXT: %{{.*}} = cirh.KeyedRandomUniform %key, %step : (tensor<2xi32>, tensor<i64>) -> tensor<4xf32>
    %245 = cirh.KeyedRandomUniform %key, %step : (tensor<2xi32>, tensor<i64>) -> tensor<4xf32>
    // CHECK-NEXT: %{{.*}} = cirh.KeyedRandomNormal %key, %step : (tensor<2xi32>, tensor<i64>) -> tensor<4xf32>
    %246 = cirh.KeyedRandomNormal %key, %step : (tensor<2xi32>, tensor<i64>) -> tensor<4xf32>
    // CHECK-NEXT: %{{.*}} = cirh.CumMax %x {axis = 1 : i64, exclusive = false, reverse = false} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %247 = cirh.CumMax %x {axis = 1 : i64, exclusive = false, reverse = false} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}} = cirh.CumLogSumExp %x {axis = 1 : i64, exclusive = false, reverse = false} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %248 = cirh.CumLogSumExp %x {axis = 1 : i64, exclusive = false, reverse = false} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.Fft %x, %y {inverse = true} : (tensor<2x3xf32>, tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
    %249, %250 = cirh.Fft %x, %y {inverse = true} : (tensor<2x3xf32>, tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.Rfft %x : (tensor<2x3xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>)
    %251, %252 = cirh.Rfft %x : (tensor<2x3xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>)
    // CHECK-NEXT: %{{.*}} = cirh.Irfft %x, %y {length = 4 : i64} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x4xf32>
    %253 = cirh.Irfft %x, %y {length = 4 : i64} : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x4xf32>
    // CHECK-NEXT: %{{.*}} = cirh.Cholesky %kernel : (tensor<3x3x2x2xf32>) -> tensor<3x3x2x2xf32>
    %254 = cirh.Cholesky %kernel : (tensor<3x3x2x2xf32>) -> tensor<3x3x2x2xf32>
    // CHECK-NEXT: %{{.*}} = cirh.TriangularSolve %kernel, %kernel {lower = true, transpose_a = false, unit_diagonal = true} : (tensor<3x3x2x2xf32>, tensor<3x3x2x2xf32>) -> tensor<3x3x2x2xf32>
    %255 = cirh.TriangularSolve %kernel, %kernel {lower = true, transpose_a = false, unit_diagonal = true} : (tensor<3x3x2x2xf32>, tensor<3x3x2x2xf32>) -> tensor<3x3x2x2xf32>
    // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.Lu %kernel : (tensor<3x3x2x2xf32>) -> (tensor<3x3x2x2xf32>, tensor<3x3x2xi32>, tensor<3x3x2xi32>)
    %256, %257, %258 = cirh.Lu %kernel : (tensor<3x3x2x2xf32>) -> (tensor<3x3x2x2xf32>, tensor<3x3x2xi32>, tensor<3x3x2xi32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.Qr %kernel {full_matrices = false} : (tensor<3x3x2x2xf32>) -> (tensor<3x3x2x2xf32>, tensor<3x3x2x2xf32>)
    %259, %260 = cirh.Qr %kernel {full_matrices = false} : (tensor<3x3x2x2xf32>) -> (tensor<3x3x2x2xf32>, tensor<3x3x2x2xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}}, %{{.*}} = cirh.Svd %kernel {full_matrices = true} : (tensor<3x3x2x2xf32>) -> (tensor<3x3x2x2xf32>, tensor<3x3x2xf32>, tensor<3x3x2x2xf32>)
    %261, %262, %263 = cirh.Svd %kernel {full_matrices = true} : (tensor<3x3x2x2xf32>) -> (tensor<3x3x2x2xf32>, tensor<3x3x2xf32>, tensor<3x3x2x2xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.Eigh %kernel : (tensor<3x3x2x2xf32>) -> (tensor<3x3x2xf32>, tensor<3x3x2x2xf32>)
    %264, %265 = cirh.Eigh %kernel : (tensor<3x3x2x2xf32>) -> (tensor<3x3x2xf32>, tensor<3x3x2x2xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.CtcLoss %logits, %labels, %i, %i {blank = 0 : i64} : (tensor<2x3x4xf32>, tensor<2x1xi32>, tensor<2xi32>, tensor<2xi32>) -> (tensor<2xf32>, tensor<2x3x4xf32>)
    %266, %267 = cirh.CtcLoss %logits, %labels, %i, %i {blank = 0 : i64} : (tensor<2x3x4xf32>, tensor<2x1xi32>, tensor<2xi32>, tensor<2xi32>) -> (tensor<2xf32>, tensor<2x3x4xf32>)
    // CHECK-NEXT: %{{.*}}, %{{.*}} = cirh.StartTokenLoop %n : (tensor<2x3xi32>) -> (tensor<2x3xi32>, tensor<2x1xi32>)
    %268, %269 = cirh.StartTokenLoop %n : (tensor<2x3xi32>) -> (tensor<2x3xi32>, tensor<2x1xi32>)
    // CHECK-NEXT: %{{.*}} = cirh.UpdateTokenLoop %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}} {start_tokens = array<i64: 7, 9>, max_tokens = 2 : i64} : (tensor<2x3xi32>, tensor<2x1xi32>, tensor<2x1xi32>, tensor<2x1x4xi32>) -> tensor<2x3xi32>
    %270 = cirh.UpdateTokenLoop %268, %269, %269, %stop {start_tokens = array<i64: 7, 9>, max_tokens = 2 : i64} : (tensor<2x3xi32>, tensor<2x1xi32>, tensor<2x1xi32>, tensor<2x1x4xi32>) -> tensor<2x3xi32>
    func.return
  }
}
