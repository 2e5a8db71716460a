// A place in a stream's order, with the time at which it was reached where timing is on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "runtime/stream.h"

namespace gapless {

// Recording again makes a new mark; whoever took the old one keeps it, so an event may be re-armed
// while somebody still waits for its previous recording.
struct EventMark {
  Stream* stream = nullptr;  // nullptr: never recorded, which counts as done
  uint64_t place = 0;
  uint64_t failures_taken = 0;  // of the stream, when this was marked
  bool in_capture = false;
  std::weak_ptr<GraphBody> capture;  // of which graph, and how much of it the stream had captured
  uint64_t captured = 0;
  std::shared_ptr<std::atomic<int64_t>> reached_ns;  // set where timing is on
};

// What has been submitted to the stream by now, without timing and outside captures.
inline EventMark mark_of(Stream& stream) {
  EventMark mark;
  mark.stream = &stream;
  mark.place = stream.submitted();
  mark.failures_taken = stream.failures_taken();
  return mark;
}

class Event {
 public:
  explicit Event(bool timing) : timing_(timing) {}

  // Marks what has been submitted to the stream by now. Costs the device nothing without timing.
  void record(Stream& stream);
  EventMark mark() const;
  bool timing() const { return timing_; }

 private:
  const bool timing_;
  mutable std::mutex mutex_;
  EventMark mark_;
};

bool query(const EventMark& mark);

// Makes the stream wait, on the device, until the mark is reached. A failure before it is
// inherited. Where the mark was made in a capture, the stream takes part in that capture from now
// on. `site` is where this was asked for.
void submit_wait(Stream& stream, const EventMark& mark, const char* site = "");

// Milliseconds between two marks. Throws UsageError without timing or before both are reached.
double elapsed_ms(const EventMark& start, const EventMark& end);

}  // namespace gapless
