#pragma once

#include <cstddef>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/model_shape.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// Segments and parameters of the task's module, for plans; see Task::shape.
plan::ModelShape shape_of(const Task& task);

/// OK when `parameters`, the trainable ones of a module, are those of `model` by their
/// number and sizes; else kBadPlan names the first that differs.
Status check_model(const plan::ModelShape& model, const std::vector<NamedParameter>& parameters);

/// Where the trainable parameters of `range`, which counts all, stand among the trainable ones.
ParameterRange trainable_in(const plan::ModelShape& model, plan::Range range);

}  // namespace stormo::train
