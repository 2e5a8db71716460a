// What went wrong, and the exceptions that carry it to the host.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace gapless {

// A failure of one piece of work on a device, kept by its stream until the host asks.
struct Failure {
  std::string name;      // the operation
  std::string operands;  // dtypes and shapes, may be empty
  std::string site;      // where it was submitted, may be empty
  std::string message;
  int device = 0;
  int stream = 0;
  uint64_t work = 0;
  int64_t step = -1;
  uint64_t place = 0;        // in the order of the stream that keeps it
  uint64_t skipped = 0;      // later works of that stream that were not run
  std::string inherited_by;  // the stream that keeps it, where another one's work failed
  // Whether the host has heard of it; one for all the copies that other streams inherit.
  std::shared_ptr<std::atomic<bool>> reported = std::make_shared<std::atomic<bool>>(false);

  std::string text() const;
};

// One text for failures that one wait brought to light; those that are one are named once.
// Empty where there is none.
std::string report_of(const std::vector<std::shared_ptr<const Failure>>& failures);

// The failures that no wait has brought to light yet, and which are forgotten by this.
std::vector<std::string> take_unreported();

struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The caller asked for something that cannot be: a wait during capture, a device that is not there.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace gapless
