#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stormo::model {

/// The model of a recipe. Fields that a kind does not use are ignored.
struct ModelOptions {
  std::string kind = "mlp";  ///< "mlp", "cnn", "gpt", "resnet20", "text_classifier" or "local"
  std::vector<std::int64_t> sizes = {784, 512, 512, 10};  ///< mlp
  bool by_columns = false;    ///< mlp: ranks cut it as MlpCut::kByColumns says
  std::int64_t classes = 10;  ///< cnn, local, resnet20, text_classifier
  std::int64_t layers = 4;    ///< gpt, text_classifier, and the following
  std::int64_t heads = 4;
  std::int64_t width = 128;
  std::int64_t context = 64;
  std::int64_t vocabulary = 256;
  bool tied = true;     ///< gpt
  bool sparse = false;  ///< text_classifier, see TextClassifierOptions::sparse
  /// cnn, local, resnet20: channels, height, width; empty: the form of MNIST (cnn, local) or
  /// CIFAR-10 (resnet20)
  std::vector<std::int64_t> image = {};
};

}  // namespace stormo::model
