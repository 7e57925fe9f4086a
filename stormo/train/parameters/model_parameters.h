#pragma once

#include <cstddef>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/model/model_shape.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// Segments and parameters of the task's module, for plans; see Task::shape.
plan::ModelShape shape_of(const Task& task);

/// The device of the module's parameters; the CPU where it has none.
torch::Device device_of(const torch::nn::Module& module);

/// OK when `parameters`, the trainable ones of a module, have the number and sizes of those of
/// `model`; else kBadPlan names the first that differs.
Status check_model(const plan::ModelShape& model, const std::vector<NamedParameter>& parameters);

/// Those of the module's trainable parameters that a stage of a pipeline reads.
std::vector<NamedParameter> parameters_of_stage(const plan::ModelShape& model,
                                                const torch::nn::Module& module, int stage);

/// Converts `range`, which counts all parameters, to the range of its trainable ones among all
/// trainable parameters; those that are elsewhere do not count.
ParameterRange trainable_in(const plan::ModelShape& model, plan::Range range);

}  // namespace stormo::train
