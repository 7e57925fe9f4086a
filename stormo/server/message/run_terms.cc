#include <stormo/server/message/run_terms.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include <stormo/base/rng.h>
#include <stormo/server/shard/shard_memory.h>

namespace stormo::server {
namespace {

constexpr std::size_t kMaxShardBytes = std::size_t{1} << 42;

std::string describe(const std::vector<ShardPiece>& pieces) {
  std::size_t bytes = 0;
  std::string all;
  for (const ShardPiece& p : pieces) {
    bytes += p.bytes();
    all += fmt::format("{} {} {} {};", p.parameter, p.begin, p.end, static_cast<int>(p.dtype));
  }
  return fmt::format("{} pieces of {} B (hash {:016x})", pieces.size(), bytes, fnv1a(all));
}

/// All that is compared, in order.
Facts facts_of(const RunTerms& terms) {
  Facts out = terms.facts;
  const auto add = [&out](std::string name, auto value) {
    out.emplace_back(std::move(name), fmt::format("{}", value));
  };
  add("number of workers", terms.workers);
  add("number of shards", terms.pieces.size());
  for (std::size_t s = 0; s < terms.pieces.size(); ++s) {
    add(fmt::format("shard {}", s), describe(terms.pieces[s]));
  }
  const optim::Options& o = terms.optimizer;
  add("number of the optimizer's rule", static_cast<int>(o.kind));
  add("optimizer.lr", o.lr);
  add("optimizer.momentum", o.momentum);
  add("optimizer.nesterov", o.nesterov);
  add("optimizer.weight_decay", o.weight_decay);
  add("optimizer.beta1", o.beta1);
  add("optimizer.beta2", o.beta2);
  add("optimizer.epsilon", o.epsilon);
  add("optimizer.alpha", o.alpha);
  add("optimizer.trust", o.trust);
  add("optimizer.history", o.history);
  const protocol::PolicyOptions& p = terms.policy;
  add("policy", protocol::policy_names()[static_cast<std::size_t>(p.kind)]);
  add("bound of the policy", p.bound);
  add("n of the policy", p.n);
  add("backups of the policy", p.backups);
  add("portions of a batch", p.portions);
  add("warm start", p.warm_start);
  add("compensation", protocol::compensation_names()[static_cast<std::size_t>(p.compensation)]);
  add("lambda of the compensation", p.lambda);
  add("decay of its mean square", p.lambda_decay);
  return out;
}

}  // namespace

std::optional<std::string> difference(const RunTerms& a, const RunTerms& b, std::string_view here,
                                      std::string_view there) {
  const Facts ours = facts_of(a), theirs = facts_of(b);
  for (std::size_t i = 0; i < std::max(ours.size(), theirs.size()); ++i) {
    if (i >= ours.size()) return fmt::format("{} is missing at {}", theirs[i].first, here);
    if (i >= theirs.size()) return fmt::format("{} is missing at {}", ours[i].first, there);
    if (ours[i].first != theirs[i].first) {
      return fmt::format("{} has '{}' where {} has '{}'", here, ours[i].first, there,
                         theirs[i].first);
    }
    if (ours[i].second == theirs[i].second) continue;
    return fmt::format("{} is {} at {}, but {} at {}", ours[i].first, ours[i].second, here,
                       theirs[i].second, there);
  }
  return {};
}

Status check_norms(const RunTerms& terms) {
  if (!optim::needs_norms(terms.optimizer.kind)) return {};
  if (protocol::compensates_delay(terms.policy.compensation)) {
    return invalid_argument(
        "lars and lamb scale updates by norms of gradients, and delay compensation changes these; "
        "leave out strategy.compensation, or use another optimizer");
  }
  std::set<std::size_t> seen;
  for (const std::vector<ShardPiece>& pieces : terms.pieces) {
    for (const ShardPiece& p : pieces) {
      if (seen.insert(p.parameter).second && p.begin == 0) continue;
      return invalid_argument(
          fmt::format("lars and lamb need norms of whole parameters, and strategy.placement=sliced "
                      "cuts parameter {} over several servers; use greedy or round_robin",
                      p.parameter));
    }
  }
  return {};
}

Status check(const RunTerms& terms) {
  if (terms.workers < 1 || terms.workers > ShardMemory::kMaxWorkers) {
    return invalid_argument(fmt::format("servers serve 1 to {} workers, not {}",
                                        ShardMemory::kMaxWorkers, terms.workers));
  }
  STORMO_RETURN_IF_ERROR(check_norms(terms));
  if (!optim::updates_ranges(terms.optimizer.kind) &&
      terms.policy.kind != protocol::PolicyOptions::Kind::kPortions) {
    return invalid_argument(
        "L-BFGS needs the gradient of a whole batch; use the policy portions with it");
  }
  for (std::size_t s = 0; s < terms.pieces.size(); ++s) {
    if (terms.pieces[s].empty()) {
      return invalid_argument(fmt::format("shard {} has no parameters; use fewer shards", s));
    }
    std::size_t bytes = 0;
    for (const ShardPiece& p : terms.pieces[s])
      bytes = std::min(kMaxShardBytes + 1, bytes + p.bytes());
    if (bytes > kMaxShardBytes) {
      return invalid_argument(
          fmt::format("shard {} has more than {} B; use more shards", s, kMaxShardBytes));
    }
  }
  return protocol::make_policy(terms.policy, terms.workers).status();
}

}  // namespace stormo::server
