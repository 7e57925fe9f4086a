#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/optim/options.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/server/shard_layout.h>

namespace stormo::server {

/// Names and values.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// What all workers of a run and its servers must agree on. The first worker (0, the chief) brings
/// it to the servers; another worker whose terms differ is refused, with the name and both values
/// of the first difference.
struct RunTerms {
  Facts facts;                                  ///< compared in order
  std::vector<std::vector<ShardPiece>> pieces;  ///< by shard
  int workers = 1;
  optim::Options optimizer;
  protocol::PolicyOptions policy;
};

/// The first difference, as "lr is 0.1 here, 0.2 at worker 0"; nothing if they are equal. `here`
/// and `there`: what to call the two sides.
std::optional<std::string> difference(const RunTerms& a, const RunTerms& b, std::string_view here,
                                      std::string_view there);

/// kInvalidArgument for terms that a server cannot serve: too many workers, shards without pieces,
/// types of elements other than float32 and float64, what check_norms() refuses, or a policy that
/// does not fit the workers.
Status check(const RunTerms& terms);

/// kInvalidArgument when LARS or LAMB would need norms of parameters that are cut, or of gradients
/// whose delay is compensated for.
Status check_norms(const RunTerms& terms);

/// The terms as bytes for a connection, and back. Decoding is strict: kCorrupt for bytes that are
/// missing or left, and for values that no RunTerms has. It allocates no more than the bytes
/// justify.
std::string encode(const RunTerms& terms);
Result<RunTerms> decode_run_terms(std::string_view bytes);

}  // namespace stormo::server
