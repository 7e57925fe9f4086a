#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/train/predict/trained_model.h>

namespace stormo::train {

struct ClassChance {
  std::int64_t index = 0;
  std::string name;  ///< the number, if classes have no names
  double probability = 0;
};

/// The model's prediction for one sample.
struct Prediction {
  std::string file{};
  std::int64_t line = 0;  ///< line of a text or table, row of an array, from 1; images: 0
  std::vector<ClassChance> likeliest{};  ///< descending; empty if the prediction is a number
  std::optional<double> value{};         ///< in the unit of the data's own targets
};

struct PredictionSink {
  std::function<void(const Prediction&)> prediction;
  /// What a person should know, such as texts that the training data do not have.
  std::function<void(const std::string& line)> warn;
};

/// Predicts all samples of `file` in their order, and calls `take` for each. A file is an image
/// (for models of images); a text, where each non-empty line is a sample; a table (its label column
/// may be absent); an array .npy, or the tensor "inputs" of a safetensors file. Samples are
/// prepared as in training, without the label. `top` >= 1: number of classes in each prediction.
/// kInvalidArgument for a language model; kNotFound, kIo, kCorrupt and kInvalidArgument name the
/// file. kCorrupt also names the sample whose prediction is no finite number.
Status predict_file(const TrainedModel& model, const std::string& file, int top,
                    const PredictionSink& take);

}  // namespace stormo::train
