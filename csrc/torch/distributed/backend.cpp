#include "torch/distributed/backend.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "runtime/device.h"
#include "torch/distributed/comm_streams.h"
#include "torch/errors.h"
#include "torch/graph_capture.h"
#include "torch/submit.h"
#include "torch/submit_site.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

using c10d::OpType;

// What gloo moves and reduces; it would say so of others only on the device's time.
bool carried(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kBool:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

void check_tensor(const char* name, const at::Tensor& tensor, bool any_dtype) {
  TORCH_CHECK(tensor.device().is_privateuseone(), name,
              ": the backend gapless takes tensors on the "
              "device gapless, not on ",
              tensor.device(), "; init_process_group('cpu:gloo,gapless:gapless') serves both");
  TORCH_CHECK(tensor.is_non_overlapping_and_dense(), name, ": a tensor of shape ", tensor.sizes(),
              " and strides ", tensor.strides(), " is not dense; call .contiguous() first");
  TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(), name,
              ": resolve the tensor's conjugate or negative bit first (.resolve_conj())");
  TORCH_CHECK(any_dtype || carried(tensor.scalar_type()), name, ": dtype ", tensor.scalar_type(),
              " is not carried; float, double, half, bfloat16, int8, uint8, bool, int32 and int64 "
              "are; view or cast the tensor");
}

}  // namespace

DistributedBackend::DistributedBackend(c10::intrusive_ptr<c10d::Backend> transport, int rank,
                                       int size, std::chrono::milliseconds timeout)
    : Backend(rank, size),
      transport_(std::move(transport)),
      options_(c10::make_intrusive<Options>("gapless", timeout)) {}

DistributedBackend::~DistributedBackend() {
  for (auto& [device, lanes] : lanes_) {
    for (Stream* stream : {lanes.collectives, lanes.begin}) {
      if (stream) release_comm_stream(*stream);
    }
  }
}

void DistributedBackend::setTimeout(std::chrono::milliseconds timeout) {
  transport_->setTimeout(timeout);
  options_->timeout = timeout;
}

void DistributedBackend::shutdown() {
  std::vector<EventMark> marks;
  {
    std::lock_guard lock(mutex_);
    marks = std::exchange(unfinished_, {});
    for (auto& [device, lanes] : lanes_) {
      for (Stream* stream : {lanes.collectives, lanes.begin}) {
        if (stream) marks.push_back(mark_of(*stream));
      }
    }
  }
  for (const EventMark& mark : marks) wait_for(*mark.stream, mark.place);
  transport_->shutdown();
}

void DistributedBackend::startCoalescing() {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(!coalescing_, "operations are being coalesced already; end that first");
  coalescing_ = true;
}

c10::intrusive_ptr<c10d::Work> DistributedBackend::endCoalescing() {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(coalescing_, "no operations are being coalesced");
  coalescing_ = false;
  if (coalesced_.empty()) return nullptr;
  return c10::make_intrusive<StreamWork>(getRank(), OpType::COALESCED,
                                         std::exchange(coalesced_, {}),
                                         std::exchange(coalesced_outputs_, {}), false);
}

void DistributedBackend::check_rank(const char* name, int64_t rank) const {
  TORCH_CHECK(rank >= 0 && rank < getSize(), name, ": rank ", rank,
              " is not in the group; it has ranks 0 to ", getSize() - 1);
}

std::shared_ptr<Transfer> DistributedBackend::prepare(const char* name,
                                                      const std::vector<Argument>& arguments,
                                                      Stream& begin, Stream& finish, Start start) {
  Stream& current = current_stream(begin.device());
  TORCH_CHECK(
      !current.capturing(), name,
      " cannot be captured in a graph: it needs other processes; call it outside the capture");
  Event ready(/*timing=*/false);
  ready.record(current);
  submit_wait(begin, ready.mark());
  auto operands = std::make_unique<Operands>(begin);
  for (const auto& [tensors, access] : arguments) {
    for (const at::Tensor& tensor : tensors) {
      note_use(begin, tensor);
      if (&finish != &begin) note_use(finish, tensor);
      operands->add(tensor, access);
    }
  }
  return std::make_shared<Transfer>(transport_, std::move(operands), std::move(start));
}

c10::intrusive_ptr<c10d::Work> DistributedBackend::returned(OpType type, Stream& stream,
                                                            const Tensors& outputs, bool host_waits,
                                                            std::shared_ptr<Transfer> transfer) {
  Event done(/*timing=*/false);
  done.record(stream);
  if (coalescing_) {
    coalesced_.push_back(done.mark());
    coalesced_outputs_.insert(coalesced_outputs_.end(), outputs.begin(), outputs.end());
  }
  return c10::make_intrusive<StreamWork>(getRank(), type, std::vector<EventMark>{done.mark()},
                                         outputs, host_waits, std::move(transfer));
}

c10::intrusive_ptr<c10d::Work> DistributedBackend::collective(
    OpType type, const char* name, const std::vector<Argument>& arguments, const Tensors& outputs,
    Start start) {
  std::optional<c10::Device> device;
  for (const Argument& argument : arguments) {
    for (const at::Tensor& tensor : argument.tensors) {
      check_tensor(name, tensor, /*any_dtype=*/false);
      TORCH_CHECK(!device || *device == tensor.device(), name, ": tensors are on ",
                  device.value_or(tensor.device()), " and ", tensor.device(),
                  "; a process takes part with one device at a time");
      device = tensor.device();
    }
  }
  TORCH_CHECK(device, name, ": there is no tensor");
  return translated([&] {
    // In the host's order: the transport pairs the ranks' collectives by it.
    std::lock_guard lock(mutex_);
    Lanes& lanes = lanes_[device->index()];
    if (!lanes.collectives) lanes.collectives = &acquire_comm_stream(device->index());
    Stream& stream = *lanes.collectives;
    auto transfer = prepare(name, arguments, stream, stream, std::move(start));
    ++sequence_;
    submit(stream, std::make_unique<TransportWork>(name, std::move(transfer), Part::kWhole));
    return returned(type, stream, outputs, type == OpType::BARRIER, nullptr);
  });
}

c10::intrusive_ptr<c10d::Work> DistributedBackend::point_to_point(OpType type, const char* name,
                                                                  const Tensors& tensors,
                                                                  Access access, Start start) {
  TORCH_CHECK(tensors.size() == 1, name, " takes one tensor, not ", tensors.size());
  check_tensor(name, tensors[0], /*any_dtype=*/true);
  return translated([&] {
    std::lock_guard lock(mutex_);
    const int device = tensors[0].device().index();
    Lanes& lanes = lanes_[device];
    if (!lanes.begin) lanes.begin = &acquire_comm_stream(device);
    Stream& finish = acquire_comm_stream(device);
    auto transfer = prepare(name, {{tensors, access}}, *lanes.begin, finish, std::move(start));
    // Not through `submit`, which may make the host wait: for a send it might be for ever.
    auto queue = [&](Stream& stream, Part part) {
      auto work = std::make_unique<TransportWork>(name, transfer, part);
      work->site = submit_site();
      stream.submit(std::move(work));
    };
    queue(*lanes.begin, Part::kBegin);
    Event begun(/*timing=*/false);
    begun.record(*lanes.begin);
    submit_wait(finish, begun.mark());
    queue(finish, Part::kFinish);
    auto work = returned(type, finish, tensors, false, transfer);
    std::erase_if(unfinished_, [](const EventMark& mark) { return query(mark); });
    unfinished_.push_back(mark_of(finish));
    release_comm_stream(finish);
    return work;
  });
}

}  // namespace gapless::torch_device
