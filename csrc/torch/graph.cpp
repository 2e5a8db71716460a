#include "torch/graph.h"

#include <Python.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "torch/allocator.h"
#include "torch/errors.h"
#include "torch/generator.h"
#include "torch/profiler.h"
#include "torch/submit_site.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

// The exception that the calling thread's Python code is handling, by identity, and its type's
// name.
std::pair<const void*, std::string> handled_exception() {
  if (!Py_IsInitialized()) return {};
  pybind11::gil_scoped_acquire lock;
  PyObject* exception = PyErr_GetHandledException();
  if (!exception) return {};
  std::pair<const void*, std::string> handled{exception, Py_TYPE(exception)->tp_name};
  Py_DECREF(exception);
  return handled;
}

}  // namespace

Graph::~Graph() {
  try {
    reset();
  } catch (...) {  // a destructor has nobody to tell
  }
}

void Graph::capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode) {
  translated([&] {
    if (stream_) throw UsageError("this graph is being captured already");
    if (body_) throw UsageError("this graph holds a capture; call reset() before the next one");
    device_ = &device(current_device());
    Stream& stream = current_stream(device_->index());
    auto body = std::make_shared<CapturedBody>();
    body->pool = pool.first ? pool.first : device_->allocator().new_pool();
    device_->allocator().retain_pool(body->pool);
    try {
      stream.begin_capture(body);
    } catch (...) {
      device_->allocator().release_pool(body->pool);
      throw;
    }
    stream_ = &stream;
    capturing_ = std::move(body);
    handled_ = handled_exception().first;
    failed_.clear();
  });
}

void Graph::give_up(std::string why) {
  const uint64_t pool = capturing_->pool;
  capturing_.reset();
  device_->allocator().release_pool(pool);
  failed_ = std::move(why);
}

void Graph::capture_end() {
  translated([&] {
    if (!stream_) throw UsageError("capture_end without capture_begin");
    const auto [handled, type] = handled_exception();
    const bool unwinding = handled && handled != handled_;
    try {
      end_capture(*std::exchange(stream_, nullptr));
    } catch (const UsageError& error) {
      give_up(error.what());
      if (!unwinding) throw;  // otherwise there is an exception on its way that says more
    }
    if (!capturing_) return;
    if (unwinding) {
      give_up("an exception of type " + type + " ended it");
    } else {
      body_ = std::move(capturing_);
    }
  });
}

void Graph::replay() {
  translated([&] {
    if (!body_) {
      throw UsageError("this graph holds no capture" +
                       (failed_.empty() ? "; capture before replay"
                                        : ", since the last one failed: " + failed_));
    }
    Stream& stream = current_stream(device_->index());
    if (stream.capturing()) {
      throw UsageError("a graph cannot be replayed inside the capture of another one");
    }
    auto last = std::find_if(replayed_on_.begin(), replayed_on_.end(),
                             [&](const auto& entry) { return entry.first == &stream; });
    if (last == replayed_on_.end()) {
      keep_on(stream);
      last = replayed_on_.insert(last, {&stream, 0});
    }
    RunContext context;
    if (body_->rng_offsets > 0) {
      const auto index = static_cast<c10::DeviceIndex>(device_->index());
      const auto ticket = as_ours(default_generator(index)).take(body_->rng_offsets);
      context.rng_seed = ticket.seed;
      context.rng_offset = ticket.offset;
    }
    const int64_t begin_ns = submission_begins();
    last->second = submit_replay(stream, body_, context, traced_submit_site());
    note_submission(stream, last->second, begin_ns);
  });
}

void Graph::reset() {
  if (in_bad_fork()) return;
  if (stream_) {
    try {
      end_capture(*std::exchange(stream_, nullptr));
    } catch (const UsageError&) {  // it is given up either way
    }
    give_up("it was given up before its end");
  }
  if (!body_) return;
  // Replays in flight still read what is kept and write to the pool.
  for (const auto& entry : replayed_on_) wait_for(*entry.first, entry.second);
  replayed_on_.clear();
  const uint64_t pool = body_->pool;
  body_.reset();
  device_->allocator().release_pool(pool);
}

c10::MempoolId_t Graph::pool() const {
  TORCH_CHECK(body_ || capturing_, "this graph holds no capture, so it has no memory pool");
  return {(body_ ? body_ : capturing_)->pool, 0};
}

void Graph::debug_dump(const std::string& path) {
  TORCH_CHECK(body_, "this graph holds no capture");
  std::ofstream file(path);
  for (size_t i = 0; i < body_->works.size(); ++i) {
    file << i << '\t' << body_->works[i]->name << '\t' << body_->works[i]->operands() << '\n';
  }
  TORCH_CHECK(file.good(), "cannot write the graph to ", path);
}

void Graph::keep_on(Stream& stream) {
  for (const auto& entry : body_->kept) {
    const auto& data = entry.second.data_ptr();
    if (data.get_deleter() != &delete_block || !data.get_context()) continue;
    auto* block = static_cast<Block*>(data.get_context());
    device(block->stream->device()).allocator().record_use(block, &stream);
  }
}

void register_graphs() {
  at::GraphImplRegistry()->Register(
      c10::DeviceTypeName(c10::kPrivateUse1, /*lower_case=*/false),
      [](const at::GraphImplArgs&) -> std::unique_ptr<at::GraphImplInterface> {
        return std::make_unique<Graph>();
      });
}

}  // namespace gapless::torch_device
