// Paged attention by the kernels that vLLM registers for the CPU, as two pieces of work.
//
// How the kernel divides a step among threads depends on lengths that only the device knows, and so
// does the size of that plan. It is therefore made on the stream's thread and stays there: one slot
// for each user, which stream order makes safe, under replay of a graph as well. The kernel has to
// run with as many threads as its plan was made for.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "torch/team_limit.h"

namespace gapless::torch_device {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

struct Plan {
  at::Tensor metadata;
  int team = 0;
};

class Plans {
 public:
  int64_t add() {
    const std::lock_guard lock(mutex_);
    slots_.emplace_back();
    return static_cast<int64_t>(slots_.size()) - 1;
  }
  Plan& at(int64_t plan) {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(plan >= 0 && plan < static_cast<int64_t>(slots_.size()), "attention plan ", plan,
                " does not exist; there are ", slots_.size(), " (gapless::new_attention_plan)");
    return slots_[static_cast<size_t>(plan)];
  }

 private:
  std::mutex mutex_;
  std::deque<Plan> slots_;  // a deque: what it holds does not move
};

Plans& plans() {
  static auto* const plans = new Plans;
  return *plans;
}

int64_t new_attention_plan() { return plans().add(); }

c10::OperatorHandle kernel(const char* name) {
  const auto found = c10::Dispatcher::singleton().findSchema({name, ""});
  TORCH_CHECK(found, "the operator ", name,
              " is not registered; import vLLM's CPU kernels before (vllm._custom_ops)");
  return *found;
}

void plan_attention(int64_t plan, const at::Tensor& seq_lens, const at::Tensor& query_start_loc,
                    int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, at::ScalarType dtype,
                    bool causal, int64_t window, std::string isa, bool split_kv,
                    std::string kv_cache_dtype) {
  static const auto op = kernel("_C::get_scheduler_metadata");
  torch::jit::Stack stack{
      seq_lens.size(0),         num_heads, num_kv_heads, head_dim,       seq_lens, dtype,
      query_start_loc,          causal,    window,       std::move(isa), split_kv, c10::IValue(),
      std::move(kv_cache_dtype)};
  op.callBoxed(stack);
  plans().at(plan) = {stack.at(0).toTensor(), TeamSize::now()};
}

void paged_attention(int64_t plan, const at::Tensor& query, const OptionalTensor& key,
                     const OptionalTensor& value, at::Tensor& kv_cache, at::Tensor& output,
                     const at::Tensor& query_start_loc, const at::Tensor& seq_lens,
                     const at::Tensor& block_table, const OptionalTensor& slot_mapping,
                     double scale, bool causal, const OptionalTensor& alibi_slopes, int64_t window,
                     double softcap, const OptionalTensor& sinks, std::string isa, double k_scale,
                     double v_scale, std::string kv_cache_dtype) {
  static const auto attend = kernel("_C::cpu_attention_with_kv_cache");
  static const auto store = kernel("_C::cpu_attn_reshape_and_cache");
  const auto& [metadata, planned_team] = plans().at(plan);
  TORCH_CHECK(metadata.defined(), "attention plan ", plan,
              " was not made yet (gapless::plan_attention comes before gapless::paged_attention)");
  // A block holds its keys and then its values, for each head.
  const auto halves =
      kv_cache
          .view({kv_cache.size(0), kv_cache.size(1), kv_cache.size(2) * 2, kv_cache.size(3) / 2})
          .chunk(2, 2);
  if (slot_mapping) {
    TORCH_CHECK(key && value, "paged_attention: slot_mapping without key and value");
    torch::jit::Stack stack{*key, *value,  halves[0], halves[1],     *slot_mapping,
                            isa,  k_scale, v_scale,   kv_cache_dtype};
    store.callBoxed(stack);
  }
  torch::jit::Stack stack{query,
                          halves[0],
                          halves[1],
                          output,
                          query_start_loc,
                          seq_lens,
                          scale,
                          causal,
                          alibi_slopes ? c10::IValue(*alibi_slopes) : c10::IValue(),
                          window,
                          block_table,
                          softcap,
                          metadata,
                          sinks ? c10::IValue(*sinks) : c10::IValue(),
                          c10::IValue(),
                          k_scale,
                          v_scale,
                          std::move(kv_cache_dtype)};
  const TeamSize as_planned(planned_team);
  attend.callBoxed(stack);
}

TORCH_LIBRARY_FRAGMENT(gapless, m) {
  m.def("new_attention_plan() -> int", &new_attention_plan);
  m.def(
      "plan_attention(int plan, Tensor seq_lens, Tensor query_start_loc, int num_heads, int "
      "num_kv_heads, int head_dim, ScalarType dtype, bool causal, int window, str isa, bool "
      "split_kv, str kv_cache_dtype) -> ()");
  m.def(
      "paged_attention(int plan, Tensor query, Tensor? key, Tensor? value, Tensor(a!) kv_cache, "
      "Tensor(b!) output, Tensor query_start_loc, Tensor seq_lens, Tensor block_table, Tensor? "
      "slot_mapping, float scale, bool causal, Tensor? alibi_slopes, int window, float softcap, "
      "Tensor? sinks, str isa, float k_scale, float v_scale, str kv_cache_dtype) -> ()");
}

TORCH_LIBRARY_IMPL(gapless, CPU, m) {
  m.impl("plan_attention", &plan_attention);
  m.impl("paged_attention", &paged_attention);
}

}  // namespace
}  // namespace gapless::torch_device
