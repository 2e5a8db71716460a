#include "torch/recurrent_cells.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/library.h>

#include <tuple>

namespace gapless::torch_device {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

LstmState lstm_from_gates(const Tensor& gates, const Tensor& cell) {
  const auto parts = gates.unsafe_chunk(4, 1);
  const Tensor input = parts[0].sigmoid_(), forget = parts[1].sigmoid_();
  const Tensor candidate = parts[2].tanh_(), output = parts[3].sigmoid_();
  Tensor next = (forget * cell).add_(input * candidate);
  return {output * next.tanh(), next};
}

Tensor gru_from_gates(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hidden) {
  const auto from_input = input_gates.unsafe_chunk(3, 1);
  const auto from_hidden = hidden_gates.unsafe_chunk(3, 1);
  const Tensor reset = from_hidden[0].add_(from_input[0]).sigmoid_();
  const Tensor update = from_hidden[1].add_(from_input[1]).sigmoid_();
  const Tensor candidate = from_input[2].add(from_hidden[2].mul_(reset)).tanh_();
  return (hidden - candidate).mul_(update).add_(candidate);
}

Tensor biased(const Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates.clone();
}

// The last result is what a fused backward kernel would need. There is none: these functions stand
// above autograd, which sees the operators that they consist of.
std::tuple<Tensor, Tensor, Tensor> fused_lstm_cell(const Tensor& input_gates,
                                                   const Tensor& hidden_gates, const Tensor& cell,
                                                   const OptionalTensor& input_bias,
                                                   const OptionalTensor& hidden_bias) {
  const auto gates = biased(hidden_gates, hidden_bias).add_(biased(input_gates, input_bias));
  auto state = lstm_from_gates(gates, cell);
  return {state.hidden, state.cell, at::empty({0}, gates.options())};
}

std::tuple<Tensor, Tensor> fused_gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                          const Tensor& hidden, const OptionalTensor& input_bias,
                                          const OptionalTensor& hidden_bias) {
  return {
      gru_from_gates(biased(input_gates, input_bias), biased(hidden_gates, hidden_bias), hidden),
      at::empty({0}, hidden.options())};
}

std::tuple<Tensor, Tensor> lstm_cell(const Tensor& input, at::TensorList state,
                                     const Tensor& input_weight, const Tensor& hidden_weight,
                                     const OptionalTensor& input_bias,
                                     const OptionalTensor& hidden_bias) {
  TORCH_CHECK(state.size() == 2, "lstm_cell expects two hidden states, not ", state.size());
  auto next = lstm_step(at::linear(input, input_weight, input_bias), {state[0], state[1]},
                        {input_weight, hidden_weight, input_bias, hidden_bias});
  return {next.hidden, next.cell};
}

Tensor gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& input_weight,
                const Tensor& hidden_weight, const OptionalTensor& input_bias,
                const OptionalTensor& hidden_bias) {
  return gru_step(at::linear(input, input_weight, input_bias), hidden,
                  {input_weight, hidden_weight, input_bias, hidden_bias});
}

void register_cells(torch::Library& m) {
  m.impl("_thnn_fused_lstm_cell", fused_lstm_cell);
  m.impl("_thnn_fused_gru_cell", fused_gru_cell);
  m.impl("lstm_cell", lstm_cell);
  m.impl("gru_cell", gru_cell);
}

// With gradients, and in inference mode, where PyTorch leaves the keys of autograd out.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_cells(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { register_cells(m); }

}  // namespace

LstmState lstm_step(const Tensor& input_gates, const LstmState& state,
                    const CellParameters& parameters) {
  const auto gates =
      at::linear(state.hidden, parameters.hidden_weight, parameters.hidden_bias).add_(input_gates);
  return lstm_from_gates(gates, state.cell);
}

Tensor gru_step(const Tensor& input_gates, const Tensor& hidden, const CellParameters& parameters) {
  return gru_from_gates(
      input_gates, at::linear(hidden, parameters.hidden_weight, parameters.hidden_bias), hidden);
}

}  // namespace gapless::torch_device
