#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/optim/options.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/server/message/server_message.h>
#include <stormo/server/shard_layout.h>

namespace stormo::optim {

void fields(auto& visit, transport::Like<Options> auto& o) {
  visit("options of the optimizer",
        transport::within(o.kind, Options::Kind::kSgd, Options::Kind::kLbfgs), o.nesterov, o.lr,
        o.momentum, o.weight_decay, o.beta1, o.beta2, o.epsilon, o.alpha, o.trust,
        transport::within(o.history, 1, kMaxHistory));
}

}  // namespace stormo::optim
namespace stormo::protocol {

void fields(auto& visit, transport::Like<PolicyOptions> auto& p) {
  using Kind = PolicyOptions::Kind;
  visit("options of the policy", transport::within(p.kind, Kind::kSync, Kind::kAverage), p.bound,
        p.n, p.backups, p.portions, p.warm_start,
        transport::within(p.compensation, Compensation::kNone, Compensation::kAdaptiveDelay),
        p.lambda, p.lambda_decay);
}

}  // namespace stormo::protocol
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

void fields(auto& visit, Like<ShardPiece> auto& piece) {
  visit("piece", piece.parameter, transport::within(piece.begin, 0, kMaxPieceElements),
        transport::within(piece.end, 0, kMaxPieceElements),
        transport::within(piece.dtype, DType::kFloat32, DType::kFloat64));
  visit.require(piece.begin <= piece.end, "a piece that ends before it begins");
}
void fields(auto& visit, Like<RunTerms> auto& terms) {
  visit("terms of the run", terms.facts, terms.pieces, terms.workers, terms.optimizer,
        terms.policy);
}

}  // namespace stormo::server
