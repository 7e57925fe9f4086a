#pragma once

#include <optional>
#include <string>

#include <stormo/base/status.h>

namespace stormo::cli {

/// What this build says about libtorch.
struct TorchFacts {
  std::string version;       ///< "2.13.0"
  int intra_op_threads = 0;  ///< that one operation would use here
  std::string blas;          ///< "MKL", "a BLAS library" or "none known"
};

/// Empty: this build has no libtorch. An error: it has, but what needs it does not start here.
Result<std::optional<TorchFacts>> torch_facts();

std::string to_json(const TorchFacts& facts);
Result<TorchFacts> parse_torch_facts(const std::string& json);

}  // namespace stormo::cli
