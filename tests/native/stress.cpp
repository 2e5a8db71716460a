// Drives the runtime from several host threads at once: queues, events, failures, graphs, memory.
// Built with ThreadSanitizer and with AddressSanitizer by `make sanitize`; knows no PyTorch.
//
// Every piece of work checks what the order promises, so that a lost or repeated work, a wait that
// did not wait, or memory handed out too early is found even without a sanitizer.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "runtime/device.h"
#include "runtime/event.h"
#include "runtime/graph.h"

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
void worker(int index, int64_t until_ns) {
  std::mt19937 random(static_cast<unsigned>(index));
  Device& on = device(0);
  Stream& first = on.pooled_stream(0);
  Stream& second = on.pooled_stream(0);
  Stream& shared = on.default_stream();
  while (now_ns() < until_ns) {
    switch (random() % 6) {
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
      default:
        for (int i = 0; i < 50; ++i) submit(shared, [] {});
        shared.wait_on_host(shared.submitted());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t seconds = argc > 1 ? std::atoll(argv[1]) : 5;
  const int64_t until_ns = now_ns() + seconds * 1'000'000'000;
  recorder::start(1000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(worker, i, until_ns);
  std::vector<Record> records;
  while (now_ns() < until_ns) {  // the recorder is drained meanwhile
    records.clear();
    for (Stream* stream : device(0).streams()) stream->records().drain(&records);
    std::this_thread::yield();
  }
  for (auto& thread : threads) thread.join();
  device(0).allocator().empty_cache();
  REQUIRE(device(0).allocator().stats().allocations.current == 0);
  // Work in flight at the end is dropped, not run into the teardown.
  for (int i = 0; i < 1000; ++i) submit(device(0).default_stream(), [] {});
  REQUIRE(shutdown(10'000));
  std::printf("%llu works, %llu failures, each reported once\n",
              static_cast<unsigned long long>(g_runs.load()),
              static_cast<unsigned long long>(g_failures.load()));
  REQUIRE(g_runs.load() > 0);
  return 0;
}
