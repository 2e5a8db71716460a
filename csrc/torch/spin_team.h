// Helpers of one thread that share a kernel's pieces with it, and stay awake between kernels.
//
// A decode step has a hundred matrix products with small kernels in between. A team that sleeps
// there is woken a hundred times, which takes as long as the products themselves; one that spins
// takes a core from the host. These helpers spin and yield: a host that has something to do on
// their core does it. Pieces are taken one by one, so that a helper that is away leaves them to the
// others.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "torch/futex.h"

namespace gapless::torch_device {

class SpinTeam {
 public:
  using Piece = void (*)(void* context, int64_t index);

  // With so many helpers, on the cores and of the priority of the calling thread.
  explicit SpinTeam(int helpers);
  ~SpinTeam();
  SpinTeam(const SpinTeam&) = delete;

  // Calls `piece` for all numbers below `count`, which has 32 bits, on the calling thread and the
  // helpers, and returns when all calls have. Pieces do not throw. One caller at a time.
  void run(int64_t count, Piece piece, void* context);

 private:
  void help();
  void sleep();

  // The number of pieces above, the next one below: what is taken by adding one is a piece of the
  // job that is there now, whichever that is, and nobody replaces a job of which a piece is left.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) Piece piece_ = nullptr;
  void* context_ = nullptr;
  std::atomic<int> asleep_{0};
  std::atomic<bool> stop_{false};
  FutexWord bell_{0};
  std::vector<std::thread> helpers_;
};

// Calls `piece(index)` for all indexes below `count` with the team of the calling thread, of so
// many threads at most; it is made at the first call.
void run_pieces(int64_t count, int threads, SpinTeam::Piece piece, void* context);

template <typename F>
void share_pieces(int64_t count, int threads, F piece) {
  run_pieces(
      count, threads, [](void* context, int64_t index) { (*static_cast<F*>(context))(index); },
      &piece);
}

}  // namespace gapless::torch_device
