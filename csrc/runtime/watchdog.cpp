#include "runtime/watchdog.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device.h"

namespace gapless::watchdog {

std::atomic<bool> g_on{false};

namespace {

constexpr double kLongest_s = 1e6;

struct Running {
  Stream* stream = nullptr;
  uint64_t place = 0;
  int64_t since_ns = 0;
  Awaited awaited;
  std::string name;  // the texts only where it is over its time
  std::string site;
  std::string operands;
  int64_t step = -1;
};

struct Reported {
  uint64_t place = 0;
  int64_t since_ns = 0;
  int64_t next_ns = 0;  // after how long it is reported again
  std::string what;
};

std::string seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ns) / 1e9);
  return text;
}

std::string name_of(const Stream& stream) {
  return "gapless:" + std::to_string(stream.device()) + ", stream " +
         std::to_string(stream.index());
}

std::string queued_behind(const Stream& stream, uint64_t place) {
  const uint64_t last = stream.submitted();
  return std::to_string(last > place ? last - place : 0) + " work(s) queued behind it";
}

// In one piece, between other threads' lines.
void print(std::string text) {
  text += "\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
}

class Watchdog {
 public:
  int64_t limit_ns = 0;

  void start() {
    std::lock_guard lock(mutex_);
    if (thread_.joinable() || ended_) return;
    thread_ = std::thread([this] { loop(); });
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  std::atomic<uint64_t> reports{0};

 private:
  void loop() {
    pthread_setname_np(pthread_self(), "gapless:watch");
    const auto period =
        std::chrono::nanoseconds(std::clamp<int64_t>(limit_ns / 8, 1'000'000, 1'000'000'000));
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, period, [this] { return ended_; })) {
      lock.unlock();
      look();
      lock.lock();
    }
    lock.unlock();
    look();  // what ended just before the end is said, too
  }

  void look() {
    const int64_t now = now_ns();
    std::vector<Stream*> streams;
    for (int index = 0; index < device_count(); ++index) {
      for (Stream* stream : device(index).streams()) streams.push_back(stream);
    }
    for (auto at = reported_.begin(); at != reported_.end();) {
      const auto& [stream, entry] = *at;
      if (stream->done(entry.place)) {
        print("gapless watchdog: " + entry.what + " ended after all, after about " +
              seconds(now - entry.since_ns));
        at = reported_.erase(at);
      } else {
        ++at;
      }
    }
    std::map<Stream*, Running> running;
    for (Stream* stream : streams) {
      stream->inspect([&](const Work& work, int64_t since_ns) {
        Running& seen = running[stream];
        seen = {stream, work.id, since_ns, work.awaited(), {}, {}, {}, work.step};
        if (now - since_ns < limit_ns) return;
        seen.name = work.name;
        seen.site = work.site;
        seen.operands = work.operands();
      });
    }
    auto is_over = [&](const Running& seen) { return now - seen.since_ns >= limit_ns; };
    for (const auto& [stream, seen] : running) {
      if (!is_over(seen)) continue;
      // A wait is told with the work that it waits for, where that is over its time itself.
      if (seen.awaited.stream) {
        auto found = running.find(seen.awaited.stream);
        if (found != running.end() && is_over(found->second)) continue;
      }
      Reported& entry = reported_[stream];
      if (entry.place != seen.place) {
        entry = {seen.place, seen.since_ns, limit_ns,
                 "work " + std::to_string(seen.place) + " on " + name_of(*stream) + " (" +
                     seen.name + ")"};
        reports.fetch_add(1);
      }
      if (now - seen.since_ns < entry.next_ns) continue;
      while (entry.next_ns <= now - seen.since_ns) entry.next_ns *= 2;
      print(report(seen, entry.what, running, now));
    }
  }

  static std::string report(const Running& stuck, const std::string& what,
                            const std::map<Stream*, Running>& running, int64_t now) {
    std::string text =
        "gapless watchdog: " + what + " has not ended for " + seconds(now - stuck.since_ns);
    if (!stuck.operands.empty()) text += "\n  operands: " + stuck.operands;
    text += stuck.site.empty() ? "\n  submitted outside Python" : "\n  submitted at " + stuck.site;
    if (stuck.step >= 0) text += " in step " + std::to_string(stuck.step);
    if (stuck.awaited.stream) {
      text += "\n  it waits for work " + std::to_string(stuck.awaited.place) + " on " +
              name_of(*stuck.awaited.stream) + ", which goes on";
    }
    text += "\n  " + queued_behind(*stuck.stream, stuck.place);
    // Streams that wait for it, and those that wait for them.
    std::set<Stream*> held{stuck.stream};
    for (bool more = true; more;) {
      more = false;
      for (const auto& [stream, seen] : running) {
        if (held.count(stream) || !held.count(seen.awaited.stream)) continue;
        held.insert(stream);
        more = true;
        text += "\n  " + name_of(*stream) + " waits for " + name_of(*seen.awaited.stream) +
                " since " + seconds(now - seen.since_ns) + ", with " +
                queued_behind(*stream, seen.place);
      }
    }
    for (Stream* stream : held) {
      for (const HostWaiter& waiter : stream->host_waiters()) {
        if (stream->done(waiter.place)) continue;
        text += "\n  host thread " + std::to_string(waiter.thread) + " waits for " +
                name_of(*stream) + " since " + seconds(now - waiter.since_ns);
        if (*waiter.site) text += ", at " + std::string(waiter.site);
      }
    }
    return text;
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
  bool ended_ = false;
  std::map<Stream*, Reported> reported_;  // the thread's own
};

// Never destroyed: streams' threads may outlive static destructors.
Watchdog& instance() {
  static auto* const watchdog = new Watchdog;
  return *watchdog;
}

}  // namespace

void configure() {
  const char* text = std::getenv("GAPLESS_WATCHDOG_S");
  if (!text || !*text) return;
  char* end = nullptr;
  const double limit_s = std::strtod(text, &end);
  if (end == text || *end || !std::isfinite(limit_s) || limit_s < 0.001 || limit_s > kLongest_s) {
    throw UsageError(std::string("GAPLESS_WATCHDOG_S=") + text +
                     ": give seconds, from 0.001 to 1000000, such as 30; leave it unset for none");
  }
  instance().limit_ns = static_cast<int64_t>(limit_s * 1e9);
  g_on = true;
}

void start() {
  if (is_on()) instance().start();
}

void stop() {
  if (is_on()) instance().stop();
}

uint64_t reports() { return instance().reports.load(); }

}  // namespace gapless::watchdog
