#include "torch/step_port.h"

#include <poll.h>
#include <pybind11/pybind11.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <torch/csrc/Exceptions.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/device.h"
#include "torch/errors.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  translated([&]() { throw UsageError(text); });
  __builtin_unreachable();
}

void check_signals() {
  pybind11::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw python_error();
}

iovec part(void* address, uint64_t bytes) { return {address, static_cast<size_t>(bytes)}; }

}  // namespace

// Sends when it is destroyed, which happens in the stream's order whatever became of the work: a
// step that was skipped is told, rather than waited for in vain.
class StepPort::SendResult final : public Work {
 public:
  SendResult(std::shared_ptr<const Socket> socket, MessageHeader header, const void* result,
             uint64_t bytes)
      : Work(WorkKind::kWait, "send result"),
        socket_(std::move(socket)),
        header_(header),
        result_(result),
        bytes_(bytes) {}

  ~SendResult() override {
    header_.sent_ns = now_ns();
    header_.kind = ran_ ? kResult : kSkipped;
    iovec parts[] = {part(&header_, sizeof(header_)), part(const_cast<void*>(result_), bytes_)};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = ran_ && bytes_ ? 2 : 1;
    // Where nobody reads any more, the process is about to be ended.
    while (sendmsg(socket_->descriptor, &message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
  }

  void run(const RunContext&) override { ran_ = true; }

 private:
  std::shared_ptr<const Socket> socket_;
  MessageHeader header_;
  const void* const result_;
  const uint64_t bytes_;
  bool ran_ = false;
};

StepPort::Socket::Socket(int of) : descriptor(dup(of)) {
  if (descriptor < 0) refuse(std::string("the socket cannot be used: ") + std::strerror(errno));
}

StepPort::Socket::~Socket() { close(descriptor); }

StepPort::StepPort(int socket, uint32_t rank, int device)
    : socket_(std::make_shared<const Socket>(socket)), rank_(rank), device_(device) {}

void StepPort::add_slot(Graph* graph, void* input, uint64_t input_bytes, const void* result,
                        uint64_t result_bytes) {
  slots_.push_back({graph, input, input_bytes, result, result_bytes});
}

uint32_t StepPort::receive() {
  Slot& slot = slots_[static_cast<size_t>(next_) % slots_.size()];
  Stream& stream = current_stream(device_);
  if (!stream.done(slot.place)) {
    // The slot is free when a message comes, as the sender keeps to the depth; only then is it
    // worth asking, and hardly ever does that have to wait.
    pollfd readable{socket_->descriptor, POLLIN, 0};
    while (poll(&readable, 1, -1) < 0 && errno == EINTR) check_signals();
    wait_for(stream, slot.place);
  }
  MessageHeader header;
  iovec parts[] = {part(&header, sizeof(header)), part(slot.input, slot.input_bytes)};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = slot.input_bytes ? 2 : 1;
  ssize_t bytes = 0;
  while ((bytes = recvmsg(socket_->descriptor, &message, 0)) < 0) {
    if (errno != EINTR) {
      refuse(std::string("no input can be received: ") + std::strerror(errno));
    }
    check_signals();
  }
  if (bytes == 0) return kClosed;
  if (static_cast<size_t>(bytes) < sizeof(header)) refuse("a message without a header came");
  if (header.kind != kStep) return header.kind;
  if (bytes != static_cast<ssize_t>(sizeof(header) + slot.input_bytes) ||
      (message.msg_flags & MSG_TRUNC)) {
    refuse("step " + std::to_string(header.step) + " came with an input of another size than the " +
           std::to_string(slot.input_bytes) + " bytes that it was captured with");
  }
  received_step_ = header.step;
  return kStep;
}

int64_t StepPort::submit() {
  if (received_step_ < 0) refuse("no input was received; call receive() before each submit()");
  const int64_t index = next_++ % static_cast<int64_t>(slots_.size());
  Slot& slot = slots_[static_cast<size_t>(index)];
  const int64_t step = std::exchange(received_step_, -1);
  const int64_t step_before = current_step();
  set_current_step(step);
  slot.graph->replay();
  MessageHeader header;
  header.rank = rank_;
  header.step = step;
  Stream& stream = current_stream(device_);
  slot.place =
      stream.submit(std::make_unique<SendResult>(socket_, header, slot.result, slot.result_bytes));
  set_current_step(step_before);
  return index;
}

}  // namespace gapless::torch_device
