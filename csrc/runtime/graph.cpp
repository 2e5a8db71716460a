#include "runtime/graph.h"

#include <algorithm>
#include <atomic>
#include <string>
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

  // Where it is: a replay that does not end hangs in one of its works.
  std::string operands() const override {
    const size_t at = at_.load(std::memory_order_relaxed);
    if (at >= body_->works.size()) return {};
    const Work& work = *body_->works[at];
    return "at work " + std::to_string(at + 1) + " of " + std::to_string(body_->works.size()) +
           ", " + work.name + " (" + work.operands() + ")" +
           (*work.site ? std::string(", captured at ") + work.site : "");
  }

  WorkCost cost() const override { return body_->cost; }

  void run(const RunContext& here) override {
    RunContext context = context_;
    context.device = here.device;
    context.stream = here.stream;
    for (const auto& work : body_->works) {
      at_.store(static_cast<size_t>(&work - body_->works.data()), std::memory_order_relaxed);
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
  std::atomic<size_t> at_{0};
};

// Once per capture: asking every work takes longer than replaying a short graph.
WorkCost total_cost(const GraphBody& body) {
  WorkCost total;
  for (const auto& work : body.works) {
    const WorkCost cost = work->cost();
    total.operators += cost.operators;
    total.bytes += cost.bytes;
    total.flops += cost.flops;
  }
  return total;
}

}  // namespace

uint64_t submit_replay(Stream& stream, std::shared_ptr<const GraphBody> body, RunContext context,
                       const char* site) {
  auto work = std::make_unique<ReplayWork>(std::move(body), context);
  work->site = site;
  return stream.submit(std::move(work));
}

void take_part(Stream& stream, Stream& marked, const std::shared_ptr<GraphBody>& body,
               uint64_t captured) {
  if (!body || marked.capturing() != body.get()) {
    throw UsageError(
        "this event was recorded while a graph was captured, which has ended; nothing was executed "
        "there. Record it again after a replay");
  }
  if (stream.device() != marked.device()) {
    throw UsageError(
        "a graph is captured on one device: gapless:" + std::to_string(stream.device()) +
        " cannot take part in a capture on gapless:" + std::to_string(marked.device()));
  }
  GraphBody* own = stream.capturing();
  if (own && own != body.get()) {
    throw UsageError("this event belongs to the capture of another graph than the stream does");
  }
  if (own) {
    stream.note_captured();  // the wait itself: who waits for this stream waits for that one, too
  } else {
    stream.begin_capture(body);
    body->branches.push_back({&stream, 0});
    stream.note_captured();
  }
  for (Branch& branch : body->branches) {
    if (branch.stream == &marked) branch.joined = std::max(branch.joined, captured);
  }
}

void end_capture(Stream& origin) {
  const auto body = origin.end_capture();
  if (!body) return;
  std::string open;
  for (const Branch& branch : body->branches) {
    const uint64_t captured = branch.stream->capture_mark().second;
    branch.stream->end_capture();
    if (branch.joined < captured) {
      open += (open.empty() ? "" : ", ") + std::to_string(branch.stream->index());
    }
  }
  body->branches.clear();
  body->cost = total_cost(*body);
  if (open.empty()) return;
  throw UsageError("the capture ended while stream " + open +
                   " of gapless:" + std::to_string(origin.device()) +
                   " still took part in it; record an event there after its last work, and let the "
                   "stream that the capture began on wait for it");
}

}  // namespace gapless
