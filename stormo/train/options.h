#pragma once

#include <cstdint>
#include <string>

#include <stormo/optim/options.h>

namespace stormo::train {

using OptimizerOptions = optim::Options;

struct LearningRateOptions {
  enum class Kind { kConstant, kCosine } kind = Kind::kConstant;
  std::int64_t warmup_steps = 0;  ///< linear from 0 to lr
  double min_lr = 0;              ///< end of the cosine
};

struct CheckpointOptions {
  std::string directory;   ///< empty: none is written
  std::int64_t every = 0;  ///< steps; 0: only at the end and when interrupted
  int keep = 2;            ///< newest complete ones that stay
};

struct TrainerOptions {
  std::string name = "program";       ///< appears in records and manifests
  std::string recipe_json = "{}";     ///< resolved recipe; the Trainer copies it into Snapshots
  std::string strategy = "mirrored";  ///< "one_device" or "mirrored"
  std::int64_t steps = 0;             ///< steps of the whole run; or
  std::int64_t epochs = 0;            ///< whole epochs, used when steps == 0
  std::int64_t global_batch = 0;      ///< samples per step over all ranks
  std::uint64_t seed = 1;
  std::int64_t log_every = 10;
  std::int64_t eval_every = 0;  ///< steps; 0: only at the end
  double clip_norm = 0;         ///< global norm of the averaged gradient; 0: off
  bool resume = false;          ///< continue from the newest complete checkpoint of the directory
  std::int64_t verify_every =
      0;  ///< compare replicas bitwise every so many steps; 0: at the end only
  OptimizerOptions optimizer;
  LearningRateOptions learning_rate;
  CheckpointOptions checkpoint;
};

}  // namespace stormo::train
