#pragma once

#include <cstddef>

#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/transfer/collectives.h>
#include <stormo/train/options.h>

namespace stormo::train {

/// Numbers that the ranks add up at the end of a step, see TrainingRun.
inline constexpr std::size_t kAgreedNumbers = 9;

/// Sizes of the data that the actions of a plan send under these options, for analysis::cost.
/// Overlapped buckets of replicas (Overlap) are counted as one reduction at the end of backward.
analysis::StepSizes step_sizes_of(const TrainerOptions& options);

/// The same for analysis::memory, without the sizes of activations.
analysis::MemorySizes memory_sizes_of(const TrainerOptions& options);

}  // namespace stormo::train
