// A file that becomes readable when the device has reached a place in a stream.
#pragma once

#include <memory>

#include "runtime/stream.h"

namespace gapless::torch_device {

// For a host thread that waits for the device and for something else at the same time, such as a
// message: it is woken once, by whichever comes first. Waiting for the device alone is cheaper for
// the device without it: see runtime/host_wait.h.
class CompletionSignal {
 public:
  CompletionSignal();

  // An eventfd; reading it gives how many signals were reached since, and does not block.
  int fileno() const;
  // Makes the file readable when the stream is done with all that was submitted to it by now,
  // whether that ran or was skipped because of a failure. Throws UsageError in a capture.
  void submit(Stream& stream);

 private:
  struct File {
    explicit File(int descriptor) : descriptor(descriptor) {}
    ~File();
    File(const File&) = delete;
    const int descriptor;
  };
  class Mark;

  // Shared with what is queued, which may outlive the signal.
  std::shared_ptr<const File> file_;
};

}  // namespace gapless::torch_device
