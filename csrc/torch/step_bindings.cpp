#include "torch/step_bindings.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "torch/packed_layout.h"
#include "torch/step_port.h"

namespace gapless::torch_device {
namespace {

namespace py = pybind11;

// Without pybind11's own, which takes microseconds where caches are cold.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil() { PyEval_RestoreThread(thread_); }
  WithoutGil(const WithoutGil&) = delete;

 private:
  PyThreadState* const thread_;
};

// The caller's end of an exchange: what AsyncExecutor does with tensors for many workers at once.
class StepCaller {
 public:
  StepCaller(std::shared_ptr<StepExchange> exchange, PackedLayout inputs, PackedLayout results)
      : exchange_(std::move(exchange)), inputs_(std::move(inputs)), results_(std::move(results)) {}

  // One input for all workers or one for each: a tensor, or a sequence of tensors. False, with
  // nothing posted, where an input is not plainly what the layout says.
  bool post(const py::list& inputs) {
    uint8_t* to = exchange_->next_inputs();
    for (const py::handle input : inputs) {
      if (!take(input.ptr()) || !inputs_.pack(tensors_, to)) return false;
      to += exchange_->input_bytes();
    }
    tensors_.clear();
    exchange_->post(inputs.size() == 1 && exchange_->workers() != 1);
    return true;
  }

  // The same of what is packed already, by rank, one behind the other.
  void post_packed(const py::list& inputs) {
    uint8_t* to = exchange_->next_inputs();
    for (const py::handle input : inputs) {
      char* data = nullptr;
      Py_ssize_t size = 0;
      if (PyBytes_AsStringAndSize(input.ptr(), &data, &size) != 0) throw py::error_already_set();
      TORCH_CHECK_VALUE(static_cast<uint64_t>(size) == exchange_->input_bytes(), "an input of ",
                        size, " bytes was posted, and the steps take ", exchange_->input_bytes());
      std::memcpy(to, data, static_cast<size_t>(size));
      to += size;
    }
    exchange_->post(inputs.size() == 1 && exchange_->workers() != 1);
  }

  int wait(int64_t step, int64_t timeout_ms) const {
    WithoutGil unlocked;
    return static_cast<int>(exchange_->await(step, timeout_ms));
  }

  // A step's rows by rank, copied, uint8 [workers, row bytes]: the slot is another step's soon.
  at::Tensor rows(int64_t step) const {
    at::Tensor copy =
        at::empty({exchange_->workers(), static_cast<int64_t>(exchange_->row_bytes())}, at::kByte);
    std::memcpy(copy.mutable_data_ptr(), exchange_->rows(step), copy.nbytes());
    return copy;
  }

  // The results in such rows by rank: a tensor, or a tuple of several.
  py::list results(const at::Tensor& rows) const {
    py::list by_rank(exchange_->workers());
    int64_t first_byte = static_cast<int64_t>(StepExchange::kRowHeader);
    for (uint32_t rank = 0; rank < exchange_->workers(); ++rank) {
      by_rank[rank] = result(rows.storage(), first_byte);
      first_byte += static_cast<int64_t>(exchange_->row_bytes());
    }
    return by_rank;
  }

 private:
  bool take(PyObject* input) {
    tensors_.clear();
    if (THPVariable_Check(input)) {
      tensors_.push_back(THPVariable_Unpack(input));
      return true;
    }
    if (!PyTuple_Check(input) && !PyList_Check(input)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(input); ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(input, i);
      if (!THPVariable_Check(item)) return false;
      tensors_.push_back(THPVariable_Unpack(item));
    }
    return true;
  }

  py::object result(const c10::Storage& storage, int64_t first_byte) const {
    const auto& parts = results_.parts();
    if (parts.size() == 1) return py::cast(PackedLayout::view(parts[0], storage, first_byte));
    py::tuple all(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      all[i] = py::cast(PackedLayout::view(parts[i], storage, first_byte));
    }
    return all;
  }

  const std::shared_ptr<StepExchange> exchange_;
  const PackedLayout inputs_;
  const PackedLayout results_;
  std::vector<at::Tensor> tensors_;  // of one input; kept for its memory
};

using PythonParts = std::vector<std::tuple<int64_t, py::object, std::vector<int64_t>>>;

PackedLayout layout_of(const PythonParts& parts) {
  std::vector<PackedLayout::Part> made;
  for (const auto& [first_byte, dtype, sizes] : parts) {
    TORCH_CHECK_TYPE(THPDtype_Check(dtype.ptr()), "a part is first byte, dtype and shape");
    made.push_back({first_byte, reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type, sizes});
  }
  return PackedLayout(std::move(made));
}

// Input and result are pinned bytes; the graph's copies read and write them.
void add_slot(StepPort& port, Graph* graph, const at::Tensor& input, const at::Tensor& result) {
  for (const at::Tensor* each : {&input, &result}) {
    TORCH_CHECK_VALUE(each->device().is_cpu() && each->is_contiguous() && each->is_pinned(),
                      "a slot takes contiguous tensors in pinned memory");
  }
  port.add_slot(graph, input.data_ptr(), input.nbytes(), result.const_data_ptr(), result.nbytes());
}

uint32_t receive(StepPort& port) {
  WithoutGil unlocked;
  return port.receive();
}

// Runs steps until something else than a step comes, and returns its kind. `prepare`, where it is
// not None, is called for each with its slot's arguments.
uint32_t run_steps(StepPort& port, const py::object& prepare, const std::vector<py::tuple>& slots) {
  while (true) {
    const uint32_t kind = receive(port);
    if (kind != StepExchange::kStep) return kind;
    if (!prepare.is_none()) {
      const py::tuple& arguments = slots[port.received_slot()];
      PyObject* returned = PyObject_CallObject(prepare.ptr(), arguments.ptr());
      if (!returned) throw py::error_already_set();
      Py_DECREF(returned);
    }
    port.submit();
  }
}

}  // namespace

void bind_steps(py::module_& m) {
  py::class_<StepExchange, std::shared_ptr<StepExchange>>(m, "StepExchange")
      .def(py::init<int, uint32_t, uint32_t, uint64_t, uint64_t>(), py::arg("file"),
           py::arg("workers"), py::arg("slots"), py::arg("input_bytes"), py::arg("result_bytes"))
      .def_static("file_bytes", &StepExchange::file_bytes, py::arg("workers"), py::arg("slots"),
                  py::arg("input_bytes"), py::arg("result_bytes"))
      .def("call", &StepExchange::call, py::arg("ranks"))
      .def("report", &StepExchange::report);
  py::class_<StepCaller>(m, "StepCaller")
      .def(py::init([](std::shared_ptr<StepExchange> exchange, const PythonParts& inputs,
                       const PythonParts& results) {
             return std::make_unique<StepCaller>(std::move(exchange), layout_of(inputs),
                                                 layout_of(results));
           }),
           py::arg("exchange"), py::arg("inputs"), py::arg("results"))
      .def("post", &StepCaller::post, py::arg("inputs"))
      .def("post_packed", &StepCaller::post_packed, py::arg("inputs"))
      .def("wait", &StepCaller::wait, py::arg("step"), py::arg("timeout_ms"))
      .def("rows", &StepCaller::rows, py::arg("step"))
      .def("results", &StepCaller::results, py::arg("rows"));
  py::class_<StepPort>(m, "StepPort")
      .def(py::init<std::shared_ptr<StepExchange>, uint32_t, int>(), py::arg("exchange"),
           py::arg("rank"), py::arg("device"))
      .def("add_slot", &add_slot, py::keep_alive<1, 2>(), py::keep_alive<1, 3>(),
           py::keep_alive<1, 4>(), py::arg("graph"), py::arg("input"), py::arg("result"))
      .def("receive", &receive)
      .def("submit", &StepPort::submit)
      .def("run", &run_steps, py::arg("prepare"), py::arg("slots"))
      .def_property_readonly("received", &StepPort::received);
}

}  // namespace gapless::torch_device
