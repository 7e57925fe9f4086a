#include <stormo/train/checkpoint/saved_residuals.h>

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

}  // namespace

std::string saved_residual(Rank rank, const std::string& key) {
  return optimizer_key(kResidualSlot, "rank" + std::to_string(rank) + "." + key);
}

Result<TensorMap> residuals_for(const ResidualReader& reader, const std::vector<std::string>& names,
                                const ReadTensor& read) {
  TensorMap out;
  for (const std::string& name : names) {
    const auto residual = residual_of_name(name);
    if (!residual) continue;
    const auto& [rank, key] = *residual;
    const Rank goes_to = reader.has_parts ? rank : rank % reader.ranks;
    if (is_equal_on_ranks(key) ? out.contains(key) : goes_to != reader.rank) continue;
    STORMO_ASSIGN_OR_RETURN(torch::Tensor values, read(name));
    const auto [place, is_first] = out.emplace(key, values);
    if (!is_first) place->second.add_(values);
  }
  return out;
}

}  // namespace stormo::train
