#pragma once

#include <string>

namespace stormo::cli {

/// What this build says about libtorch. Only built with it.
struct TorchFacts {
  std::string version;       ///< "2.13.0"
  int intra_op_threads = 0;  ///< that one operation would use here
  std::string blas;          ///< "MKL", "OpenBLAS" or "none known"
};
TorchFacts torch_facts();

}  // namespace stormo::cli
