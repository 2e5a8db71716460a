// Streams for communication: their threads block on other processes, so that they share nothing.
#pragma once

#include "runtime/stream.h"

namespace gapless::torch_device {

// A stream of its own until `release_comm_stream`. Throws UsageError beyond 256 per device.
Stream& acquire_comm_stream(int device);
// It is handed out again once it is idle.
void release_comm_stream(Stream& stream);

}  // namespace gapless::torch_device
