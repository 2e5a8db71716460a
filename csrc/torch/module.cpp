// The Python module gapless._C: what gapless.device needs beside PyTorch's own interfaces.

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/Event.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>
#include <optional>
#include <unordered_map>

#include "drivers/cpu/cores.h"
#include "runtime/device.h"
#include "runtime/driver_choice.h"
#include "runtime/recorder.h"
#include "runtime/watchdog.h"
#include "torch/avx2.h"
#include "torch/completion_signal.h"
#include "torch/departures.h"
#include "torch/distributed/bindings.h"
#include "torch/errors.h"
#include "torch/fallback.h"
#include "torch/generator.h"
#include "torch/graph.h"
#include "torch/profiler.h"
#include "torch/program.h"
#include "torch/step_bindings.h"
#include "torch/team_limit.h"
#include "torch/wait.h"

namespace gapless::torch_device {
namespace {

namespace py = pybind11;

// On each stream's thread, before its first work.
void prepare_thread() {
  // PyTorch sets a thread's team size when it first asks; that must not come after the driver's.
  at::get_num_threads();
  // Kernels run below autograd for the thread's whole life.
  new at::AutoDispatchBelowADInplaceOrView;
  c10::GradMode::set_enabled(false);
}

py::tuple core_plan() {
  const auto plan = cpu::plan_cores();
  return py::make_tuple(plan.device_cores, plan.host_cores, plan.reason);
}

py::dict properties(int index) {
  return translated([&] {
    const auto& from = device(index).properties();
    py::dict out;
    out["driver"] = driver().name;
    out["name"] = from.name;
    out["total_memory_bytes"] = from.total_memory_bytes;
    out["cores"] = from.cores;
    out["memory_is_host_addressable"] = from.memory_access == GAPLESS_MEMORY_SHARED;
    return out;
  });
}

// (int64[n, 9] of device, stream, work, step, name, kind, submit, start, end; names; dropped)
py::tuple drain_records() {
  std::vector<int64_t> cells;
  std::vector<std::string> names;
  std::unordered_map<const char*, int64_t> name_ids;
  uint64_t dropped = 0;
  for (int index = 0; initialized() && index < gapless::device_count(); ++index) {
    for (Stream* stream : device(index).streams()) {
      std::vector<Record> records;
      dropped += stream->records().drain(&records);
      for (const Record& record : records) {
        auto [entry, is_new] =
            name_ids.try_emplace(record.name, static_cast<int64_t>(names.size()));
        if (is_new) names.emplace_back(record.name);
        cells.insert(cells.end(), {index, stream->index(), static_cast<int64_t>(record.work),
                                   record.step, entry->second, static_cast<int64_t>(record.kind),
                                   record.submit_ns, record.start_ns, record.end_ns});
      }
    }
  }
  auto table = at::empty({static_cast<int64_t>(cells.size()) / 9, 9}, at::kLong);
  if (!cells.empty()) {
    std::memcpy(table.mutable_data_ptr(), cells.data(), cells.size() * sizeof(int64_t));
  }
  return py::make_tuple(table, names, dropped);
}

void capture_begin(Graph& graph, std::optional<c10::MempoolId_t> pool) {
  graph.capture_begin(pool.value_or(c10::MempoolId_t{0, 0}), at::GraphCaptureMode::Default);
}

// A replay, the event after it and the signal where there is one, as one callable without
// arguments: a step has hardly any other host work, and after a wait each layer of a call has to be
// fetched from memory.
struct BoundReplay {
  py::object graph_object;  // keep all alive
  py::object event_object;
  py::object signal_object;
  Graph* graph;
  c10::Event* event;
  CompletionSignal* signal;
  c10::Device device;
};

constexpr char kBoundReplay[] = "gapless.bound_replay";

PyObject* call_bound_replay(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  auto* bound = static_cast<BoundReplay*>(PyCapsule_GetPointer(self, kBoundReplay));
  bound->graph->replay();
  bound->event->record(c10::impl::getDeviceGuardImpl(c10::kPrivateUse1)->getStream(bound->device));
  if (bound->signal) bound->signal->submit(current_stream(bound->device.index()));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

py::object bind_replay(py::object graph, py::object event, py::object signal) {
  static PyMethodDef method{"replay", call_bound_replay, METH_NOARGS,
                            "Replay the graph on the current stream and record the event there."};
  if (!THPEvent_Check(event.ptr())) throw py::type_error("bind_replay: expected a torch.Event");
  auto* bound = new BoundReplay{
      graph,
      event,
      signal,
      graph.cast<Graph*>(),
      &reinterpret_cast<THPEvent*>(event.ptr())->event,
      signal.is_none() ? nullptr : signal.cast<CompletionSignal*>(),
      c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(current_device()))};
  const py::capsule capsule(bound, kBoundReplay, [](PyObject* self) {
    delete static_cast<BoundReplay*>(PyCapsule_GetPointer(self, kBoundReplay));
  });
  return py::reinterpret_steal<py::object>(PyCFunction_New(&method, capsule.ptr()));
}

std::vector<std::tuple<std::string, std::string, uint64_t>> list_departures() {
  std::vector<std::tuple<std::string, std::string, uint64_t>> rows;
  for (const auto& [key, count] : departures()) rows.emplace_back(key.first, key.second, count);
  return rows;
}

py::object default_generator_object(int index) {
  return py::reinterpret_steal<py::object>(
      THPGenerator_initDefaultGenerator(default_generator(static_cast<c10::DeviceIndex>(index))));
}

}  // namespace
}  // namespace gapless::torch_device

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace gapless;
  namespace py = pybind11;
  using namespace gapless::torch_device;
  c10::register_privateuse1_backend("gapless");
  register_wrapped_operators();
  register_graphs();
  register_profiler();
  set_thread_start_hook(prepare_thread);

  m.def("init", [] { translated([] { driver(); }); });
  m.def("device_count", [] {
    return translated([] {
      driver();
      return gapless::device_count();
    });
  });
  m.def("is_initialized", &initialized);
  m.def("is_in_bad_fork", &in_bad_fork);
  m.def("shutdown", &gapless::shutdown, py::call_guard<py::gil_scoped_release>());
  m.def("take_unreported_failures", &take_unreported);
  m.def("watchdog_reports", &watchdog::reports);
  m.def("core_plan", &core_plan);
  py::class_<Program, std::shared_ptr<Program>>(m, "Program")
      .def(py::init<const std::string&, const std::string&>(), py::arg("path"), py::arg("name"),
           py::call_guard<py::gil_scoped_release>())
      .def("launch", &Program::launch, py::arg("operands"), py::arg("written"),
           py::call_guard<py::gil_scoped_release>());
  m.def("properties", &properties);
  m.def("default_generator", &default_generator_object);
  m.def("set_step", &set_current_step);
  m.def("recorder_start", &recorder::start);
  m.def("recorder_stop", &recorder::stop);
  m.def("recorder_is_on", &recorder::is_on);
  m.def("recorder_drain", &drain_records);
  py::class_<Graph>(m, "Graph")
      .def(py::init<>())
      .def("_capture_begin", &capture_begin)
      .def("capture_end", &Graph::capture_end)
      .def("replay", &Graph::replay)
      .def("bind_replay", &bind_replay, py::arg("event"), py::arg("signal") = py::none())
      .def("reset", &Graph::reset)
      .def("pool", &Graph::pool)
      .def("debug_dump", &Graph::debug_dump);
  py::class_<CompletionSignal>(m, "CompletionSignal")
      .def(py::init<>())
      .def("fileno", &CompletionSignal::fileno)
      .def("submit", [](CompletionSignal& signal, int device) {
        translated([&] { signal.submit(current_stream(device)); });
      });
  py::class_<TeamLimit>(m, "TeamLimit")
      .def(py::init([](int device, int most) {
             return std::make_unique<TeamLimit>(current_stream(device), most);
           }),
           py::arg("device"), py::arg("most"))
      .def("end", &TeamLimit::end);
  m.def("has_avx2", &has_avx2);
  m.def("team_size", [](int device) { return team_size(current_stream(device)); });
  bind_steps(m);
  bind_distributed(m);
  m.def("queue_operator", &queue_operator, py::arg("name"));
  m.def("departures", &list_departures);
  m.def("departure_changes", &departure_changes);
  m.def("staged_operators", &staged);
  m.def("announce_driver", &announce_driver);
  m.def("reset_departures", &reset_departures);
}
