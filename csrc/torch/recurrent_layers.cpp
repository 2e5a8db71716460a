// Recurrent layers over whole sequences, in the order of operators that the CPU has.
//
// On the CPU an LSTM in float32 is one oneDNN operator per layer and
// direction; others, and every GRU, compute the input's share of the gates for all steps at once
// and then go step by step. Packed sequences and projections go through PyTorch's own layers, which
// use the cells of recurrent_cells.cpp.

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "torch/recurrent_cells.h"

namespace gapless::torch_device {
namespace {

using at::Tensor;

struct Settings {
  bool has_biases;
  int64_t layers;
  double dropout;
  bool train, bidirectional, batch_first;

  size_t directions() const { return bidirectional ? 2 : 1; }
  size_t per_direction() const { return has_biases ? 4 : 2; }
};

bool well_formed(const Tensor& input, at::TensorList parameters, const Settings& settings) {
  return input.dim() == 3 && input.numel() != 0 &&
         parameters.size() == static_cast<size_t>(settings.layers) * settings.directions() *
                                  settings.per_direction();
}

CellParameters parameters_at(at::TensorList all, size_t index, const Settings& settings) {
  const size_t at = index * settings.per_direction();
  if (!settings.has_biases) return {all[at], all[at + 1], std::nullopt, std::nullopt};
  return {all[at], all[at + 1], all[at + 2], all[at + 3]};
}

// Runs `layer(input, index of layer and direction, reverse) -> output`, the time in front, for all
// layers and directions.
template <typename Layer>
Tensor stacked(Tensor input, const Settings& settings, Layer&& layer) {
  for (int64_t l = 0; l < settings.layers; ++l) {
    std::vector<Tensor> outputs;
    for (size_t d = 0; d < settings.directions(); ++d) {
      const size_t index = static_cast<size_t>(l) * settings.directions() + d;
      outputs.push_back(layer(input, index, d == 1));
    }
    input = outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
    if (settings.dropout != 0 && settings.train && l < settings.layers - 1) {
      input = at::dropout(input, settings.dropout, /*train=*/true);
    }
  }
  return input;
}

// Goes through the steps, `step(input gates) -> output`, forwards or backwards.
template <typename Step>
Tensor sequence(const Tensor& input, const CellParameters& parameters, bool reverse, Step&& step) {
  auto gates = at::linear(input, parameters.input_weight, parameters.input_bias).unbind(0);
  if (reverse) std::reverse(gates.begin(), gates.end());
  std::vector<Tensor> outputs;
  for (const Tensor& input_gates : gates) outputs.push_back(step(input_gates));
  if (reverse) std::reverse(outputs.begin(), outputs.end());
  return at::stack(outputs, 0);
}

// In reduced precision oneDNN needs a processor that has instructions for it; steps do not.
bool onednn_runs(const Tensor& input) {
  return at::globalContext().userEnabledMkldnn() && at::Context::hasMKLDNN() &&
         input.scalar_type() == at::kFloat;
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& given, at::TensorList hx,
                                        at::TensorList parameters, bool has_biases, int64_t layers,
                                        double dropout, bool train, bool bidirectional,
                                        bool batch_first) {
  constexpr int64_t kOneDnnLstm = 2;
  const Settings settings{has_biases, layers, dropout, train, bidirectional, batch_first};
  const bool projected = hx.size() == 2 && hx[0].dim() == 3 && hx[0].size(2) != hx[1].size(2);
  if (hx.size() != 2 || projected || !well_formed(given, parameters, settings)) {
    return at::native::lstm(given, hx, parameters, has_biases, layers, dropout, train,
                            bidirectional, batch_first);
  }
  Tensor input = batch_first ? given.transpose(0, 1) : given;
  std::vector<Tensor> hidden(static_cast<size_t>(layers) * settings.directions());
  std::vector<Tensor> cell(hidden.size());
  Tensor output;
  if (onednn_runs(given)) {
    const auto h = hx[0].contiguous(), c = hx[1].contiguous();
    output = stacked(input.contiguous(), settings, [&](const Tensor& in, size_t i, bool reverse) {
      const auto p = parameters_at(parameters, i, settings);
      auto results = at::mkldnn_rnn_layer(
          in, p.input_weight, p.hidden_weight,
          p.input_bias ? *p.input_bias : at::zeros_like(p.input_weight),
          p.hidden_bias ? *p.hidden_bias : at::zeros_like(p.hidden_weight),
          h[static_cast<int64_t>(i)], c[static_cast<int64_t>(i)], reverse, {}, kOneDnnLstm,
          h.size(2), layers, has_biases, bidirectional, batch_first, train);
      hidden[i] = std::get<1>(results);
      cell[i] = std::get<2>(results);
      return std::get<0>(results);
    });
  } else {
    output = stacked(input, settings, [&](const Tensor& in, size_t i, bool reverse) {
      const auto p = parameters_at(parameters, i, settings);
      LstmState state{hx[0][static_cast<int64_t>(i)], hx[1][static_cast<int64_t>(i)]};
      auto out = sequence(in, p, reverse, [&](const Tensor& gates) {
        state = lstm_step(gates, state, p);
        return state.hidden;
      });
      hidden[i] = state.hidden;
      cell[i] = state.cell;
      return out;
    });
  }
  if (batch_first) output = output.transpose(0, 1);
  return {output, at::stack(hidden, 0), at::stack(cell, 0)};
}

// A layer with one hidden state: `step(input gates, hidden, parameters) -> hidden`.
template <typename Step>
std::tuple<Tensor, Tensor> with_one_state(const Tensor& given, const Tensor& hx,
                                          at::TensorList parameters, const Settings& settings,
                                          Step&& step) {
  std::vector<Tensor> hidden(static_cast<size_t>(settings.layers) * settings.directions());
  Tensor output = stacked(settings.batch_first ? given.transpose(0, 1) : given, settings,
                          [&](const Tensor& in, size_t i, bool reverse) {
                            const auto p = parameters_at(parameters, i, settings);
                            Tensor state = hx[static_cast<int64_t>(i)];
                            auto out = sequence(in, p, reverse, [&](const Tensor& gates) {
                              return state = step(gates, state, p);
                            });
                            hidden[i] = state;
                            return out;
                          });
  if (settings.batch_first) output = output.transpose(0, 1);
  return {output, at::stack(hidden, 0)};
}

std::tuple<Tensor, Tensor> gru(const Tensor& input, const Tensor& hx, at::TensorList parameters,
                               bool has_biases, int64_t layers, double dropout, bool train,
                               bool bidirectional, bool batch_first) {
  const Settings settings{has_biases, layers, dropout, train, bidirectional, batch_first};
  if (well_formed(input, parameters, settings)) {
    return with_one_state(input, hx, parameters, settings, gru_step);
  }
  return at::native::gru(input, hx, parameters, has_biases, layers, dropout, train, bidirectional,
                         batch_first);
}

Tensor elman_gates(const Tensor& input_gates, const Tensor& hidden, const CellParameters& p) {
  return at::linear(hidden, p.hidden_weight, p.hidden_bias).add_(input_gates);
}

std::tuple<Tensor, Tensor> rnn_tanh(const Tensor& input, const Tensor& hx,
                                    at::TensorList parameters, bool has_biases, int64_t layers,
                                    double dropout, bool train, bool bidirectional,
                                    bool batch_first) {
  const Settings settings{has_biases, layers, dropout, train, bidirectional, batch_first};
  if (well_formed(input, parameters, settings)) {
    return with_one_state(input, hx, parameters, settings,
                          [](const Tensor& gates, const Tensor& hidden, const CellParameters& p) {
                            return elman_gates(gates, hidden, p).tanh();
                          });
  }
  return at::native::rnn_tanh(input, hx, parameters, has_biases, layers, dropout, train,
                              bidirectional, batch_first);
}

std::tuple<Tensor, Tensor> rnn_relu(const Tensor& input, const Tensor& hx,
                                    at::TensorList parameters, bool has_biases, int64_t layers,
                                    double dropout, bool train, bool bidirectional,
                                    bool batch_first) {
  const Settings settings{has_biases, layers, dropout, train, bidirectional, batch_first};
  if (well_formed(input, parameters, settings)) {
    return with_one_state(input, hx, parameters, settings,
                          [](const Tensor& gates, const Tensor& hidden, const CellParameters& p) {
                            return elman_gates(gates, hidden, p).relu();
                          });
  }
  return at::native::rnn_relu(input, hx, parameters, has_biases, layers, dropout, train,
                              bidirectional, batch_first);
}

void register_layers(torch::Library& m) {
  m.impl("lstm.input", lstm);
  m.impl("gru.input", gru);
  m.impl("rnn_tanh.input", rnn_tanh);
  m.impl("rnn_relu.input", rnn_relu);
}

// With gradients, and in inference mode, where PyTorch leaves the keys of autograd out.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_layers(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { register_layers(m); }

}  // namespace
}  // namespace gapless::torch_device
