// Sleeping on a word of memory until another thread, or another process, rings it.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

namespace gapless::torch_device {

using FutexWord = std::atomic<uint32_t>;
// What the system sleeps on is a plain word.
static_assert(FutexWord::is_always_lock_free && sizeof(FutexWord) == 4);

// Not the private calls of the system: the word may be known to other processes at other addresses.
// Returns false where a signal ended the sleep.
inline bool futex_sleep(const FutexWord& word, uint32_t seen, const timespec* timeout) {
  return syscall(SYS_futex, &word, FUTEX_WAIT, seen, timeout, nullptr, 0) == 0 || errno != EINTR;
}

// Wakes all that sleep on the word, whose value was changed before.
inline void futex_wake(const FutexWord& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

inline void futex_ring(FutexWord& bell) {
  bell.fetch_add(1, std::memory_order_release);
  futex_wake(bell);
}

}  // namespace gapless::torch_device
