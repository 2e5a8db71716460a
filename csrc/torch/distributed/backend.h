// The process group backend "gapless": gloo's collectives, in stream order, never blocking the
// host.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "torch/distributed/stream_work.h"

namespace gapless::torch_device {

// Every operation waits, on the device, for what the caller's current stream was given before, and
// is queued on streams of the group's own; see StreamWork for how the caller waits in turn.
class DistributedBackend final : public c10d::Backend {
 public:
  // `transport` carries CPU tensors among the same ranks and is used by nobody else.
  DistributedBackend(c10::intrusive_ptr<c10d::Backend> transport, int rank, int size,
                     std::chrono::milliseconds timeout);
  ~DistributedBackend() override;

  const std::string getBackendName() const override { return "gapless"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;
  // Waits for what was submitted; the transport's timeout bounds it.
  void shutdown() override;
  void abort() override { transport_->abort(); }

  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(Lists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(Lists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to_rank, int tag) override;
  WorkPtr recv(Tensors& tensors, int from_rank, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  struct Argument {
    const Tensors& tensors;
    Access access;
  };
  // One device's streams, made on first use.
  struct Lanes {
    Stream* collectives = nullptr;
    Stream* begin = nullptr;  // of sends and receives
  };

  // Queues the operation on `arguments`, flattened in this order for `start`.
  WorkPtr collective(c10d::OpType type, const char* name, const std::vector<Argument>& arguments,
                     const Tensors& outputs, Start start);
  WorkPtr point_to_point(c10d::OpType type, const char* name, const Tensors& tensors, Access access,
                         Start start);
  std::shared_ptr<Transfer> prepare(const char* name, const std::vector<Argument>& arguments,
                                    Stream& begin, Stream& finish, Start start);
  WorkPtr returned(c10d::OpType type, Stream& stream, const Tensors& outputs, bool host_waits,
                   std::shared_ptr<Transfer> transfer);
  void check_rank(const char* name, int64_t rank) const;

  const c10::intrusive_ptr<c10d::Backend> transport_;
  const c10::intrusive_ptr<Options> options_;
  std::mutex mutex_;
  std::map<int, Lanes> lanes_;
  std::vector<EventMark> unfinished_;  // sends and receives that `shutdown` has to wait for
  bool coalescing_ = false;
  std::vector<EventMark> coalesced_;
  Tensors coalesced_outputs_;
  uint64_t sequence_ = 0;
};

}  // namespace gapless::torch_device
