#include "drivers/cpu/thread_team.h"

#include <dlfcn.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gapless::cpu {

void place_thread(const std::vector<int>& cores, int nice) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int core : cores) CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);  // the team inherits it
  setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), nice);
  // The team belongs to PyTorch's own OpenMP and MKL: linking another copy would set the thread
  // count of a runtime that no kernel uses, so they are looked up where torch loaded them.
  const int threads = static_cast<int>(cores.size());
  if (auto set_size = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) {
    set_size(threads);
  }
  if (auto set_size =
          reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "MKL_Set_Num_Threads_Local"))) {
    set_size(threads);
  }
}

}  // namespace gapless::cpu
