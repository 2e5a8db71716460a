#include "torch/profiler.h"

// Kineto formats metadata with a library whose compiled part this extension does not link.
#define FMT_HEADER_ONLY
#include <c10/util/Exception.h>
#include <kineto/libkineto.h>
#include <kineto/output_base.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device.h"
#include "runtime/recorder.h"

namespace gapless::torch_device {

std::atomic<bool> g_profiling{false};

namespace {

using libkineto::ActivityType;

constexpr size_t kRecordsPerStream = size_t{1} << 20;

struct Submission {
  uint64_t operation = 0;  // Kineto's correlation id of the innermost operation; 0 outside any
  int32_t thread = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

std::mutex g_mutex;
std::map<std::pair<const Stream*, uint64_t>, Submission> g_submissions;
thread_local std::vector<uint64_t> t_operations;

int64_t realtime_minus_monotonic_ns() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec - now_ns();
}

uint64_t drain(std::vector<std::pair<const Stream*, Record>>* out) {
  uint64_t dropped = 0;
  for (int index = 0; initialized() && index < device_count(); ++index) {
    for (Stream* stream : device(index).streams()) {
      std::vector<Record> records;
      dropped += stream->records().drain(&records);
      for (const Record& record : records) out->emplace_back(stream, record);
    }
  }
  return dropped;
}

ActivityType type_of(WorkKind kind) {
  switch (kind) {
    case WorkKind::kCopyToDevice:
    case WorkKind::kCopyToHost:
    case WorkKind::kCopyOnDevice:
      return ActivityType::GPU_MEMCPY;
    default:
      return ActivityType::CONCURRENT_KERNEL;
  }
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override {
    if (recorder::is_on()) {
      problem_ =
          "the device's recorder is in use (gapless.profile or GAPLESS_RECORD), so that "
          "torch.profiler shows no activity of the device; use one of them at a time";
      TORCH_WARN(problem_);
      return;
    }
    {
      std::lock_guard lock(g_mutex);
      g_submissions.clear();
    }
    std::vector<std::pair<const Stream*, Record>> older;
    drain(&older);
    recorder::start(kRecordsPerStream);
    g_profiling = true;
    recording_ = true;
  }

  void stop() override {
    if (!recording_) return;
    recording_ = false;
    g_profiling = false;
    recorder::stop();
    if (const uint64_t dropped = drain(&records_)) {
      problem_ = std::to_string(dropped) + " works of the device were forgotten: more than " +
                 std::to_string(kRecordsPerStream) + " on one stream";
    }
    std::lock_guard lock(g_mutex);
    submissions_ = std::exchange(g_submissions, {});
    to_realtime_ns_ = realtime_minus_monotonic_ns();
  }

  std::vector<std::string> errors() override {
    return problem_.empty() ? std::vector<std::string>{} : std::vector<std::string>{problem_};
  }

  void processTrace(libkineto::ActivityLogger&) override {}

  void processTrace(libkineto::ActivityLogger& logger,
                    libkineto::getLinkedActivityCallback operation_of, int64_t start_ns,
                    int64_t end_ns) override {
    buffer_->span = libkineto::TraceSpan(start_ns, end_ns, "gapless");
    for (const auto& [stream, record] : records_) {
      // A wait is not work; the trace shows it as what it is, time in which the stream has none.
      if (record.kind == WorkKind::kWait) continue;
      const Submission submission = submission_of(stream, record);
      const auto* operation =
          submission.operation ? operation_of(static_cast<int32_t>(submission.operation)) : nullptr;
      auto& work = add(type_of(record.kind), record.name, record.start_ns, record.end_ns);
      work.device = stream->device();
      work.resource = stream->index();
      work.id = ++last_id_;
      work.linked = operation;
      work.flow.id = static_cast<uint32_t>(last_id_);
      work.flow.type = libkineto::kLinkAsyncCpuGpu;
      work.addMetadata("stream", stream->index());
      work.addMetadata("work", record.work);
      work.addMetadata("step", record.step);
      work.addMetadata("queued_ns", record.start_ns - record.submit_ns);
      if (submission.begin_ns) {
        auto& submit = add(ActivityType::PRIVATEUSE1_RUNTIME, "gapless submit", submission.begin_ns,
                           submission.end_ns);
        submit.device = getpid();
        submit.resource = submission.thread;
        submit.threadId = submission.thread;
        submit.id = last_id_;
        submit.linked = operation;
        submit.flow.id = static_cast<uint32_t>(last_id_);
        submit.flow.type = libkineto::kLinkAsyncCpuGpu;
        submit.flow.start = 1;
        submit.log(logger);
      }
      work.log(logger);
      streams_.insert(stream);
      devices_.insert(stream->device());
    }
    for (int index : devices_) {
      logger.handleDeviceInfo(
          {index, index + libkineto::kExceedMaxPid, "gapless", "gapless:" + std::to_string(index)},
          start_ns);
    }
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::vector<libkineto::ResourceInfo> infos;
    for (const Stream* stream : streams_) {
      infos.push_back({stream->index(), stream->index(), stream->device(),
                       "stream " + std::to_string(stream->index())});
    }
    return infos;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

  void pushCorrelationId(uint64_t id) override { t_operations.push_back(id); }
  void popCorrelationId() override {
    if (!t_operations.empty()) t_operations.pop_back();
  }

 private:
  Submission submission_of(const Stream* stream, const Record& record) const {
    const auto found = submissions_.find({stream, record.work});
    return found == submissions_.end() ? Submission{} : found->second;
  }

  libkineto::GenericTraceActivity& add(ActivityType type, const char* name, int64_t start_ns,
                                       int64_t end_ns) {
    buffer_->emplace_activity(buffer_->span, type, name);
    auto& activity = *buffer_->activities.back();
    activity.startTime = start_ns + to_realtime_ns_;
    activity.endTime = end_ns + to_realtime_ns_;
    return activity;
  }

  bool recording_ = false;
  std::string problem_;
  std::vector<std::pair<const Stream*, Record>> records_;
  std::map<std::pair<const Stream*, uint64_t>, Submission> submissions_;
  int64_t to_realtime_ns_ = 0;
  int32_t last_id_ = 0;
  std::set<const Stream*> streams_;
  std::set<int> devices_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ =
      std::make_unique<libkineto::CpuTraceBuffer>();
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return types_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& wanted, const libkineto::Config&) override {
    if (!wanted.contains(ActivityType::CONCURRENT_KERNEL)) return nullptr;
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& wanted,
      const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "gapless";
  const std::set<ActivityType> types_ = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                         ActivityType::PRIVATEUSE1_RUNTIME};
};

}  // namespace

void note_submission_slow(const Stream& stream, uint64_t place, int64_t begin_ns) {
  thread_local const auto thread = static_cast<int32_t>(syscall(SYS_gettid));
  const Submission submission{t_operations.empty() ? 0 : t_operations.back(), thread, begin_ns,
                              now_ns()};
  std::lock_guard lock(g_mutex);
  g_submissions.insert_or_assign({&stream, place}, submission);
}

void register_profiler() {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
}

}  // namespace gapless::torch_device
