#include "torch/distributed/comm_streams.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace gapless::torch_device {
namespace {

constexpr size_t kMostPerDevice = 256;
constexpr int kPriority = -1;  // others wait for what these do

struct Pool {
  std::vector<Stream*> all;
  std::vector<Stream*> released;
};

std::mutex g_mutex;
std::map<int, Pool>& pools() {
  static auto* const instance = new std::map<int, Pool>;
  return *instance;
}

}  // namespace

Stream& acquire_comm_stream(int device_index) {
  std::lock_guard lock(g_mutex);
  Pool& pool = pools()[device_index];
  auto idle = std::find_if(pool.released.begin(), pool.released.end(), [](Stream* stream) {
    // One that failed still has to tell the host.
    return stream->done(stream->submitted()) && !stream->failed();
  });
  if (idle != pool.released.end()) {
    Stream* stream = *idle;
    pool.released.erase(idle);
    return *stream;
  }
  if (pool.all.size() == kMostPerDevice) {
    throw UsageError(std::to_string(kMostPerDevice) +
                     " sends, receives and process groups are in flight on gapless:" +
                     std::to_string(device_index) +
                     ", each with a thread of its own; wait for some of them first");
  }
  pool.all.push_back(&device(device_index).dedicated_stream(kPriority));
  return *pool.all.back();
}

void release_comm_stream(Stream& stream) {
  std::lock_guard lock(g_mutex);
  pools()[stream.device()].released.push_back(&stream);
}

}  // namespace gapless::torch_device
