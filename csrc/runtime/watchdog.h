// The watchdog: says on stderr which work does not end, and what waits for it.
//
// On where GAPLESS_WATCHDOG_S is set. It costs each work two stores and a look at the clock, and a
// thread of its own that looks at every stream now and then.
#pragma once

#include <atomic>
#include <cstdint>

namespace gapless::watchdog {

extern std::atomic<bool> g_on;
inline bool is_on() { return g_on.load(std::memory_order_relaxed); }

// Reads GAPLESS_WATCHDOG_S; before any stream's thread starts. Throws UsageError for a bad value.
void configure();
// Starts the thread where the watchdog is on and does not run yet: with the first stream's thread,
// since a process may fork before.
void start();
void stop();
// Works reported so far, each counted once however often it was.
uint64_t reports();

}  // namespace gapless::watchdog
