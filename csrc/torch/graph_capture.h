// What a capture keeps alive beside its works, and where its random numbers come from.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <unordered_map>
#include <vector>

#include "runtime/graph.h"

namespace gapless::torch_device {

// The works of a graph hold bare addresses. Memory from the graph's own pool stays theirs; whatever
// else they touch (weights, inputs, pinned buffers) is kept here, by the graph's owner on the host.
struct CapturedBody : GraphBody {
  std::unordered_map<c10::StorageImpl*, c10::Storage> kept;
};

// Called by whoever queues work that touches `tensor`: keeps it where the stream captures, and
// tells the allocator where it belongs to another stream.
void note_use(Stream& stream, const at::Tensor& tensor);

}  // namespace gapless::torch_device
