#include <stormo/train/prepare/column_data.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include <stormo/checkpoint/exchange.h>
#include <stormo/data/fingerprint.h>
#include <stormo/data/partial_samples.h>
#include <stormo/train/prepare/loading.h>

namespace stormo::train {
namespace {

/// Names that occur on two ranks, and wanted ones that occur on none.
Status check_names(const std::vector<Preprocessing>& ranks,
                   const std::vector<std::string>& wanted) {
  std::map<std::string, std::size_t> owners;
  std::string wrong;
  const auto add = [&wrong](const std::string& what) {
    wrong += (wrong.empty() ? "" : "\n") + what;
  };
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const std::string& name : ranks[r].columns) {
      const auto [first, is_new] = owners.emplace(name, r);
      if (is_new) continue;
      add(fmt::format("ranks {} and {} both have a column \"{}\"; rename or remove one of them",
                      first->second, r, name));
    }
  }
  for (const std::string& name : wanted) {
    if (!owners.contains(name)) {
      add(fmt::format("data.columns names \"{}\", which no rank has", name));
    }
  }
  return wrong.empty() ? Status() : invalid_argument("data: " + wrong);
}

}  // namespace

bool is_labelled(const Loading& loading) {
  return !loading.rank || loading.rank->index == loading.recipe.train.strategy.labels;
}

Result<plan::Share> share_of(const Recipe& recipe, const plan::Part& rank, std::int64_t columns) {
  const std::vector<std::int64_t>& counts = recipe.train.strategy.column_counts;
  const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (!counts.empty() && (sum != columns || std::ssize(counts) != rank.parts)) {
    return invalid_argument(
        fmt::format("strategy.column_counts of [{}] are not the {} columns of features on {} ranks",
                    fmt::join(counts, ", "), columns, rank.parts));
  }
  if (columns < rank.parts) {
    return invalid_argument(
        fmt::format("{} columns of features leave none for some of {} ranks; start fewer", columns,
                    rank.parts));
  }
  return share(plan::Split{.units = columns, .counts = counts}, rank.parts, rank.index);
}

std::vector<std::size_t> parts_to_read(const Loading& loading) {
  if (loading.rank) return {static_cast<std::size_t>(loading.rank->index)};
  std::vector<std::size_t> all(loading.recipe.data.parts.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

std::string shown_path(const Loading& loading, const std::string& name) {
  if (loading.recipe.data.parts.empty()) return path_of(loading.recipe, name);
  std::vector<std::string> paths;
  for (const std::size_t i : parts_to_read(loading)) {
    paths.push_back(path_of(loading.recipe, name, i));
  }
  return fmt::format("{}", fmt::join(paths, ", "));
}

DatasetPtr as_loaded(const Loading& loading, DatasetPtr samples,
                     const std::vector<std::string>& ids) {
  if (!loading.rank) return samples;
  data::Fingerprint identity;
  identity.add(samples->size());
  for (const std::string& id : ids) identity.add(std::string_view(id));
  return std::make_shared<data::PartialSamples>(std::move(samples), is_labelled(loading),
                                                identity.value());
}

bool reads_columns(const Recipe& recipe, int ranks) {
  return recipe.train.strategy.kind == Strategy::Kind::kVertical && ranks > 1;
}

RecipeData described_columns(const Recipe& recipe) {
  RecipeData data;
  data.preprocessing.input = {recipe.model.sizes.front()};
  return data;
}

Result<JoinedColumns> join_columns(comm::Communicator& ranks, const Recipe& recipe,
                                   const Preprocessing& mine) {
  std::vector<Preprocessing> all;
  const std::string own = to_json(mine);
  for (Rank r = 0; r < ranks.size(); ++r) {
    std::string text = r == ranks.rank() ? own : std::string();
    STORMO_RETURN_IF_ERROR(checkpoint::broadcast_text(ranks, text, r));
    STORMO_ASSIGN_OR_RETURN(all.emplace_back(), parse_preprocessing(text));
  }
  if (recipe.data.kind != "npy") {
    const bool several = !recipe.data.parts.empty();
    STORMO_RETURN_IF_ERROR(
        check_names(all, several ? recipe.data.columns : std::vector<std::string>()));
  }
  JoinedColumns out{.preprocessing = all[static_cast<std::size_t>(recipe.train.strategy.labels)],
                    .counts = {}};
  Preprocessing& p = out.preprocessing;
  p.columns.clear();
  p.scales.clear();
  p.fills.clear();
  for (const Preprocessing& one : all) {
    out.counts.push_back(one.input.front());
    p.columns.insert(p.columns.end(), one.columns.begin(), one.columns.end());
    p.scales.insert(p.scales.end(), one.scales.begin(), one.scales.end());
    p.fills.insert(p.fills.end(), one.fills.begin(), one.fills.end());
  }
  p.input = {std::accumulate(out.counts.begin(), out.counts.end(), std::int64_t{0})};
  STORMO_RETURN_IF_ERROR(check_fit(recipe, p));
  return out;
}

}  // namespace stormo::train
