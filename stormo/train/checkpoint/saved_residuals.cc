#include <stormo/train/checkpoint/saved_residuals.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include <stormo/base/text.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/state/other_slots.h>
#include <stormo/train/state/residuals.h>

namespace stormo::train {
namespace {

/// The rank and the key of a tensor of this name; none: it is another one's.
std::optional<std::pair<Rank, std::string>> residual_of_name(const std::string& name) {
  const std::string prefix = optimizer_key(kResidualSlot, "rank");
  if (!name.starts_with(prefix)) return {};
  const std::size_t dot = name.find('.', prefix.size());
  if (dot == std::string::npos) return {};
  const auto rank =
      number_in<Rank>(std::string_view(name).substr(prefix.size(), dot - prefix.size()));
  if (!rank) return {};
  return std::pair(*rank, name.substr(dot + 1));
}

/// Of what a rank keeps: over how many ranks it was summed; 0: nobody says.
Result<std::int64_t> ranks_of_sum(Rank rank, const std::string& key,
                                  const std::vector<std::string>& names, const ReadTensor& read) {
  const std::string name = saved_residual(rank, key + std::string(kSumsSuffix));
  if (std::ranges::count(names, name) == 0) return 0;
  STORMO_ASSIGN_OR_RETURN(const torch::Tensor sums, read(name));
  const bool is_sound = sums.numel() == 2 && sums.scalar_type() == torch::kInt64;
  return is_sound ? sums.const_data_ptr<std::int64_t>()[1] : 0;
}

/// What a rank lost of the sums that it owned counts for its own terms: others own them now.
void add_sums_to_terms(torch::Tensor& kept, Rank rank, std::int64_t ranks) {
  if (kept.dim() != 2 || kept.size(0) <= ranks) return;
  kept.select(0, rank).add_(kept.select(0, ranks));
  kept.select(0, ranks).zero_();
}

}  // namespace

std::string saved_residual(Rank rank, const std::string& key) {
  return optimizer_key(kResidualSlot, "rank" + std::to_string(rank) + "." + key);
}

Result<TensorMap> residuals_for(const ResidualReader& reader, const std::vector<std::string>& names,
                                const ReadTensor& read) {
  TensorMap out;
  Rank ranks = 0;  // of the checkpoint
  for (const std::string& name : names) {
    if (const auto residual = residual_of_name(name)) ranks = std::max(ranks, residual->first + 1);
  }
  const bool on_others = !reader.has_parts && ranks != reader.ranks;
  for (const std::string& name : names) {
    const auto residual = residual_of_name(name);
    if (!residual) continue;
    const auto& [rank, key] = *residual;
    const Rank goes_to = reader.has_parts ? rank : rank % reader.ranks;
    if (is_equal_on_ranks(key) ? out.contains(key) : goes_to != reader.rank) continue;
    STORMO_ASSIGN_OR_RETURN(torch::Tensor values, read(name));
    if (on_others && !is_equal_on_ranks(key)) {
      STORMO_ASSIGN_OR_RETURN(const std::int64_t summed, ranks_of_sum(rank, key, names, read));
      if (summed == ranks) add_sums_to_terms(values, rank, ranks);
    }
    const auto [place, is_first] = out.emplace(key, values);
    if (!is_first) place->second.add_(values);
  }
  return out;
}

}  // namespace stormo::train
