// An ordered queue of work on one device, run by one native thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "drivers/driver.h"
#include "runtime/failure.h"
#include "runtime/host_wait.h"
#include "runtime/recorder.h"
#include "runtime/work.h"

namespace gapless {

struct GraphBody;

// A host thread that waits for a stream; kept while the watchdog is on.
struct HostWaiter {
  long thread = 0;  // as the system numbers it
  uint64_t place = 0;
  int64_t since_ns = 0;
  const char* site = "";  // lives as long as the process
};

class Stream {
 public:
  Stream(const gapless_driver* driver, int device, int index, int priority);
  ~Stream();

  int device() const { return device_; }
  int index() const { return index_; }
  int priority() const { return priority_; }
  RecordRing& records() { return records_; }

  // Queues the work, or appends it to the graph that is being captured. Starts the thread on first
  // use, so that a process may fork before. Returns the work's place in the stream's order.
  uint64_t submit(std::unique_ptr<Work> work);

  uint64_t submitted() const { return submitted_.load(std::memory_order_acquire); }
  bool done(uint64_t place) const { return completed_.load(std::memory_order_acquire) >= place; }

  // Blocks the calling thread until the work at `place` is done, or the stream was stopped. The
  // stream's thread wakes it: for threads that are as much in a hurry, such as another stream's.
  void wait(uint64_t place);
  // The same for the host, which asks instead of being woken: see host_wait.h.
  // `tick`, where given, is called about every 50 ms and may throw (a signal arrived). `site` is
  // for the watchdog: where the host waits.
  void wait_on_host(uint64_t place, void (*tick)() = nullptr, const char* site = "");

  // When the device was done with a recent place, in a driver's own time; 0 where that is long ago
  // or the device's time is the host's.
  int64_t end_ns_of(uint64_t place) const;

  // Hands the failure over and forgets it, where one happened at or before `place`. What had been
  // submitted by now is not run any more: it may depend on the failed work.
  std::shared_ptr<const Failure> take_failure(uint64_t place);
  // Whether there is a failure that the host has not taken.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // The failure because of which the work at `place` failed or was not run, reported or not: what a
  // stream that waits for that place has to inherit. Not one of the first `taken` that the host had
  // taken when it marked the place: it knew.
  std::shared_ptr<const Failure> failure_at(uint64_t place, uint64_t taken) const;
  // How many failures the host has taken.
  uint64_t failures_taken() const { return failures_taken_.load(std::memory_order_acquire); }
  // The failure that no wait took, whether its work's place was waited for or not.
  std::shared_ptr<const Failure> untaken_failure() const;

  // Captures go through runtime/graph.h, which knows all the streams that take part.
  void begin_capture(std::shared_ptr<GraphBody> body);
  std::shared_ptr<GraphBody> end_capture();
  GraphBody* capturing() const { return capture_.load(std::memory_order_acquire); }
  // The graph that is being captured and how much of it came from this stream.
  std::pair<std::shared_ptr<GraphBody>, uint64_t> capture_mark() const;
  // Something was captured here that is no work: a wait inside the capture.
  void note_captured();

  // Calls `look` with the running work and the time since when it runs, while the watchdog is on.
  // The work stays while it is looked at. False where none runs.
  bool inspect(const std::function<void(const Work&, int64_t since_ns)>& look);
  std::vector<HostWaiter> host_waiters() const;

  // Ends the thread after the work that it is in; the rest of the queue is dropped. False where
  // that work did not end within the time.
  bool stop(int64_t timeout_ms);

 private:
  void loop();
  void run_one(Work* work);
  void begin(const Work& work, int64_t ready_ns);
  void fail(const Work& work, std::shared_ptr<Failure> failure);
  void publish(uint64_t place);
  void await_inspection(const Work* work);

  const gapless_driver* const driver_;
  const int device_;
  const int index_;
  const int priority_;

  mutable std::mutex queue_mutex_;
  std::condition_variable queue_ready_;
  Work* head_ = nullptr;
  Work* tail_ = nullptr;
  bool sleeping_ = false;
  bool started_ = false;
  std::atomic<bool> stopping_{false};
  bool ended_ = false;
  std::thread thread_;
  std::atomic<uint64_t> submitted_{0};

  // One wake-up per wait: the stream's thread looks at one number after each work and notifies only
  // when the nearest waiter's place is reached.
  std::atomic<uint64_t> completed_{0};
  std::atomic<uint64_t> wake_at_{UINT64_MAX};
  HostWait host_wait_;
  std::mutex wait_mutex_;
  std::condition_variable completed_changed_;

  mutable std::mutex failure_mutex_;
  std::shared_ptr<Failure> failure_;
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> skip_until_{0};
  // Reported failures with the last place that was not run because of each, newest last, and which
  // one of all it is.
  struct Reported {
    std::shared_ptr<const Failure> failure;
    uint64_t last = 0;
    uint64_t number = 0;
  };
  std::deque<Reported> reported_;
  std::atomic<uint64_t> failures_taken_{0};
  std::atomic<bool> ever_failed_{false};

  std::shared_ptr<GraphBody> capture_owner_;
  std::atomic<GraphBody*> capture_{nullptr};
  uint64_t captured_ = 0;

  // The watchdog's: a pointer to the running work, and which one is being looked at and may not go.
  std::atomic<const Work*> running_{nullptr};
  std::atomic<const Work*> inspected_{nullptr};
  std::atomic<int64_t> running_since_ns_{0};
  mutable std::mutex waiters_mutex_;
  std::vector<HostWaiter> waiters_;

  // The last places' ends, kept where the driver has a time of its own.
  struct End {
    uint64_t place = 0;
    int64_t end_ns = 0;
  };
  mutable std::mutex ends_mutex_;
  std::vector<End> ends_;

  RecordRing records_;
};

// Called on each stream's thread before its first work, so that the layer above can prepare it.
void set_thread_start_hook(void (*hook)());

// Thrown by a work whose failure is another one's: a wait on a stream that failed.
struct InheritedFailure {
  std::shared_ptr<const Failure> failure;
};

}  // namespace gapless
