#pragma once

#include <functional>
#include <string>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/train/state/safetensors.h>

namespace stormo::train {

/// The name in a checkpoint of what a rank keeps under this key (state/residuals.h).
std::string saved_residual(Rank rank, const std::string& key);

/// Who goes on with what the ranks of a checkpoint have kept.
struct ResidualReader {
  Rank rank = 0;
  int ranks = 1;
  /// Ranks have different parts of the model: each takes what the rank of its number has saved.
  /// Else, of fewer ranks, each takes the sum of what several have lost, and of more, some nothing:
  /// so all together have lost as much as before, and have as much momentum.
  bool has_parts = false;
};

/// By key. `names`: of the tensors of a checkpoint; `read` reads one of them.
using ReadTensor = std::function<Result<torch::Tensor>(const std::string& name)>;
Result<TensorMap> residuals_for(const ResidualReader& reader, const std::vector<std::string>& names,
                                const ReadTensor& read);

}  // namespace stormo::train
