#include <stormo/train/estimate/step_sizes.h>

#include <stormo/optim/options.h>
#include <stormo/tensor/dtype.h>
#include <stormo/train/run/training_run.h>
#include <stormo/train/step/strategy.h>

namespace stormo::train {

namespace {

int slots_of(const TrainerOptions& options) {
  return static_cast<int>(optim::slot_names(options.optimizer).size());
}

}  // namespace

analysis::StepSizes step_sizes_of(const TrainerOptions& options) {
  const ReductionOptions how = reduction_of(options.gradients);
  analysis::StepSizes sizes{.agreed_numbers = TrainingRun::kAgreedNumbers,
                            .averaged_slots = slots_of(options),
                            .all_reduce = how.algorithm};
  if (how.reduce_type) sizes.reduce_type = *tensor::dtype_of(*how.reduce_type);
  if (options.gradients.deterministic) sizes.reduce_scatter = "canonical_reduce_scatter";
  return sizes;
}

analysis::MemorySizes memory_sizes_of(const TrainerOptions& options) {
  return {.optimizer_numbers = slots_of(options),
          .reduce_type = step_sizes_of(options).reduce_type};
}

}  // namespace stormo::train
