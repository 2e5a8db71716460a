// The CPU's LSTM layer, one oneDNN operator.
//
// For gradients it keeps a workspace of which only oneDNN knows the size, and it asks the calling
// thread whether there will be any. On the device's thread that is nobody's question, so that
// training has an operator of its own; the size is learnt from one run on zeros per shape.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/mkldnn_rnn_layer_ops.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "torch/fallback.h"

namespace gapless::torch_device {
namespace {

using at::Tensor;
using Results = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Results layer_for_training(const Tensor& input, const Tensor& input_weight,
                           const Tensor& hidden_weight, const Tensor& input_bias,
                           const Tensor& hidden_bias, const Tensor& hx, const Tensor& cx,
                           bool reverse, c10::IntArrayRef batch_sizes, int64_t mode,
                           int64_t hidden_size, int64_t num_layers, bool has_biases,
                           bool bidirectional, bool batch_first, bool train) {
  const c10::AutoGradMode with_gradients(true);
  const at::AutoDispatchBelowADInplaceOrView below;
  return at::mkldnn_rnn_layer(input, input_weight, hidden_weight, input_bias, hidden_bias, hx, cx,
                              reverse, batch_sizes, mode, hidden_size, num_layers, has_biases,
                              bidirectional, batch_first, train);
}

int64_t workspace_bytes(const Tensor& input, const Tensor& input_weight,
                        const Tensor& hidden_weight, const Tensor& bias, const Tensor& hx,
                        bool reverse, int64_t mode, int64_t hidden_size, int64_t num_layers,
                        bool has_biases, bool bidirectional, bool batch_first) {
  using Key = std::tuple<c10::ScalarType, int64_t, int64_t, int64_t, int64_t, bool, bool>;
  static std::mutex mutex;
  static auto* const known = new std::map<Key, int64_t>;
  const Key key{input.scalar_type(), input.size(0), input.size(1), input.size(2),
                hidden_size,         reverse,       has_biases};
  const std::lock_guard lock(mutex);
  if (auto found = known->find(key); found != known->end()) return found->second;
  auto zeros = [](const Tensor& like) {
    return at::zeros(like.sizes(), like.options().device(c10::kCPU));
  };
  const auto results = layer_for_training(
      zeros(input), zeros(input_weight), zeros(hidden_weight), zeros(bias), zeros(bias), zeros(hx),
      zeros(hx), reverse, {}, mode, hidden_size, num_layers, has_biases, bidirectional, batch_first,
      /*train=*/true);
  return (*known)[key] = std::get<3>(results).numel();
}

Results layer(const Tensor& input, const Tensor& input_weight, const Tensor& hidden_weight,
              const Tensor& input_bias, const Tensor& hidden_bias, const Tensor& hx,
              const Tensor& cx, bool reverse, c10::IntArrayRef batch_sizes, int64_t mode,
              int64_t hidden_size, int64_t num_layers, bool has_biases, bool bidirectional,
              bool batch_first, bool train) {
  static const auto inference =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::mkldnn_rnn_layer", "");
  static const auto training =
      c10::Dispatcher::singleton().findSchemaOrThrow("gapless::lstm_layer_for_training", "");
  const c10::DeviceGuard guard(input.device());
  const bool gradients = c10::GradMode::is_enabled();
  auto output = at::empty({input.size(0), input.size(1), hidden_size}, input.options());
  auto hidden = at::empty(hx.sizes(), hx.options());
  auto cell = at::empty(cx.sizes(), cx.options());
  Tensor workspace;
  if (gradients) {
    workspace = at::empty(
        {workspace_bytes(input, input_weight, hidden_weight, input_bias, hx, reverse, mode,
                         hidden_size, num_layers, has_biases, bidirectional, batch_first)},
        input.options().dtype(at::kByte));
  }
  submit_functional(
      gradients ? training : inference,
      {input, input_weight, hidden_weight, input_bias, hidden_bias, hx, cx, reverse, batch_sizes,
       mode, hidden_size, num_layers, has_biases, bidirectional, batch_first, train},
      {output, hidden, cell, workspace});
  return {output, hidden, cell, workspace};
}

TORCH_LIBRARY_FRAGMENT(gapless, m) {
  m.def(
      "lstm_layer_for_training(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, "
      "Tensor weight3, Tensor hx_, Tensor cx_, bool reverse, int[] batch_sizes, int mode, "
      "int hidden_size, int num_layers, bool has_biases, bool bidirectional, bool batch_first, "
      "bool train) -> (Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(gapless, CPU, m) { m.impl("lstm_layer_for_training", layer_for_training); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("mkldnn_rnn_layer", layer); }

}  // namespace
}  // namespace gapless::torch_device
