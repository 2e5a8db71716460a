#include "torch/recycled.h"

#include <atomic>
#include <new>

namespace gapless::torch_device::recycled {
namespace {

struct Free {
  Free* next;
};

// Who gives back pushes one; who takes takes all, so that no list is ever popped by two.
std::atomic<Free*> g_given_back{nullptr};

// What is left of it belongs to the thread, which hands it on when it ends.
struct Taken {
  Free* first = nullptr;
  ~Taken() {
    while (first) {
      Free* next = first->next;
      give_back(first);
      first = next;
    }
  }
};

thread_local Taken t_taken;

}  // namespace

void* take(size_t bytes) {
  Free*& first = t_taken.first;
  if (!first) first = g_given_back.exchange(nullptr, std::memory_order_acquire);
  if (!first) return ::operator new(bytes);
  Free* memory = first;
  first = memory->next;
  return memory;
}

void give_back(void* memory) {
  auto* free = static_cast<Free*>(memory);
  free->next = g_given_back.load(std::memory_order_relaxed);
  while (!g_given_back.compare_exchange_weak(free->next, free, std::memory_order_release,
                                             std::memory_order_relaxed)) {
  }
}

}  // namespace gapless::torch_device::recycled
