#include "torch/team_limit.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "torch/errors.h"
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

// The sizes of this stream's thread: first what the driver gave it, last what holds now.
std::vector<int>& sizes() {
  thread_local std::vector<int> sizes{TeamSize::now()};
  return sizes;
}

void cut(size_t depth) {
  if (sizes().size() <= depth) return;
  sizes().resize(depth);
  set_size(sizes().back());
}

}  // namespace

struct TeamLimit::Place {
  std::atomic<size_t> depth{0};  // of the sizes before the limit; 0: it is not in force
};

class TeamLimit::Begin final : public Work {
 public:
  Begin(std::shared_ptr<Place> place, int most)
      : Work(WorkKind::kWait, "team limit"), place_(std::move(place)), most_(most) {}

  void run(const RunContext&) override {
    // In a replay that failed before it came to the end, the limit is in force still.
    if (const size_t depth = place_->depth.exchange(0)) cut(depth);
    auto& all = sizes();
    place_->depth = all.size();
    all.push_back(most_ > 0 ? std::min(most_, all.back()) : all.front());
    set_size(all.back());
  }

 private:
  const std::shared_ptr<Place> place_;
  const int most_;
};

class TeamLimit::End final : public Work {
 public:
  explicit End(std::shared_ptr<Place> place)
      : Work(WorkKind::kWait, "end of team limit"), place_(std::move(place)) {}

  // Work that is skipped after a failure is destroyed in its turn all the same. What was captured
  // is destroyed with its graph, on any thread.
  ~End() override {
    if (!captured) lift();
  }

  void run(const RunContext&) override { lift(); }

 private:
  void lift() {
    if (const size_t depth = place_->depth.exchange(0)) cut(depth);
  }

  const std::shared_ptr<Place> place_;
};

TeamLimit::TeamLimit(Stream& stream, int most)
    : stream_(stream), capture_(stream.capturing()), place_(std::make_shared<Place>()) {
  stream_.submit(std::make_unique<Begin>(place_, most));
}

void TeamLimit::end() {
  if (stream_.capturing() != capture_) {
    translated([] {
      throw UsageError(
          "a capture has begun or ended within a limit of threads; begin and end the limit "
          "within the capture, or around it");
    });
  }
  stream_.submit(std::make_unique<End>(place_));
}

int TeamSize::now() { return runtime().get ? runtime().get() : 0; }

TeamSize::TeamSize(int size) : before_(now()) {
  if (size != before_) set_size(size);
}

TeamSize::~TeamSize() {
  if (now() != before_) set_size(before_);
}

namespace {

class ReadTeam final : public Work {
 public:
  explicit ReadTeam(std::shared_ptr<int> out)
      : Work(WorkKind::kWait, "read team size"), out_(std::move(out)) {}

  void run(const RunContext&) override { *out_ = TeamSize::now(); }

 private:
  const std::shared_ptr<int> out_;
};

}  // namespace

int team_size(Stream& stream) {
  auto size = std::make_shared<int>(0);
  stream.submit(std::make_unique<ReadTeam>(size));
  synchronize(stream, "team_size");
  return *size;
}

}  // namespace gapless::torch_device
