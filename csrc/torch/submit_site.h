// Where in the Python program work is submitted.
#pragma once

namespace gapless::torch_device {

// The innermost Python line of the calling thread that is not PyTorch's own, "file.py:12 in f".
// With GAPLESS_TRACE_SUBMIT=1 the callers too, innermost first. Empty in a thread outside Python.
// Lives as long as the process.
const char* submit_site();

// For a replay, where each microsecond counts and the works inside know where they were captured:
// empty unless GAPLESS_TRACE_SUBMIT=1.
const char* traced_submit_site();

}  // namespace gapless::torch_device
