#pragma once

#include <stormo/analysis/step/step_collectives.h>
#include <stormo/analysis/step/step_memory.h>
#include <stormo/train/options.h>

namespace stormo::train {

/// What a run's options say of how much the actions of its plan move, for analysis::cost. Replicas
/// that average bucket by bucket while backward goes on (Overlap) are counted as if they averaged
/// everything at its end.
analysis::StepSizes step_sizes_of(const TrainerOptions& options);

/// The same for analysis::memory; activations are unknown.
analysis::MemorySizes memory_sizes_of(const TrainerOptions& options);

}  // namespace stormo::train
