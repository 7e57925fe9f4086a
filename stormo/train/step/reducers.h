#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include <stormo/plan/adasum.h>
#include <stormo/train/options.h>

namespace stormo::train {

/// A choice of the key strategy.reducer, and what stands behind `by` in its plans.
struct ReducerRow {
  Reducer reducer;
  std::string_view name;
  std::string_view algorithm;
};
inline constexpr std::array kReducers = {
    ReducerRow{Reducer::kAuto, "auto", ""}, ReducerRow{Reducer::kRing, "ring", "ring_all_reduce"},
    ReducerRow{Reducer::kHierarchical, "hierarchical", "hierarchical_all_reduce"},
    ReducerRow{Reducer::kReduceToOne, "reduce_to_one", "star_all_reduce"},
    ReducerRow{Reducer::kAdasum, "adasum", plan::kAdasum}};

constexpr const ReducerRow& row_of(Reducer reducer) {
  return kReducers.at(static_cast<std::size_t>(reducer));
}
constexpr bool reducers_in_order() {
  for (const ReducerRow& row : kReducers) {
    if (row_of(row.reducer).name != row.name) return false;
  }
  return true;
}
static_assert(reducers_in_order());

}  // namespace stormo::train
