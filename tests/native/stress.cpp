// Drives the runtime from several host threads at once: queues, events, failures, graphs, memory.
// Built with ThreadSanitizer and with AddressSanitizer by `make sanitize`; knows no PyTorch.
//
// Every piece of work checks what the order promises, so that a lost or repeated work, a wait that
// did not wait, or memory handed out too early is found even without a sanitizer.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "runtime/device.h"
#include "runtime/event.h"
#include "runtime/graph.h"
#include "runtime/watchdog.h"

namespace {

using namespace gapless;

std::atomic<uint64_t> g_runs{0};
std::atomic<uint64_t> g_failures{0};

#define REQUIRE(condition)                                                           \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                  \
    }                                                                                \
  } while (0)

template <typename F>
class Call final : public Work {
 public:
  explicit Call(F call) : Work(WorkKind::kOp, "call"), call_(std::move(call)) {}
  void run(const RunContext&) override {
    g_runs.fetch_add(1, std::memory_order_relaxed);
    call_();
  }

 private:
  F call_;
};

template <typename F>
uint64_t submit(Stream& stream, F call) {
  return stream.submit(std::make_unique<Call<F>>(std::move(call)));
}

// Work in order: each sees the counter where the one before left it.
void check_order(Stream& stream, std::mt19937& random) {
  auto counter = std::make_shared<int>(0);
  const int count = static_cast<int>(random() % 200);
  for (int i = 0; i < count; ++i) {
    submit(stream, [counter, i] { REQUIRE((*counter)++ == i); });
  }
  stream.wait_on_host(stream.submitted());
  REQUIRE(*counter == count);
}

// One stream writes, an event, another one reads: never before.
void check_event(Stream& writer, Stream& reader) {
  auto cell = std::make_shared<int>(0);
  Event event(false);
  submit(writer, [cell] { *cell = 7; });
  event.record(writer);
  submit_wait(reader, event.mark());
  event.record(reader);  // re-armed at once
  submit(reader, [cell] { REQUIRE(*cell == 7); });
  reader.wait_on_host(reader.submitted());
}

// One event, recorded again and again by its owner while other threads wait for whichever recording
// they find. A place that was marked is never reached before what was submitted ahead of it.
struct SharedEvent {
  Event event{false};
  std::atomic<uint64_t> recorded{0};
  std::atomic<uint64_t> reached{0};
};

void check_rearmed_event(Stream& stream, SharedEvent& shared, bool owner) {
  if (owner) {
    for (int i = 0; i < 20; ++i) {
      submit(stream, [&shared] { shared.reached.fetch_add(1, std::memory_order_release); });
      shared.event.record(stream);
      shared.recorded.fetch_add(1, std::memory_order_release);
    }
  } else {
    const uint64_t recorded = shared.recorded.load(std::memory_order_acquire);
    submit_wait(stream, shared.event.mark());
    submit(stream, [&shared, recorded] {
      REQUIRE(shared.reached.load(std::memory_order_acquire) >= recorded);
    });
  }
  stream.wait_on_host(stream.submitted());
}

// A failure is reported once; what follows it does not run.
void check_failure(Stream& stream) {
  auto after = std::make_shared<bool>(false);
  submit(stream, [] { throw DeviceError("injected"); });
  submit(stream, [after] { *after = true; });
  const uint64_t place = stream.submitted();
  stream.wait_on_host(place);
  const auto failure = stream.take_failure(place);
  REQUIRE(failure && failure->message == "injected");
  REQUIRE(!*after);
  REQUIRE(!stream.take_failure(stream.submitted()));
  g_failures.fetch_add(1, std::memory_order_relaxed);
}

void check_graph(Stream& stream, std::mt19937& random) {
  auto counter = std::make_shared<int>(0);
  auto body = std::make_shared<GraphBody>();
  stream.begin_capture(body);
  for (int i = 0; i < 10; ++i) submit(stream, [counter] { ++*counter; });
  stream.end_capture();
  const int replays = static_cast<int>(random() % 20);
  for (int i = 0; i < replays; ++i) submit_replay(stream, body, RunContext{}, "");
  body.reset();  // the replays in flight keep what they need
  stream.wait_on_host(stream.submitted());
  REQUIRE(*counter == 10 * replays);
}

// A failure that another stream inherits is one failure; streams that do not depend go on.
void check_inherited_failure(Stream& stream, Stream& waits, Stream& goes_on) {
  auto ran = std::make_shared<std::atomic<int>>(0);
  submit(stream, [] { throw DeviceError("inherited"); });
  Event event(false);
  event.record(stream);
  submit_wait(waits, event.mark());
  submit(waits, [ran] { ran->fetch_add(100); });
  submit(goes_on, [ran] { ran->fetch_add(1); });
  for (Stream* each : {&stream, &waits, &goes_on}) each->wait_on_host(each->submitted());
  REQUIRE(ran->load() == 1);
  const auto first = stream.take_failure(stream.submitted());
  const auto second = waits.take_failure(waits.submitted());
  REQUIRE(first && second && first->reported == second->reported);
  REQUIRE(report_of({first, second}) == first->text());
  REQUIRE(!goes_on.take_failure(goes_on.submitted()));
  g_failures.fetch_add(1, std::memory_order_relaxed);
}

// A graph that is captured on two streams and replayed on a third, of several threads.
void check_forked_graph(Stream& first, Stream& second, Stream& replayed_on) {
  auto counter = std::make_shared<int>(0);
  auto body = std::make_shared<GraphBody>();
  Event fork(false), join(false);
  first.begin_capture(body);
  submit(first, [counter] { REQUIRE((*counter)++ % 3 == 0); });
  fork.record(first);
  submit_wait(second, fork.mark());
  submit(second, [counter] { REQUIRE((*counter)++ % 3 == 1); });
  join.record(second);
  submit_wait(first, join.mark());
  submit(first, [counter] { REQUIRE((*counter)++ % 3 == 2); });
  end_capture(first);
  REQUIRE(!first.capturing() && !second.capturing());
  for (int i = 0; i < 5; ++i) submit_replay(replayed_on, body, RunContext{}, "");
  body.reset();
  Event done(false);
  done.record(replayed_on);
  submit_wait(second, done.mark());
  submit(second, [counter] { REQUIRE(*counter == 15); });
  second.wait_on_host(second.submitted());
}

// Blocks of a graph's pool are handed out in its captures alone, and no earlier than they are free.
void check_private_pool(Device& device, Stream& owner, Stream& other) {
  Allocator& allocator = device.allocator();
  const uint64_t pool = allocator.new_pool();
  allocator.retain_pool(pool);
  auto body = std::make_shared<GraphBody>();
  body->pool = pool;
  owner.begin_capture(body);
  Block* inside = allocator.allocate(4096, &owner);
  allocator.record_use(inside, &other);
  end_capture(owner);
  REQUIRE(inside->pool->id == pool);
  Block* outside = allocator.allocate(4096, &owner);
  REQUIRE(outside->pool->id == 0);
  submit(other, [] {});
  allocator.free(inside);
  allocator.free(outside);
  allocator.release_pool(pool);
}

// The watchdog tells of work that does not end, and reads it while others run.
void check_watchdog(Stream& stream, Stream& waits) {
  auto open = std::make_shared<std::atomic<bool>>(false);
  const uint64_t before = watchdog::reports();
  submit(stream, [open] {
    while (!open->load()) std::this_thread::yield();
  });
  Event event(false);
  event.record(stream);
  submit_wait(waits, event.mark());
  std::thread host([&waits] { waits.wait_on_host(waits.submitted()); });
  while (watchdog::reports() == before) std::this_thread::yield();
  open->store(true);
  host.join();
}

// A block that is freed while another stream still reads it is not handed out before.
void check_memory(Device& device, Stream& owner, Stream& other) {
  constexpr int kWords = 256;
  Block* block = device.allocator().allocate(kWords * sizeof(int), &owner);
  int* words = static_cast<int*>(block->address);
  submit(owner, [words] {
    for (int i = 0; i < kWords; ++i) words[i] = i;
  });
  Event event(false);
  event.record(owner);
  submit_wait(other, event.mark());
  device.allocator().record_use(block, &other);
  submit(other, [words] {
    for (int i = 0; i < kWords; ++i) REQUIRE(words[i] == i);
  });
  device.allocator().free(block);
  Block* next = device.allocator().allocate(kWords * sizeof(int), &owner);
  int* next_words = static_cast<int*>(next->address);
  submit(owner, [next_words] {
    for (int i = 0; i < kWords; ++i) next_words[i] = -1;
  });
  device.allocator().free(next);
  other.wait_on_host(other.submitted());
}

// Streams that one thread has to itself, and one that all share.
void worker(int index, int64_t until_ns, SharedEvent& event) {
  std::mt19937 random(static_cast<unsigned>(index));
  Device& on = device(index % device_count());
  Stream& first = on.pooled_stream(0);
  Stream& second = on.pooled_stream(0);
  Stream& third = on.pooled_stream(0);
  Stream& elsewhere = device((index + 1) % device_count()).pooled_stream(0);
  Stream& shared = on.default_stream();
  if (index == 0) check_watchdog(first, second);
  while (now_ns() < until_ns) {
    switch (random() % 11) {
      case 0:
        check_order(first, random);
        break;
      case 1:
        check_event(first, second);
        break;
      case 2:
        check_failure(first);
        break;
      case 3:
        check_graph(second, random);
        break;
      case 4:
        check_memory(on, first, second);
        break;
      case 5:
        check_rearmed_event(first, event, index == 0);
        break;
      case 6:
        check_inherited_failure(first, elsewhere, second);
        break;
      case 7:
        check_forked_graph(first, second, third);
        break;
      case 8:
        check_private_pool(on, first, second);
        break;
      case 9:
        check_event(first, elsewhere);
        break;
      default:
        for (int i = 0; i < 50; ++i) submit(shared, [] {});
        shared.wait_on_host(shared.submitted());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  setenv("GAPLESS_WATCHDOG_S", "0.5", 0);
  setenv("GAPLESS_NUM_DEVICES", "2", 0);
  const int64_t seconds = argc > 1 ? std::atoll(argv[1]) : 5;
  const int64_t until_ns = now_ns() + seconds * 1'000'000'000;
  recorder::start(1000);
  SharedEvent event;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(worker, i, until_ns, std::ref(event));
  std::vector<Record> records;
  while (now_ns() < until_ns) {  // the recorder is drained meanwhile
    records.clear();
    for (int i = 0; i < device_count(); ++i) {
      for (Stream* stream : device(i).streams()) stream->records().drain(&records);
    }
    std::this_thread::yield();
  }
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < device_count(); ++i) {
    device(i).allocator().empty_cache();
    REQUIRE(device(i).allocator().stats().allocations.all.current == 0);
    REQUIRE(device(i).allocator().stats().reserved_bytes.all.current == 0);
  }
  REQUIRE(take_unreported().empty());
  // Work in flight at the end is dropped, not run into the teardown.
  for (int i = 0; i < 1000; ++i) submit(device(0).default_stream(), [] {});
  REQUIRE(shutdown(10'000));
  REQUIRE(watchdog::reports() > 0);
  std::printf("%d devices, %llu works, %llu failures, each reported once\n", device_count(),
              static_cast<unsigned long long>(g_runs.load()),
              static_cast<unsigned long long>(g_failures.load()));
  REQUIRE(g_runs.load() > 0);
  return 0;
}
