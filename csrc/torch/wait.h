// How the host waits: without Python's global lock, answering Ctrl-C, and hearing of failures.
#pragma once

#include "runtime/device.h"
#include "runtime/event.h"
#include "runtime/stream.h"

namespace gapless::torch_device {

// Blocks until the stream has done what was submitted to it by now, then reports a failure of that
// work as torch.AcceleratorError. Throws in a capture, where nothing is executed; `what` names the
// operation that wanted to wait.
void synchronize(Stream& stream, const char* what = "synchronize");
void synchronize(Device& device);
void synchronize(const EventMark& mark);

// Throws UsageError, naming `what`, where the stream captures a graph.
void refuse_in_capture(Stream& stream, const char* what);

// The same without asking for failures, for waits that the user did not ask for.
void wait_for(Stream& stream);
void wait_for(Stream& stream, uint64_t place);
void wait_for_device(Device& device);

// Runs Python's handlers of the signals that have come, and throws what one of them raises. A long
// wait of one's own calls it: Ctrl-C sets a flag that only the main thread's Python looks at.
void check_signals();

}  // namespace gapless::torch_device
