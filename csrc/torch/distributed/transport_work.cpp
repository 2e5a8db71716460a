#include "torch/distributed/transport_work.h"

#include <utility>

#include "runtime/failure.h"

namespace gapless::torch_device {
namespace {

template <typename F>
void reported(F&& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    throw DeviceError(error.what_without_backtrace());
  }
}

}  // namespace

Transfer::Transfer(c10::intrusive_ptr<c10d::Backend> transport, std::unique_ptr<Operands> operands,
                   Start start)
    : transport_(std::move(transport)), operands_(std::move(operands)), start_(std::move(start)) {}

void Transfer::begin() {
  reported([&] { running_ = start_(*transport_, operands_->open()); });
}

void Transfer::finish() {
  reported([&] {
    running_->wait();
    operands_->close();
    if (running_->retrieveOpType() == c10d::OpType::RECVANYSOURCE) source_ = running_->sourceRank();
    running_.reset();
  });
}

TransportWork::TransportWork(const char* name, std::shared_ptr<Transfer> transfer, Part part)
    : Work(part == Part::kBegin ? WorkKind::kWait : WorkKind::kOp, name),
      transfer_(std::move(transfer)),
      part_(part) {}

void TransportWork::run(const RunContext&) {
  if (part_ != Part::kFinish) transfer_->begin();
  if (part_ != Part::kBegin) transfer_->finish();
}

}  // namespace gapless::torch_device
