// One step of recurrent layers, from operators that have gradients.
//
// PyTorch chooses a fused kernel for devices other than the CPU. Here a step is what it is on the
// CPU, so that the device gives the CPU's numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

namespace gapless::torch_device {

// The parameters of a layer in one direction.
struct CellParameters {
  at::Tensor input_weight, hidden_weight;
  std::optional<at::Tensor> input_bias, hidden_bias;
};

struct LstmState {
  at::Tensor hidden, cell;
};

// `input_gates` are the input's share of the gates, linear(input, input_weight, input_bias).
LstmState lstm_step(const at::Tensor& input_gates, const LstmState& state,
                    const CellParameters& parameters);
at::Tensor gru_step(const at::Tensor& input_gates, const at::Tensor& hidden,
                    const CellParameters& parameters);

}  // namespace gapless::torch_device
