// RUN: not cgc-opt %s --passes precision{mode=bfloat16} | filecheck %s --check-prefix MODE
// RUN: not cgc-opt %s --passes precision | filecheck %s --check-prefix NONE
// RUN: not cgc-opt %s --passes precision{mode=cbfloat16} | filecheck %s --check-prefix STATE
// RUN: not cgc-opt %s --passes precision{mode=mixed_float16},precision{mode=cbfloat16} | filecheck %s --check-prefix TWICE
// MODE: bad options of the pass 'precision': mode is 'bfloat16', expected one of mixed_float16, mixed_bfloat16, cbfloat16
// NONE: bad options of the pass 'precision'
// STATE: state.model.w, is float16, expected float32 with the precision cbfloat16
// TWICE: @graph is in float16 already, got the precision cbfloat16
builtin.module {
  func.func @graph(%w: tensor<4xf16> {tf.resource_name = "state.model.w", tf.aliasing_output = 0 : i64}) -> tensor<4xf16> {
    %n = cirh.Neg %w : (tensor<4xf16>) -> tensor<4xf16>
    func.return %n : tensor<4xf16>
  }
}
