// What a wait takes for granted of its length: exits with 0 where all is as it should be.
#include "runtime/host_wait.h"

#include <cstdint>
#include <cstdio>

#include "runtime/work.h"

namespace {

int failures = 0;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  ++failures;
}

void history() {
  gapless::WaitHistory history;
  expect(history.shortest_ns() == 0, "nothing is known at first");
  for (int i = 0; i < 3; ++i) history.note(26'000'000);
  expect(history.shortest_ns() == 0, "three long waits are not enough");
  history.note(25'000'000);
  expect(history.shortest_ns() == 25'000'000, "the shortest of four");
  history.note(3'000);
  expect(history.shortest_ns() == 3'000, "one that was over at once counts");
  for (int i = 0; i < 3; ++i) history.note(26'000'000);
  expect(history.shortest_ns() == 3'000, "and is remembered for three more");
  history.note(26'000'000);
  expect(history.shortest_ns() == 26'000'000, "and then forgotten");
}

// A wait that is over before it begins is noted like any other.
void wait_at_once() {
  gapless::HostWait wait;
  for (int i = 0; i < 4; ++i) {
    int64_t first_asked_ns = 0;
    const auto after_a_while = [&] {
      if (first_asked_ns == 0) first_asked_ns = gapless::now_ns();
      return gapless::now_ns() - first_asked_ns > 1'000'000;
    };
    wait.until(after_a_while, nullptr);
  }
  expect(wait.expected_ns() > 0, "four waits that took a while are expected to");
  wait.until([] { return true; }, nullptr);
  expect(wait.expected_ns() < 20'000, "a short one after them is expected, too");
}

}  // namespace

int main() {
  history();
  wait_at_once();
  return failures == 0 ? 0 : 1;
}
