#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace stormo::bench {

/// The value below which a share p of `values` lies (nearest rank); 0 when there are none.
double percentile(std::vector<double> values, double p);

inline double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

/// Of one figure of many things.
template <class Thing>
std::vector<double> each(const std::vector<Thing>& things, double Thing::*figure) {
  std::vector<double> out;
  for (const Thing& thing : things) out.push_back(thing.*figure);
  return out;
}
/// Not a number when there are none.
double mean(std::span<const double> values);
template <class Thing>
double mean_of(const std::vector<Thing>& things, double Thing::*figure) {
  return mean(each(things, figure));
}

/// A ratio over several rounds.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

/// Of theirs[i] / ours[i]: only times of the same round are compared.
Spread ratios(std::span<const double> theirs, std::span<const double> ours);

/// Its members of a JSON object: `name`, `name`_min and `name`_max.
template <class Json>
void add_spread(Json& out, const std::string& name, const Spread& s) {
  out[name] = s.median;
  out[name + "_min"] = s.min;
  out[name + "_max"] = s.max;
}

}  // namespace stormo::bench
