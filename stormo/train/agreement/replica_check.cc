#include <stormo/train/agreement/replica_check.h>

#include <algorithm>

#include <stormo/base/rng.h>
#include <stormo/comm/agreement/agreement.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {
namespace {

using Hashes = std::vector<std::int64_t>;

std::string weights_hash_of(const VisitTensors& tensors) {
  WeightsHash hash;
  tensors([&hash](const std::string& name, const torch::Tensor& t) { hash.add(name, t); });
  return hash.hex();
}

/// A hash as the ranks compare it.
std::int64_t number_of(const std::string& weights_hash) {
  return static_cast<std::int64_t>(fnv1a(weights_hash));
}

Result<Hashes> gather(comm::Communicator& world, Hashes mine) {
  Hashes all(mine.size() * static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather(mine, all));
  return all;
}

std::string list(const std::vector<Rank>& ranks) {
  std::string text;
  for (const Rank r : ranks) text += (text.empty() ? "" : ", ") + std::to_string(r);
  return text;
}

/// The first tensor in which `rank` differs from what most ranks hold; empty when none does.
Result<std::string> first_difference(comm::Communicator& world, const VisitTensors& tensors,
                                     Rank rank) {
  Hashes mine;
  std::vector<std::string> names;
  tensors([&](const std::string& name, const torch::Tensor& t) {
    names.push_back(name);
    mine.push_back(number_of(weights_hash({{name, t}})));
  });
  const std::size_t n = mine.size();
  STORMO_ASSIGN_OR_RETURN(const Hashes all, gather(world, std::move(mine)));
  for (std::size_t i = 0; i < n; ++i) {
    Hashes column;
    for (std::size_t r = 0; r < static_cast<std::size_t>(world.size()); ++r) {
      column.push_back(all[r * n + i]);
    }
    const comm::Verdict verdict = comm::majority_vote(column);
    const auto& wrong = verdict.differing;
    if (std::find(wrong.begin(), wrong.end(), rank) != wrong.end()) return names[i];
  }
  return std::string();
}

}  // namespace

std::string compare_looks(std::span<const std::int64_t> first,
                          std::span<const std::int64_t> second) {
  std::vector<Rank> changed;
  for (std::size_t r = 0; r < first.size(); ++r) {
    if (first[r] != second[r]) changed.push_back(static_cast<Rank>(r));
  }
  if (changed.empty()) {
    return "a second look found the same, so the values stay: something outside the gradients "
           "changed them (a memory error, random numbers, unequal threads or libraries)";
  }
  return "a second look found other values on rank(s) " + list(changed) +
         ", so the error is transient: memory or processor there cannot be trusted";
}

Result<std::string> check_replicas(comm::Communicator& world, const VisitTensors& tensors) {
  const std::string hash = weights_hash_of(tensors);
  STORMO_ASSIGN_OR_RETURN(const Hashes all, gather(world, {number_of(hash)}));
  const comm::Verdict verdict = comm::majority_vote(all);
  if (verdict.differing.empty()) return hash;
  STORMO_ASSIGN_OR_RETURN(const Hashes again, gather(world, {number_of(weights_hash_of(tensors))}));
  STORMO_ASSIGN_OR_RETURN(const std::string tensor,
                          first_difference(world, tensors, verdict.differing.front()));
  return Status(
      Code::kMismatch,
      "replicas are no longer equal: the weights of rank(s) " + list(verdict.differing) +
          " differ from " +
          (verdict.majority ? "those of the majority" : "rank 0, and none has a majority") +
          (tensor.empty() ? "" : ", first in '" + tensor + "'") + "; " + compare_looks(all, again));
}

}  // namespace stormo::train
