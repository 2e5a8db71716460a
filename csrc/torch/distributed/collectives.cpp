// The operations of DistributedBackend: what each reads and writes, and how the transport is asked.

#include <ATen/ops/empty.h>

#include "runtime/device.h"
#include "torch/distributed/backend.h"

namespace gapless::torch_device {
namespace {

using c10d::Backend;
using c10d::OpType;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;

void check_reduction(const char* name, const c10d::ReduceOp& reduction) {
  const auto kind = static_cast<c10d::ReduceOp::RedOpType>(reduction);
  TORCH_CHECK(kind != c10d::ReduceOp::AVG && kind != c10d::ReduceOp::PREMUL_SUM, name,
              ": ReduceOp.", kind == c10d::ReduceOp::AVG ? "AVG" : "PREMUL_SUM",
              " is not offered; use SUM and scale the tensor");
}

void check_one(const char* name, const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, name, " takes one tensor, not ", tensors.size());
}

// Of a list with an entry per rank.
void check_count(const char* name, const char* what, size_t count, int64_t size) {
  TORCH_CHECK(count == static_cast<size_t>(size), name, ": ", what, " has ", count,
              " tensors; the group has ", size, " ranks");
}

void check_like(const char* name, const Tensors& list, const at::Tensor& other) {
  for (const at::Tensor& tensor : list) {
    TORCH_CHECK(tensor.sizes() == other.sizes() && tensor.dtype() == other.dtype(), name,
                ": all tensors have to be alike, but there are ", tensor.dtype(), tensor.sizes(),
                " and ", other.dtype(), other.sizes());
  }
}

// `whole` holds one of `part` per rank.
void check_whole(const char* name, const at::Tensor& whole, const at::Tensor& part, int64_t size) {
  TORCH_CHECK(whole.numel() == part.numel() * size && whole.dtype() == part.dtype(), name, ": ",
              whole.dtype(), whole.sizes(), " does not hold ", size, " times ", part.dtype(),
              part.sizes());
}

Tensors slice(const Tensors& tensors, size_t from, size_t to) {
  return {tensors.begin() + static_cast<std::ptrdiff_t>(from),
          tensors.begin() + static_cast<std::ptrdiff_t>(to)};
}

// Cuts a flat list into lists of the given lengths.
Lists unflattened(const Tensors& flat, size_t from, const std::vector<size_t>& lengths) {
  Lists lists;
  for (size_t length : lengths) {
    lists.push_back(slice(flat, from, from + length));
    from += length;
  }
  return lists;
}

Tensors flattened(const Lists& lists, std::vector<size_t>* lengths) {
  Tensors flat;
  for (const Tensors& list : lists) {
    lengths->push_back(list.size());
    flat.insert(flat.end(), list.begin(), list.end());
  }
  return flat;
}

}  // namespace

using WorkPtr = DistributedBackend::WorkPtr;

WorkPtr DistributedBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const char* name = "c10d::broadcast";
  check_one(name, tensors);
  check_rank(name, options.rootRank);
  return collective(OpType::BROADCAST, name,
                    {{tensors, options.rootRank == getRank() ? Access::kRead : Access::kWrite}},
                    tensors,
                    [options](Backend& gloo, Tensors& t) { return gloo.broadcast(t, options); });
}

WorkPtr DistributedBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const char* name = "c10d::allreduce";
  check_one(name, tensors);
  check_reduction(name, options.reduceOp);
  return collective(OpType::ALLREDUCE, name, {{tensors, Access::kReadWrite}}, tensors,
                    [options](Backend& gloo, Tensors& t) { return gloo.allreduce(t, options); });
}

WorkPtr DistributedBackend::allreduce_coalesced(Tensors& tensors,
                                                const c10d::AllreduceCoalescedOptions& options) {
  const char* name = "c10d::allreduce_coalesced";
  check_reduction(name, options.reduceOp);
  return collective(
      OpType::ALLREDUCE_COALESCED, name, {{tensors, Access::kReadWrite}}, tensors,
      [options](Backend& gloo, Tensors& t) { return gloo.allreduce_coalesced(t, options); });
}

WorkPtr DistributedBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const char* name = "c10d::reduce";
  check_one(name, tensors);
  check_rank(name, options.rootRank);
  check_reduction(name, options.reduceOp);
  return collective(OpType::REDUCE, name, {{tensors, Access::kReadWrite}}, tensors,
                    [options](Backend& gloo, Tensors& t) { return gloo.reduce(t, options); });
}

WorkPtr DistributedBackend::allgather(Lists& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) {
  const char* name = "c10d::allgather";
  check_one(name, inputs);
  TORCH_CHECK(outputs.size() == 1, name, " takes one list of outputs, not ", outputs.size());
  check_count(name, "the list of outputs", outputs[0].size(), getSize());
  check_like(name, outputs[0], inputs[0]);
  return collective(OpType::ALLGATHER, name,
                    {{outputs[0], Access::kWrite}, {inputs, Access::kRead}}, outputs[0],
                    [options](Backend& gloo, Tensors& t) {
                      Lists to{slice(t, 0, t.size() - 1)};
                      Tensors from{t.back()};
                      return gloo.allgather(to, from, options);
                    });
}

WorkPtr DistributedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions& options) {
  const char* name = "c10d::all_gather_into_tensor";
  check_whole(name, output, input, getSize());
  const Tensors outputs{output};
  const Tensors inputs{input};
  return collective(
      OpType::_ALLGATHER_BASE, name, {{outputs, Access::kWrite}, {inputs, Access::kRead}}, outputs,
      [options](Backend& gloo, Tensors& t) { return gloo._allgather_base(t[0], t[1], options); });
}

WorkPtr DistributedBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& options) {
  std::vector<size_t> lengths;
  const Tensors flat = flattened(outputs, &lengths);
  return collective(OpType::ALLGATHER_COALESCED, "c10d::allgather_coalesced",
                    {{flat, Access::kWrite}, {inputs, Access::kRead}}, flat,
                    [options, lengths, count = flat.size()](Backend& gloo, Tensors& t) {
                      Lists to = unflattened(t, 0, lengths);
                      Tensors from = slice(t, count, t.size());
                      return gloo.allgather_coalesced(to, from, options);
                    });
}

WorkPtr DistributedBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  const char* name = "c10d::all_gather_into_tensor_coalesced";
  TORCH_CHECK(outputs.size() == inputs.size(), name, ": ", outputs.size(), " outputs for ",
              inputs.size(), " inputs");
  for (size_t i = 0; i < inputs.size(); ++i) check_whole(name, outputs[i], inputs[i], getSize());
  return collective(OpType::_ALLGATHER_BASE, name,
                    {{outputs, Access::kWrite}, {inputs, Access::kRead}}, outputs,
                    [options](Backend& gloo, Tensors& t) {
                      Tensors to = slice(t, 0, t.size() / 2);
                      Tensors from = slice(t, t.size() / 2, t.size());
                      return gloo.allgather_into_tensor_coalesced(to, from, options);
                    });
}

WorkPtr DistributedBackend::gather(Lists& outputs, Tensors& inputs,
                                   const c10d::GatherOptions& options) {
  const char* name = "c10d::gather";
  check_one(name, inputs);
  check_rank(name, options.rootRank);
  const bool root = options.rootRank == getRank();
  TORCH_CHECK(outputs.size() == (root ? 1 : 0), name,
              ": the root gives one list of outputs, the others none");
  const Tensors flat = root ? outputs[0] : Tensors{};
  if (root) {
    check_count(name, "the list of outputs", flat.size(), getSize());
    check_like(name, flat, inputs[0]);
  }
  return collective(OpType::GATHER, name, {{flat, Access::kWrite}, {inputs, Access::kRead}}, flat,
                    [options, root](Backend& gloo, Tensors& t) {
                      Lists to;
                      if (root) to.push_back(slice(t, 0, t.size() - 1));
                      Tensors from{t.back()};
                      return gloo.gather(to, from, options);
                    });
}

WorkPtr DistributedBackend::scatter(Tensors& outputs, Lists& inputs,
                                    const c10d::ScatterOptions& options) {
  const char* name = "c10d::scatter";
  check_one(name, outputs);
  check_rank(name, options.rootRank);
  const bool root = options.rootRank == getRank();
  TORCH_CHECK(inputs.size() == (root ? 1 : 0), name,
              ": the root gives one list of inputs, the others none");
  const Tensors flat = root ? inputs[0] : Tensors{};
  if (root) {
    check_count(name, "the list of inputs", flat.size(), getSize());
    check_like(name, flat, outputs[0]);
  }
  return collective(OpType::SCATTER, name, {{outputs, Access::kWrite}, {flat, Access::kRead}},
                    outputs, [options, root](Backend& gloo, Tensors& t) {
                      Tensors to{t[0]};
                      Lists from;
                      if (root) from.push_back(slice(t, 1, t.size()));
                      return gloo.scatter(to, from, options);
                    });
}

WorkPtr DistributedBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                           const c10d::ReduceScatterOptions& options) {
  const char* name = "c10d::reduce_scatter";
  check_one(name, outputs);
  check_reduction(name, options.reduceOp);
  TORCH_CHECK(inputs.size() == 1, name, " takes one list of inputs, not ", inputs.size());
  check_count(name, "the list of inputs", inputs[0].size(), getSize());
  check_like(name, inputs[0], outputs[0]);
  return collective(OpType::REDUCE_SCATTER, name,
                    {{outputs, Access::kWrite}, {inputs[0], Access::kRead}}, outputs,
                    [options](Backend& gloo, Tensors& t) {
                      Tensors to{t[0]};
                      Lists from{slice(t, 1, t.size())};
                      return gloo.reduce_scatter(to, from, options);
                    });
}

WorkPtr DistributedBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::ReduceScatterOptions& options) {
  const char* name = "c10d::reduce_scatter_tensor";
  check_reduction(name, options.reduceOp);
  check_whole(name, input, output, getSize());
  const Tensors outputs{output};
  const Tensors inputs{input};
  return collective(OpType::_REDUCE_SCATTER_BASE, name,
                    {{outputs, Access::kWrite}, {inputs, Access::kRead}}, outputs,
                    [options](Backend& gloo, Tensors& t) {
                      return gloo._reduce_scatter_base(t[0], t[1], options);
                    });
}

WorkPtr DistributedBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  const char* name = "c10d::reduce_scatter_tensor_coalesced";
  check_reduction(name, options.reduceOp);
  TORCH_CHECK(outputs.size() == inputs.size(), name, ": ", outputs.size(), " outputs for ",
              inputs.size(), " inputs");
  for (size_t i = 0; i < inputs.size(); ++i) check_whole(name, inputs[i], outputs[i], getSize());
  return collective(OpType::REDUCE_SCATTER_TENSOR_COALESCED, name,
                    {{outputs, Access::kWrite}, {inputs, Access::kRead}}, outputs,
                    [options](Backend& gloo, Tensors& t) {
                      Tensors to = slice(t, 0, t.size() / 2);
                      Tensors from = slice(t, t.size() / 2, t.size());
                      return gloo.reduce_scatter_tensor_coalesced(to, from, options);
                    });
}

WorkPtr DistributedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                          std::vector<int64_t>& output_splits,
                                          std::vector<int64_t>& input_splits,
                                          const c10d::AllToAllOptions& options) {
  const char* name = "c10d::all_to_all_single";
  TORCH_CHECK(output.dtype() == input.dtype(), name, ": output of ", output.dtype(),
              " for an input of ", input.dtype());
  c10d::checkSplitSizes(input_splits, input, getSize());
  c10d::checkSplitSizes(output_splits, output, getSize());
  const Tensors outputs{output};
  const Tensors inputs{input};
  return collective(OpType::ALLTOALL_BASE, name,
                    {{outputs, Access::kWrite}, {inputs, Access::kRead}}, outputs,
                    [options, output_splits, input_splits](Backend& gloo, Tensors& t) mutable {
                      return gloo.alltoall_base(t[0], t[1], output_splits, input_splits, options);
                    });
}

WorkPtr DistributedBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                     const c10d::AllToAllOptions& options) {
  const char* name = "c10d::all_to_all";
  check_count(name, "the list of outputs", outputs.size(), getSize());
  check_count(name, "the list of inputs", inputs.size(), getSize());
  return collective(OpType::ALLTOALL, name, {{outputs, Access::kWrite}, {inputs, Access::kRead}},
                    outputs, [options](Backend& gloo, Tensors& t) {
                      Tensors to = slice(t, 0, t.size() / 2);
                      Tensors from = slice(t, t.size() / 2, t.size());
                      return gloo.alltoall(to, from, options);
                    });
}

WorkPtr DistributedBackend::send(Tensors& tensors, int to_rank, int tag) {
  check_rank("c10d::send", to_rank);
  return point_to_point(
      OpType::SEND, "c10d::send", tensors, Access::kRead,
      [to_rank, tag](Backend& gloo, Tensors& t) { return gloo.send(t, to_rank, tag); });
}

WorkPtr DistributedBackend::recv(Tensors& tensors, int from_rank, int tag) {
  check_rank("c10d::recv", from_rank);
  return point_to_point(
      OpType::RECV, "c10d::recv", tensors, Access::kWrite,
      [from_rank, tag](Backend& gloo, Tensors& t) { return gloo.recv(t, from_rank, tag); });
}

WorkPtr DistributedBackend::recvAnysource(Tensors& tensors, int tag) {
  return point_to_point(OpType::RECVANYSOURCE, "c10d::recv_any_source", tensors, Access::kWrite,
                        [tag](Backend& gloo, Tensors& t) { return gloo.recvAnysource(t, tag); });
}

WorkPtr DistributedBackend::barrier(const c10d::BarrierOptions& options) {
  int index =
      options.device_ids.empty() ? current_device() : static_cast<int>(options.device_ids[0]);
  if (options.device && options.device->is_privateuseone() && options.device->has_index()) {
    index = options.device->index();
  }
  // A tensor only to say which device's order the barrier belongs to.
  const Tensors place{
      at::empty({0}, at::TensorOptions().dtype(at::kByte).device(
                         c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index))))};
  return collective(OpType::BARRIER, "c10d::barrier", {{place, Access::kRead}}, {},
                    [options](Backend& gloo, Tensors&) { return gloo.barrier(options); });
}

}  // namespace gapless::torch_device
