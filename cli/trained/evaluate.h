#pragma once

#include <stormo/base/status.h>
#include <stormo/train/predict/trained_model.h>

namespace stormo::cli {

/// Which parts of the held-out data.
enum class HeldOut {
  kAll,
  kDuringTraining,  ///< all but the test part; with it where there is no validation part
  kAfterTraining,   ///< the others
};

/// Evaluates a trained model on the held-out data of its recipe, and prints the results.
Status evaluate_model(const train::TrainedModel& model, bool json, HeldOut parts = HeldOut::kAll);

}  // namespace stormo::cli
