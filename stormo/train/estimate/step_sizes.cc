#include <stormo/train/estimate/step_sizes.h>

#include <stormo/optim/options.h>

namespace stormo::train {

namespace {

int slots_of(const TrainerOptions& options) {
  return static_cast<int>(optim::num_slots(options.optimizer));
}

}  // namespace

analysis::StepSizes step_sizes_of(const TrainerOptions& options) {
  return {.agreed_numbers = kAgreedNumbers, .averaged_slots = slots_of(options)};
}

analysis::MemorySizes memory_sizes_of(const TrainerOptions& options) {
  return {.optimizer_numbers = slots_of(options)};
}

}  // namespace stormo::train
