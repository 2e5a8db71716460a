#include "torch/submit_site.h"

#include <Python.h>
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#define GAPLESS_READS_FRAMES 1
// The interpreter's frame is read without its lock, see below; there is no public way to.
#define Py_BUILD_CORE
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif
#include <frameobject.h>
#include <pybind11/pybind11.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <unordered_map>

#include "torch/interned.h"

namespace gapless::torch_device {
namespace {

constexpr int kTracedCallers = 12;
constexpr size_t kRemembered = 8192;

std::string line_of(PyCodeObject* code, int instruction) {
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  const char* name = PyUnicode_AsUTF8(code->co_name);
  return std::string(file ? file : "?") + ":" +
         std::to_string(PyCode_Addr2Line(code, instruction)) + " in " + (name ? name : "?");
}

// With the lock, the whole stack.
std::string traced() {
  pybind11::gil_scoped_acquire lock;
  std::string text;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  for (int depth = 0; frame && depth < kTracedCallers; ++depth) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (depth) text += "\n    called from ";
    text += line_of(code, PyFrame_GetLasti(frame));
    Py_DECREF(code);
    PyFrameObject* caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  Py_XDECREF(frame);
  return text;
}

struct Place {
  const PyCodeObject* code;
  int instruction;
  bool operator==(const Place&) const = default;
};

struct PlaceHash {
  size_t operator()(const Place& place) const {
    return std::hash<const void*>{}(place.code) * 31 + static_cast<size_t>(place.instruction);
  }
};

struct Known {
  const PyObject* file;  // with the first line, tells whether the code object is still the same one
  int first_line;
  bool in_torch;
  const char* text;
};

// Whether the code is PyTorch's own, which says less of a program than the line that called it.
bool is_in_torch(const PyCodeObject* code) {
  static const std::string folder = [] {
    PyObject* torch = PyImport_AddModule("torch");  // borrowed
    PyObject* file = torch ? PyObject_GetAttrString(torch, "__file__") : nullptr;
    const char* text = file && PyUnicode_Check(file) ? PyUnicode_AsUTF8(file) : nullptr;
    std::string path = text ? text : "";
    Py_XDECREF(file);
    PyErr_Clear();
    return path.substr(0, path.rfind('/') + 1);
  }();
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  return file && !folder.empty() && std::string_view(file).starts_with(folder);
}

// Without the lock, which PyTorch has let go of by the time an operator is dispatched: taking it
// back could wait for another thread's turn. The frame is the calling thread's own and stands still
// while the thread is in here, and it keeps its code object alive; nothing is counted or changed.
// Only the text of a place seen for the first time takes the lock.
const char* innermost() {
#ifdef GAPLESS_READS_FRAMES
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (!state || !state->cframe || !state->cframe->current_frame) return "";
  const _PyInterpreterFrame* frame = state->cframe->current_frame;
  thread_local std::unordered_map<Place, Known, PlaceHash> known;
  const char* innermost = "";
  for (; frame; frame = frame->previous) {
    PyCodeObject* code = frame->f_code;
    const Place place{code,
                      _PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT))};
    auto found = known.find(place);
    if (found == known.end() || found->second.file != code->co_filename ||
        found->second.first_line != code->co_firstlineno) {
      if (known.size() >= kRemembered) known.clear();
      pybind11::gil_scoped_acquire lock;
      const char* text = interned(line_of(code, place.instruction));
      const Known fresh{code->co_filename, code->co_firstlineno, is_in_torch(code), text};
      found = known.insert_or_assign(place, fresh).first;
    }
    if (!found->second.in_torch) return found->second.text;
    if (!*innermost) innermost = found->second.text;
  }
  return innermost;
#else
  return "";
#endif
}

const bool g_trace = [] {
  const char* value = std::getenv("GAPLESS_TRACE_SUBMIT");
  return value && *value && std::string(value) != "0";
}();

}  // namespace

const char* submit_site() {
  if (!Py_IsInitialized()) return "";
  return g_trace ? interned(traced()) : innermost();
}

const char* traced_submit_site() { return g_trace ? submit_site() : ""; }

}  // namespace gapless::torch_device
