#include "torch/completion_signal.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "torch/errors.h"

namespace gapless::torch_device {

// Signals when it is destroyed: that happens in the stream's order whatever became of the work,
// also where it was skipped after a failure, and nobody waits in vain.
class CompletionSignal::Mark final : public Work {
 public:
  explicit Mark(std::shared_ptr<const File> file)
      : Work(WorkKind::kWait, "completion signal"), file_(std::move(file)) {}

  ~Mark() override {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = write(file_->descriptor, &one, sizeof(one));
  }

  void run(const RunContext&) override {}

 private:
  std::shared_ptr<const File> file_;
};

CompletionSignal::File::~File() { close(descriptor); }

CompletionSignal::CompletionSignal() {
  const int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0) {
    translated([] {
      throw UsageError(std::string("the system gives this process no file to signal with: ") +
                       std::strerror(errno) + "; raise the limit (ulimit -n)");
    });
  }
  file_ = std::make_shared<const File>(descriptor);
}

int CompletionSignal::fileno() const { return file_->descriptor; }

void CompletionSignal::submit(Stream& stream) {
  if (stream.capturing()) {
    translated([] {
      throw UsageError("a signal to the host cannot be captured; submit it after the replay");
    });
  }
  stream.submit(std::make_unique<Mark>(file_));
}

}  // namespace gapless::torch_device
