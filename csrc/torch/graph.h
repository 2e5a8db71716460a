// Graphs, as PyTorch's GraphImplInterface.
#pragma once

#include <ATen/core/GraphImplInterface.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device.h"
#include "torch/graph_capture.h"

namespace gapless::torch_device {

// Captures the work of the current stream, and replays it with one submit on whichever is current.
class Graph final : public at::GraphImplInterface {
 public:
  Graph() = default;
  ~Graph() override;

  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode) override;
  // A capture that ends because of an exception is given up, and what it took with it.
  void capture_end() override;
  void instantiate() override {}
  void replay() override;
  // Waits for the replays in flight, then gives up the capture and its memory.
  void reset() override;
  c10::MempoolId_t pool() const override;
  void enable_debug_mode() override {}
  // One line of text per work: its place, its name and its operands.
  void debug_dump(const std::string& path) override;

 private:
  void give_up(std::string why);
  // What the graph keeps may be freed by its owner later; the allocator has to know this stream.
  void keep_on(Stream& stream);

  Device* device_ = nullptr;
  Stream* stream_ = nullptr;  // while capturing
  std::shared_ptr<CapturedBody> capturing_;
  std::shared_ptr<CapturedBody> body_;
  std::string failed_;             // why the last capture cannot be replayed
  const void* handled_ = nullptr;  // the exception that Python handled when it began
  // Where it was replayed, and the place of the last replay there. Hardly ever more than one.
  std::vector<std::pair<Stream*, uint64_t>> replayed_on_;
};

// To be called once, after the backend got its name: the registry's key is that name in upper case.
void register_graphs();

}  // namespace gapless::torch_device
