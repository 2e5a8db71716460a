#include "torch/team_limit.h"

#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

// Of PyTorch's own OpenMP and MKL, as in drivers/cpu/thread_team.cpp.
struct Runtime {
  int (*get)() = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  void (*set)(int) = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  int (*set_mkl)(int) = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT,
                                                             "MKL_Set_Num_Threads_Local"));
};

const Runtime& runtime() {
  static const Runtime found;
  return found;
}

void set_size(int size) {
  if (size == 0 || !runtime().set) return;
  runtime().set(size);
  if (runtime().set_mkl) runtime().set_mkl(size);
}

// What the driver gave this stream's thread. Kept here, not by who sets a limit: where a work fails
// in between, the limit's end is skipped, and the next one finds the right number all the same.
int& own_size() {
  thread_local int size = TeamSize::now();
  return size;
}

class SetTeam final : public Work {
 public:
  explicit SetTeam(int most) : Work(WorkKind::kWait, "team size"), most_(most) {}

  void run(const RunContext&) override {
    const int own = own_size();
    set_size(most_ > 0 ? std::min(most_, own) : own);
  }

 private:
  const int most_;
};

class ReadTeam final : public Work {
 public:
  explicit ReadTeam(std::shared_ptr<int> out)
      : Work(WorkKind::kWait, "read team size"), out_(std::move(out)) {}

  void run(const RunContext&) override { *out_ = TeamSize::now(); }

 private:
  const std::shared_ptr<int> out_;
};

}  // namespace

int TeamSize::now() { return runtime().get ? runtime().get() : 0; }

TeamSize::TeamSize(int size) : before_(now()) {
  if (size != before_) set_size(size);
}

TeamSize::~TeamSize() {
  if (now() != before_) set_size(before_);
}

void limit_team(Stream& stream, int most) { stream.submit(std::make_unique<SetTeam>(most)); }

int team_size(Stream& stream) {
  auto size = std::make_shared<int>(0);
  stream.submit(std::make_unique<ReadTeam>(size));
  synchronize(stream, "team_size");
  return *size;
}

}  // namespace gapless::torch_device
