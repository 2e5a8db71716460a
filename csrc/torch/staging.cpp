#include "torch/staging.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "runtime/device.h"
#include "torch/alias.h"

namespace gapless::torch_device {
namespace {

// The bytes from the tensor's first element to its last one.
std::pair<char*, char*> extent(const at::Tensor& tensor) {
  auto* begin = static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()));
  if (tensor.numel() == 0) return {begin, begin};
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {begin, begin + (last + 1) * static_cast<int64_t>(tensor.itemsize())};
}

c10::Storage unresizable(const at::Tensor& buffer) {
  c10::DataPtr data(
      buffer.mutable_data_ptr(), new c10::Storage(buffer.storage()),
      [](void* kept) { delete static_cast<c10::Storage*>(kept); }, c10::kCPU);
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), buffer.nbytes(),
                                               std::move(data), /*allocator=*/nullptr,
                                               /*resizable=*/false);
}

void check(gapless_status status) {
  if (status != GAPLESS_OK) throw DeviceError(driver().last_error());
}

}  // namespace

void Staging::add(const at::Tensor& alias, bool written) {
  if (!alias.defined() || !is_alias(alias)) return;
  const auto [begin, end] = extent(alias);
  if (begin == end) return;
  char* room_end = end;
  if (alias.storage_offset() == 0 && written) {
    room_end = std::max(end, begin + alias.storage().nbytes());
  }
  ranges_.push_back({begin, end, room_end, written, {}, {}});
}

void Staging::fetch() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> joined;
  for (const Range& range : ranges_) {
    if (!joined.empty() && range.begin < joined.back().end) {
      joined.back().end = std::max(joined.back().end, range.end);
      joined.back().room_end = std::max(joined.back().room_end, range.room_end);
      joined.back().written = joined.back().written || range.written;
    } else {
      joined.push_back(range);
    }
  }
  ranges_ = std::move(joined);
  for (Range& range : ranges_) {
    const int64_t bytes = range.end - range.begin;
    range.buffer = at::empty({range.room_end - range.begin}, at::kByte);
    range.storage = unresizable(range.buffer);
    check(driver().copy(device_, stream_, range.buffer.mutable_data_ptr(), range.begin,
                        static_cast<uint64_t>(bytes), GAPLESS_DEVICE_TO_HOST));
  }
}

at::Tensor Staging::staged(const at::Tensor& alias) const {
  if (!alias.defined() || !is_alias(alias)) return alias;
  auto* address = static_cast<char*>(const_cast<void*>(alias.const_data_ptr()));
  if (alias.numel() == 0) return alias_at(alias, {}, address, 0);
  auto range = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                [](char* at, const Range& each) { return at < each.begin; });
  TORCH_INTERNAL_ASSERT(range != ranges_.begin());
  --range;
  // Keeps the buffer: a result may be a view of an operand. Tensors in the same memory share a
  // storage where they can, since kernels tell from it whether their output overlaps an input.
  auto* buffer = static_cast<char*>(range->buffer.mutable_data_ptr());
  const auto offset = address - range->begin, item = static_cast<int64_t>(alias.itemsize());
  if (offset % item == 0) return alias_in(alias, range->storage, offset / item);
  return alias_at(alias, range->buffer.storage(), buffer + (address - range->begin),
                  static_cast<size_t>(range->room_end - address));
}

void Staging::write_back() const {
  for (const Range& range : ranges_) {
    if (!range.written) continue;
    check(driver().copy(device_, stream_, range.begin, range.buffer.const_data_ptr(),
                        static_cast<uint64_t>(range.end - range.begin), GAPLESS_HOST_TO_DEVICE));
  }
}

}  // namespace gapless::torch_device
