#pragma once

#include <string>

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

// Replicas become the members of a population, each with a model of its own: the average of all
// becomes an exchange with neighbours in a topology (plan::mixing_of()). Apply one of these after
// parameter_averaging() with the state. They fail with kBadPlan for a plan without such an average.

/// Each member goes on with the best of its own model and those that it gets, and with the
/// optimizer's state of that one.
Pass tournament(const std::string& topology);

/// Each member keeps copies of the models that it gets. Their predictions become a part of its loss
/// (train/population/distillation.h), of which the plan says nothing: they are its own computation.
Pass codistillation(const std::string& topology);

}  // namespace stormo::parallel
