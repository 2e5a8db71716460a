#include "runtime/graph.h"

#include <utility>

#include "runtime/device.h"

namespace gapless {
namespace {

class ReplayWork final : public Work {
 public:
  ReplayWork(std::shared_ptr<const GraphBody> body, RunContext context)
      : Work(WorkKind::kReplay, "graph replay"), body_(std::move(body)), context_(context) {}

  // In a driver's own time nothing is known of the works within: their events are reached at the
  // end.
  void ended(int64_t end_ns) override {
    if (!driver().work_end) return;
    for (const auto& work : body_->works) work->ended(end_ns);
  }

  WorkCost cost() const override {
    WorkCost total;
    for (const auto& work : body_->works) {
      const WorkCost cost = work->cost();
      total.operators += cost.operators;
      total.bytes += cost.bytes;
      total.flops += cost.flops;
    }
    return total;
  }

  void run(const RunContext& here) override {
    RunContext context = context_;
    context.device = here.device;
    context.stream = here.stream;
    for (const auto& work : body_->works) {
      try {
        work->run(context);
        // Events take the time at which the replay passes them.
        if (work->kind == WorkKind::kWait) work->ended(now_ns());
      } catch (const InheritedFailure&) {
        throw;
      } catch (const std::exception& error) {
        auto failure = std::make_shared<Failure>();
        failure->name = std::string(work->name) + " in a graph replay";
        failure->operands = work->operands();
        failure->site = *work->site ? work->site + std::string(" (captured there)") : site;
        failure->message = error.what();
        throw InheritedFailure{std::move(failure)};
      }
    }
  }

 private:
  std::shared_ptr<const GraphBody> body_;
  RunContext context_;
};

}  // namespace

uint64_t submit_replay(Stream& stream, std::shared_ptr<const GraphBody> body, RunContext context,
                       const char* site) {
  auto work = std::make_unique<ReplayWork>(std::move(body), context);
  work->site = site;
  return stream.submit(std::move(work));
}

}  // namespace gapless
