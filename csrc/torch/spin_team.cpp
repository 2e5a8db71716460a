#include "torch/spin_team.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <memory>

namespace gapless::torch_device {
namespace {

// From the last piece on; longer than what lies between two products of a step.
constexpr int64_t kAwakeNs = 1'000'000;
constexpr int kSpinsPerYield = 64;
constexpr int kShift = 32;

int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool has_pieces(uint64_t ticket) { return static_cast<uint32_t>(ticket) < (ticket >> kShift); }

}  // namespace

SpinTeam::SpinTeam(int helpers) {
  // Signals are for the threads that Python knows.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (int i = 0; i < helpers; ++i) {
    helpers_.emplace_back([this] { help(); });
    pthread_setname_np(helpers_.back().native_handle(), "gapless-team");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

SpinTeam::~SpinTeam() {
  stop_.store(true, std::memory_order_seq_cst);
  futex_ring(bell_);
  for (std::thread& helper : helpers_) helper.join();
}

void SpinTeam::run(int64_t count, Piece piece, void* context) {
  piece_ = piece;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  // In one order with `asleep_`: either a helper sees the job before it sleeps, or it is seen.
  ticket_.store(static_cast<uint64_t>(count) << kShift, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst) > 0) futex_ring(bell_);
  int64_t mine = 0;
  for (;;) {
    const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    if (!has_pieces(ticket)) break;
    piece(context, static_cast<uint32_t>(ticket));
    ++mine;
  }
  for (int spins = 1; done_.load(std::memory_order_acquire) + mine < count; ++spins) {
    pause();
    if (spins % kSpinsPerYield == 0) sched_yield();
  }
}

void SpinTeam::help() {
  int64_t last_ns = now_ns();
  for (int spins = 1;; ++spins) {
    if (has_pieces(ticket_.load(std::memory_order_acquire))) {
      const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
      if (has_pieces(ticket)) {
        piece_(context_, static_cast<uint32_t>(ticket));
        done_.fetch_add(1, std::memory_order_release);
        spins = 0;
        continue;
      }
    }
    if (stop_.load(std::memory_order_relaxed)) return;
    pause();
    if (spins == 1) last_ns = now_ns();
    if (spins % kSpinsPerYield != 0) continue;
    sched_yield();
    if (now_ns() - last_ns < kAwakeNs) continue;
    sleep();
    spins = 0;
  }
}

// Returns when there may be a job.
void SpinTeam::sleep() {
  asleep_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t seen = bell_.load(std::memory_order_seq_cst);
  if (!has_pieces(ticket_.load(std::memory_order_seq_cst)) &&
      !stop_.load(std::memory_order_seq_cst)) {
    futex_sleep(bell_, seen, nullptr);
  }
  asleep_.fetch_sub(1, std::memory_order_seq_cst);
}

void run_pieces(int64_t count, int threads, SpinTeam::Piece piece, void* context) {
  struct Mine {
    std::unique_ptr<SpinTeam> team;
    int threads = 0;
    pid_t process = 0;
  };
  thread_local Mine mine;
  if (threads <= 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) piece(context, i);
    return;
  }
  if (mine.threads != threads || mine.process != getpid()) {
    // In a child of fork its helpers are not there, and cannot be waited for.
    if (mine.process != getpid()) static_cast<void>(mine.team.release());
    mine.team = std::make_unique<SpinTeam>(threads - 1);
    mine.threads = threads;
    mine.process = getpid();
  }
  mine.team->run(count, piece, context);
}

}  // namespace gapless::torch_device
