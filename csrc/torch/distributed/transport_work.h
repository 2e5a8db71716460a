// Works that let the transport (gloo) move tensors, on a communication stream's thread.
#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "runtime/work.h"
#include "torch/distributed/operands.h"

namespace gapless::torch_device {

// Starts the operation on CPU tensors, in the order in which they were added to the operands.
using Start =
    std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&, std::vector<at::Tensor>&)>;

// One operation of the transport.
class Transfer {
 public:
  Transfer(c10::intrusive_ptr<c10d::Backend> transport, std::unique_ptr<Operands> operands,
           Start start);

  // On stream threads, `finish` after `begin`. Both throw DeviceError with the transport's text.
  void begin();
  void finish();
  std::string operands() const { return operands_->text(); }
  // Which rank was received from; -1 before the end.
  int source() const { return source_; }

 private:
  c10::intrusive_ptr<c10d::Backend> transport_;
  std::unique_ptr<Operands> operands_;
  Start start_;
  c10::intrusive_ptr<c10d::Work> running_;
  std::atomic<int> source_{-1};
};

// Which parts of a transfer a work does. A collective is one work: the group's collectives run one
// after the other anyway. A send or receive may have to wait for another one that the host submits
// later, so that it begins in the order of the host's calls and finishes on a stream of its own.
enum class Part { kBegin, kFinish, kWhole };

class TransportWork final : public Work {
 public:
  TransportWork(const char* name, std::shared_ptr<Transfer> transfer, Part part);
  void run(const RunContext&) override;
  std::string operands() const override { return transfer_->operands(); }

 private:
  std::shared_ptr<Transfer> transfer_;
  const Part part_;
};

}  // namespace gapless::torch_device
