// A team's pieces are each called once, before the call returns, whatever the helpers are doing:
// exits with 0 where all is as it should be.
#include "torch/spin_team.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

using gapless::torch_device::share_pieces;

namespace {

std::atomic<int> failures{0};

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  ++failures;
}

// Jobs of random sizes, one after the other; pauses let the helpers fall asleep, or nearly.
void jobs(int threads, unsigned seed, int rounds) {
  std::mt19937 random(seed);
  std::vector<int> calls;
  for (int round = 0; round < rounds; ++round) {
    const auto count = static_cast<int64_t>(random() % 70);
    calls.assign(static_cast<size_t>(count), 0);
    volatile unsigned work = random() % 300;
    share_pieces(count, threads, [&](int64_t index) {
      for (unsigned i = 0; i < work; ++i) {
      }
      ++calls[static_cast<size_t>(index)];
    });
    bool all_once = true;
    for (const int each : calls) all_once = all_once && each == 1;
    expect(all_once, "a piece was not called once");
    if (random() % 200 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 1500));
    }
  }
}

// Several threads, each with a team of its own, whose size changes.
void callers() {
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 3; ++number) {
    threads.emplace_back([number] {
      for (const int size : {2, 4, 1, 3}) jobs(size, number, 2000);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A child of fork has none of its parent's helpers.
void child() {
  jobs(3, 7, 10);
  const pid_t process = fork();
  if (process == 0) {
    jobs(3, 8, 10);
    _exit(failures == 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(process, &status, 0);
  expect(status == 0, "the child of a fork failed");
}

}  // namespace

int main(int argc, char**) {
  callers();
  if (argc == 1) child();  // not under a sanitizer, which has threads of its own
  return failures == 0 ? 0 : 1;
}
