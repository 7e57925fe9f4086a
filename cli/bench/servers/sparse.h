#pragma once

#include <cli/bench/servers/options.h>

namespace stormo::cli {

/// `stormo bench servers --sparse`: threads of this process are the workers. Each fits a logistic
/// regression on samples of its own, all with the weights of one shard: a sample reads the weights
/// of its features, and pushes the rows of its gradient. Prints a line per kind of features. False
/// if the weights have not learned, or a push was not counted.
Result<bool> run_sparse_workers(const BenchServersOptions& options, int workers, bool json);

}  // namespace stormo::cli
