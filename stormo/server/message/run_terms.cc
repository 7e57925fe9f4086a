#include <stormo/server/message/run_terms.h>

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>

#include <stormo/base/rng.h>
#include <stormo/server/message/server_message.h>
#include <stormo/server/shard/shard_memory.h>
#include <stormo/transport/store/wire.h>

namespace stormo::server {
namespace {

using optim::kMaxHistory;
using transport::put;
using transport::put_bytes;
using transport::WireReader;

constexpr std::size_t kMaxShardBytes = std::size_t{1} << 42;
constexpr std::size_t kPieceBytes = 8 + 8 + 8 + 1;
constexpr auto kLastRule = optim::Options::Kind::kLbfgs;
constexpr auto kLastPolicy = protocol::PolicyOptions::Kind::kAverage;
constexpr auto kLastCompensation = protocol::Compensation::kAdaptiveDelay;

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

void put_double(std::string& out, double value) { put(out, std::bit_cast<std::uint64_t>(value)); }

bool read_double(WireReader& in, double& value) {
  std::uint64_t word = 0;
  const bool done = in.read(word);
  value = std::bit_cast<double>(word);
  return done;
}

/// Fails for values after `last`.
template <class Enum>
bool read_enum(WireReader& in, Enum& value, Enum last) {
  std::uint8_t number = 0;
  if (!in.read(number) || number > static_cast<std::uint8_t>(last)) return false;
  value = static_cast<Enum>(number);
  return true;
}

bool read_facts(WireReader& in, Facts& facts) {
  std::uint32_t count = 0;
  if (!in.read(count)) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    std::string_view name, value;
    if (!in.read_bytes(kMaxControlBytes, name) || !in.read_bytes(kMaxControlBytes, value)) {
      return false;
    }
    facts.emplace_back(name, value);
  }
  return true;
}

bool read_pieces(WireReader& in, std::vector<ShardPiece>& pieces) {
  std::uint32_t count = 0;
  if (!in.read(count) || count > kMaxControlBytes / kPieceBytes) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    ShardPiece piece;
    std::uint64_t parameter = 0;
    std::uint8_t dtype = 0;
    if (!in.read(parameter) || !in.read(piece.begin) || !in.read(piece.end) || !in.read(dtype)) {
      return false;
    }
    piece.parameter = parameter;
    piece.dtype = static_cast<DType>(dtype);
    const bool is_known = piece.dtype == DType::kFloat32 || piece.dtype == DType::kFloat64;
    if (!is_known || piece.begin < 0 || piece.end < piece.begin || piece.end > kMaxPieceElements) {
      return false;
    }
    pieces.push_back(piece);
  }
  return true;
}

bool read_optimizer(WireReader& in, optim::Options& o) {
  std::uint8_t nesterov = 0;
  if (!read_enum(in, o.kind, kLastRule) || !in.read(nesterov) || nesterov > 1) return false;
  o.nesterov = nesterov == 1;
  for (double* value :
       {&o.lr, &o.momentum, &o.weight_decay, &o.beta1, &o.beta2, &o.epsilon, &o.alpha, &o.trust}) {
    if (!read_double(in, *value)) return false;
  }
  return in.read(o.history) && o.history >= 1 && o.history <= kMaxHistory;
}

bool read_policy(WireReader& in, protocol::PolicyOptions& p) {
  return read_enum(in, p.kind, kLastPolicy) && in.read(p.bound) && in.read(p.n) &&
         in.read(p.backups) && in.read(p.portions) && in.read(p.warm_start) &&
         read_enum(in, p.compensation, kLastCompensation) && read_double(in, p.lambda) &&
         read_double(in, p.lambda_decay);
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

std::string encode(const RunTerms& terms) {
  std::string out;
  put(out, static_cast<std::uint32_t>(terms.facts.size()));
  for (const auto& [name, value] : terms.facts) {
    put_bytes(out, name);
    put_bytes(out, value);
  }
  put(out, static_cast<std::uint32_t>(terms.pieces.size()));
  for (const auto& pieces : terms.pieces) {
    put(out, static_cast<std::uint32_t>(pieces.size()));
    for (const ShardPiece& p : pieces) {
      put(out, static_cast<std::uint64_t>(p.parameter));
      put(out, p.begin);
      put(out, p.end);
      put(out, static_cast<std::uint8_t>(p.dtype));
    }
  }
  put(out, static_cast<std::int32_t>(terms.workers));
  const optim::Options& o = terms.optimizer;
  put(out, static_cast<std::uint8_t>(o.kind));
  put(out, static_cast<std::uint8_t>(o.nesterov));
  for (const double value :
       {o.lr, o.momentum, o.weight_decay, o.beta1, o.beta2, o.epsilon, o.alpha, o.trust}) {
    put_double(out, value);
  }
  put(out, static_cast<std::int32_t>(o.history));
  const protocol::PolicyOptions& p = terms.policy;
  put(out, static_cast<std::uint8_t>(p.kind));
  for (const int value : {p.bound, p.n, p.backups, p.portions, p.warm_start})
    put(out, static_cast<std::int32_t>(value));
  put(out, static_cast<std::uint8_t>(p.compensation));
  put_double(out, p.lambda);
  put_double(out, p.lambda_decay);
  return out;
}

Result<RunTerms> decode_run_terms(std::string_view bytes) {
  WireReader in(bytes);
  RunTerms out;
  std::uint32_t shards = 0;
  bool good = read_facts(in, out.facts) && in.read(shards);
  for (std::uint32_t s = 0; good && s < shards; ++s)
    good = read_pieces(in, out.pieces.emplace_back());
  good = good && in.read(out.workers) && read_optimizer(in, out.optimizer) &&
         read_policy(in, out.policy) && in.done();
  if (!good) return Status(Code::kCorrupt, "the terms of the run are malformed");
  return out;
}

}  // namespace stormo::server
