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
  const char* text;
};

// Without the lock, which PyTorch has let go of by the time an operator is dispatched: taking it
// back could wait for another thread's turn. The frame is the calling thread's own and stands still
// while the thread is in here, and it keeps its code object alive; nothing is counted or changed.
// Only the text of a place seen for the first time takes the lock.
const char* innermost() {
#ifdef GAPLESS_READS_FRAMES
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (!state || !state->cframe || !state->cframe->current_frame) return "";
  const _PyInterpreterFrame* frame = state->cframe->current_frame;
  PyCodeObject* code = frame->f_code;
  const Place place{code,
                    _PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT))};
  thread_local std::unordered_map<Place, Known, PlaceHash> known;
  if (auto found = known.find(place); found != known.end() &&
                                      found->second.file == code->co_filename &&
                                      found->second.first_line == code->co_firstlineno) {
    return found->second.text;
  }
  if (known.size() >= kRemembered) known.clear();
  pybind11::gil_scoped_acquire lock;
  const char* text = interned(line_of(code, place.instruction));
  known.insert_or_assign(place, Known{code->co_filename, code->co_firstlineno, text});
  return text;
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
