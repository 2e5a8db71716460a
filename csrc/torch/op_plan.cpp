#include "torch/op_plan.h"

#include <ATen/core/enum_tag.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "torch/interned.h"
#include "torch/shape_functions.h"

namespace gapless::torch_device {
namespace {

bool is_generator(const c10::Argument& argument) {
  auto type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::GeneratorType;
}

bool is_tensor_like(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::TensorType::get()) ||
         type->isSubtypeOf(*c10::ListType::ofTensors());
}

// The argument whose memory the result is, by the schema's alias annotations.
int argument_of(const c10::FunctionSchema& schema, const c10::Argument& result) {
  if (!result.alias_info()) return -1;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* info = schema.arguments()[i].alias_info();
    if (info && info->beforeSets() == result.alias_info()->beforeSets()) return static_cast<int>(i);
  }
  return -1;
}

// The overload of the same operator that takes the same inputs and returns fresh results.
std::optional<c10::OperatorHandle> functional_variant(const c10::OperatorHandle& op) {
  std::vector<const c10::Argument*> inputs;
  for (const auto& argument : op.schema().arguments()) {
    if (!argument.is_out()) inputs.push_back(&argument);
  }
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& candidate : dispatcher.getAllOpNames()) {
    if (candidate.name != op.operator_name().name) continue;
    const auto found = dispatcher.findSchema(candidate);
    if (!found || found->schema().arguments().size() != inputs.size()) continue;
    const auto& arguments = found->schema().arguments();
    bool same = true;
    for (size_t i = 0; i < inputs.size(); ++i) {
      same = same && !arguments[i].alias_info() && arguments[i].name() == inputs[i]->name() &&
             *arguments[i].type() == *inputs[i]->type();
    }
    if (same) return found;
  }
  return std::nullopt;
}

// The out= variant of the same name that takes the same arguments and then an output per result.
std::optional<c10::OperatorHandle> find_out_variant(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const size_t inputs = schema.arguments().size(), results = schema.returns().size();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& candidate : dispatcher.getAllOpNames()) {
    if (candidate.name != op.operator_name().name) continue;
    const auto found = dispatcher.findSchema(candidate);
    if (!found || found->schema().arguments().size() != inputs + results) continue;
    const auto& arguments = found->schema().arguments();
    bool same = found->hasKernelForDispatchKey(c10::DispatchKey::CPU);
    for (size_t i = 0; i < inputs; ++i) {
      same = same && !arguments[i].alias_info() &&
             arguments[i].name() == schema.arguments()[i].name() &&
             *arguments[i].type() == *schema.arguments()[i].type();
    }
    for (size_t i = inputs; i < arguments.size(); ++i) {
      same =
          same && arguments[i].is_out() && arguments[i].type()->kind() == c10::TypeKind::TensorType;
    }
    if (same) return found;
  }
  return std::nullopt;
}

std::unique_ptr<OpPlan> make_plan(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  auto plan = std::make_unique<OpPlan>();
  plan->arguments = schema.arguments().size();
  plan->name = interned(c10::toString(op.operator_name()));
  plan->has_shape_function =
      op.hasKernelForDispatchKey(c10::DispatchKey::Meta) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
      own_shape_function(op) != nullptr;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    if (argument.alias_info() && argument.alias_info()->isWrite()) {
      plan->written.push_back(i);
      plan->is_out = plan->is_out || argument.is_out();
      if (argument.is_out()) plan->outputs.push_back(i);
    }
    auto type = argument.type();
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    plan->is_number.push_back(type->kind() == c10::TypeKind::NumberType);
    if (plan->generator < 0 && is_generator(argument)) plan->generator = static_cast<int>(i);
  }
  bool view = false, fresh = false, foreign = false;
  for (const auto& result : schema.returns()) {
    const int argument = argument_of(schema, result);
    plan->returned.push_back(argument);
    if (argument >= 0) {
      view = view || !result.alias_info()->isWrite();
    } else {
      fresh = true;
      foreign = foreign || !is_tensor_like(result.type());
    }
  }
  const std::string& name = op.operator_name().name;
  plan->takes_host_tensors = name == "aten::index" || name == "aten::index_put" ||
                             name == "aten::index_put_" || name == "aten::_index_put_impl_" ||
                             name == "aten::_unsafe_index" || name == "aten::_unsafe_index_put";
  plan->queues_functional = plan->is_out && name == "aten::linalg_lu_solve";
  plan->sized_by_count = plan->is_out && (name == "aten::arange" || name == "aten::linspace" ||
                                          name == "aten::logspace" || name == "aten::range");
  if (view) {
    plan->kind = OpKind::kView;
  } else if (op.hasTag(at::Tag::dynamic_output_shape) ||
             op.hasTag(at::Tag::data_dependent_output)) {
    plan->kind = OpKind::kHost;
    plan->host_reason = "its result's shape or value depends on data";
  } else if (foreign) {
    plan->kind = OpKind::kHost;
    plan->host_reason = "its result is not a tensor";
  } else if (name == "aten::_embedding_bag" || name == "aten::_embedding_bag_forward_only") {
    plan->kind = OpKind::kHost;
    plan->host_reason = "its shape function is another kernel's";
  } else if (!fresh) {
    plan->kind = OpKind::kMutating;
  } else if (plan->has_shape_function) {
    plan->kind = OpKind::kFunctional;
  } else {
    plan->kind = OpKind::kHost;
    plan->host_reason = "it has no shape function";
  }
  if (plan->is_out) {
    const bool tells_sizes = plan->has_shape_function && !plan->returned.empty();
    const auto functional = functional_variant(op);
    plan->gets_sized_outputs =
        functional && functional->hasKernelForDispatchKey(
                          c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
    if (plan->kind == OpKind::kHost || !tells_sizes || plan->queues_functional ||
        plan->takes_host_tensors) {
      plan->functional = functional;
    }
    // PyTorch has not tagged floor_divide.
    if (functional && (op.hasTag(at::Tag::pointwise) || name == "aten::floor_divide")) {
      plan->elementwise = functional;
    }
    // Its functional variant writes to the running statistics, and so is none; this one takes the
    // same arguments and tells the same sizes.
    if (op.operator_name() == c10::OperatorName("aten::_native_batch_norm_legit", "out")) {
      plan->functional = c10::Dispatcher::singleton().findSchema({"aten::native_batch_norm", ""});
    }
  }
  if (has_wrapper(op) && plan->kind == OpKind::kMutating) {
    plan->has_wrapper = true;
  } else if (has_wrapper(op) && plan->kind == OpKind::kFunctional) {
    plan->out_variant = find_out_variant(op);
    plan->has_wrapper = plan->out_variant.has_value();
    if (plan->has_wrapper) plan->out_plan = &plan_of(*plan->out_variant);
  }
  return plan;
}

}  // namespace

bool has_wrapper(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::data_dependent_output)) {
    return false;
  }
  const auto& schema = op.schema();
  for (const auto& argument : schema.arguments()) {
    if (argument.is_out()) return false;
  }
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

const OpPlan& plan_of(const c10::OperatorHandle& op) {
  static std::shared_mutex mutex;
  static auto* const plans = new std::unordered_map<const void*, std::unique_ptr<OpPlan>>;
  const void* key = &op.schema();
  // Each thread remembers what it looked up, so that the common path takes no lock. Plans are never
  // dropped, and neither are the operators of PyTorch.
  thread_local std::unordered_map<const void*, const OpPlan*> known;
  if (auto found = known.find(key); found != known.end()) return *found->second;
  {
    std::shared_lock lock(mutex);
    if (auto found = plans->find(key); found != plans->end()) {
      return *(known[key] = found->second.get());
    }
  }
  auto plan = make_plan(op);
  std::unique_lock lock(mutex);
  auto& slot = (*plans)[key];
  if (!slot) slot = std::move(plan);
  return *(known[key] = slot.get());
}

}  // namespace gapless::torch_device
