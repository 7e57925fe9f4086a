#pragma once

#include <stormo/base/status.h>
#include <stormo/train/predict/trained_model.h>

namespace stormo::cli {

/// Evaluates a trained model on the held-out data of its recipe, and prints the results.
Status evaluate_model(const train::TrainedModel& model, bool json);

}  // namespace stormo::cli
