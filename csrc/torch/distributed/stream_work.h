// What a collective returns: a place in a communication stream.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "runtime/event.h"
#include "torch/distributed/transport_work.h"

namespace gapless::torch_device {

class StreamWork final : public c10d::Work {
 public:
  // `transfer` is given for a receive from any source. `host_waits` is for a barrier, which would
  // be of no use to a host that goes on.
  StreamWork(int rank, c10d::OpType type, std::vector<EventMark> marks,
             std::vector<at::Tensor> outputs, bool host_waits,
             std::shared_ptr<Transfer> transfer = nullptr);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  // Makes the current stream wait. With a timeout the host waits as well, and
  // c10d::DistBackendError says that it passed.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  const std::vector<EventMark>& marks() const { return marks_; }

 private:
  const std::vector<EventMark> marks_;
  const std::vector<at::Tensor> outputs_;
  const bool host_waits_;
  const std::shared_ptr<Transfer> transfer_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace gapless::torch_device
