#include "torch/wait.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <utility>
#include <vector>

#include "runtime/watchdog.h"
#include "torch/errors.h"
#include "torch/submit_site.h"

namespace gapless::torch_device {
namespace {

void wait_unlocked(Stream& stream, uint64_t place) {
  if (stream.done(place)) return;
  const char* site = watchdog::is_on() ? submit_site() : "";
  if (Py_IsInitialized() && PyGILState_Check()) {
    pybind11::gil_scoped_release unlock;
    stream.wait_on_host(place, check_signals, site);
  } else {
    stream.wait_on_host(place, check_signals, site);
  }
}

void report(std::shared_ptr<const Failure> failure) {
  if (failure) throw DeviceError(failure->text());
}

}  // namespace

void check_signals() {
  if (!Py_IsInitialized()) return;
  pybind11::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw python_error();
}

void refuse_in_capture(Stream& stream, const char* what) {
  if (!stream.capturing()) return;
  translated([&] {
    throw UsageError(
        std::string(what) +
        " needs the host to wait for the device, which cannot be captured in a graph: nothing is "
        "executed during capture. Keep the value on the device, or do this outside the capture");
  });
}

void synchronize(Stream& stream, const char* what) {
  translated([&] {
    refuse_in_capture(stream, what);
    const uint64_t place = stream.submitted();
    wait_unlocked(stream, place);
    report(stream.take_failure(place));
  });
}

void synchronize(Device& device) {
  translated([&] {
    std::vector<std::pair<Stream*, uint64_t>> until;
    for (Stream* stream : device.streams()) {
      refuse_in_capture(*stream, "synchronize");
      until.emplace_back(stream, stream->submitted());
    }
    for (const auto& [stream, place] : until) wait_unlocked(*stream, place);
    // Only now: a stream may have inherited another one's failure, which is one failure to the
    // host.
    std::vector<std::shared_ptr<const Failure>> failures;
    for (const auto& [stream, place] : until) {
      if (auto failure = stream->take_failure(place)) failures.push_back(std::move(failure));
    }
    if (!failures.empty()) throw DeviceError(report_of(failures));
  });
}

void synchronize(const EventMark& mark) {
  if (!mark.stream) return;
  translated([&] {
    if (mark.in_capture) {
      throw UsageError(
          "this event was recorded while a graph was captured, where nothing is executed; record "
          "it "
          "after the replay instead");
    }
    wait_unlocked(*mark.stream, mark.place);
    report(mark.stream->take_failure(mark.place));
  });
}

void wait_for(Stream& stream) { wait_unlocked(stream, stream.submitted()); }

void wait_for(Stream& stream, uint64_t place) { wait_unlocked(stream, place); }

void wait_for_device(Device& device) {
  for (Stream* stream : device.streams()) wait_for(*stream);
}

}  // namespace gapless::torch_device
