#include <stormo/train/parameters/model_parameters.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <stormo/model/chain.h>
#include <stormo/plan/project.h>
#include <stormo/tensor/model_shape.h>

namespace stormo::train {
namespace {

Status other_model(const std::string& why) {
  return Status(Code::kBadPlan, "the plan is for another model: " + why);
}

/// Which of the trainable parameters are sparse tables.
plan::ModelShape with_tables(plan::ModelShape shape, const torch::nn::Module& module) {
  const std::vector<NamedParameter> parameters = trainable_parameters(module);
  auto next = parameters.begin();
  for (plan::SegmentShape& s : shape.segments) {
    for (plan::ParameterShape& p : s.parameters) {
      if (p.trainable && next != parameters.end()) p.sparse = (next++)->sparse;
    }
  }
  return shape;
}

}  // namespace

plan::ModelShape shape_of(const Task& task) {
  if (const auto chain = std::dynamic_pointer_cast<model::Chain>(task.module)) {
    plan::ModelShape shape = chain->split_shape();
    // all of them belong to segments?
    if (num_parameters(shape) == static_cast<int>(chain->parameters().size())) {
      return with_tables(std::move(shape), *chain);
    }
  }
  if (task.shape) return *task.shape;
  return with_tables(
      {.segments = {{.name = "module", .parameters = tensor::parameter_shapes(*task.module, "")}}},
      *task.module);
}

torch::Device device_of(const torch::nn::Module& module) {
  const std::vector<torch::Tensor> parameters = module.parameters();
  return parameters.empty() ? torch::Device(torch::kCPU) : parameters.front().device();
}

Status check_model(const plan::ModelShape& model, const std::vector<NamedParameter>& parameters) {
  std::size_t found = 0;
  for (const plan::ParameterShape* p : flatten(model)) {
    if (!p->trainable) continue;
    if (found == parameters.size()) return other_model("the module has no '" + p->name + "'");
    const NamedParameter& mine = parameters[found++];
    if (mine.tensor.numel() == p->elements) continue;
    return other_model("'" + p->name + "' has " + std::to_string(p->elements) +
                       " elements, the module's '" + mine.name + "' " +
                       std::to_string(mine.tensor.numel()));
  }
  if (found == parameters.size()) return {};
  return other_model("it has no '" + parameters[found].name + "'");
}

std::vector<NamedParameter> parameters_of_stage(const plan::ModelShape& model,
                                                const torch::nn::Module& module, int stage) {
  const plan::Stages stages(model);
  std::vector<NamedParameter> out;
  std::vector<NamedParameter> all = trainable_parameters(module);
  auto next = all.begin();
  for (int i = 0; const plan::ParameterShape* p : flatten(model)) {
    const std::vector<int>& readers = stages.of_parameter(i++);
    if (!p->trainable) continue;
    if (std::ranges::count(readers, stage) > 0) out.push_back(std::move(*next));
    ++next;
  }
  return out;
}

ParameterRange trainable_in(const plan::ModelShape& model, plan::Range range) {
  ParameterRange out;
  int index = 0;
  for (const plan::ParameterShape* p : flatten(model)) {
    const bool counts = p->trainable && !p->elsewhere;
    if (counts && index < range.first) ++out.first;
    if (counts && index <= range.last) ++out.last;
    ++index;
  }
  return out;
}

}  // namespace stormo::train
