#pragma once

#include <stormo/base/status.h>
#include <stormo/train/predict/trained_model.h>

namespace stormo::cli {

/// Of a model that is evaluated while it trains: where there is a validation part, the test part is
/// for the last checkpoint.
enum class HeldOut { kAll, kDuringTraining, kAfterTraining };

/// Evaluates a trained model on the held-out data of its recipe, and prints the results.
/// kDuringTraining and kAfterTraining together are all of it.
Status evaluate_model(const train::TrainedModel& model, bool json, HeldOut parts = HeldOut::kAll);

}  // namespace stormo::cli
