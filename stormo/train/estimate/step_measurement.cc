#include <stormo/train/estimate/step_measurement.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace stormo::train {
namespace {

using nlohmann::json;

double between(double a, double b, double t) { return a + (b - a) * t; }

std::vector<double> between(const std::vector<double>& a, const std::vector<double>& b, double t) {
  std::vector<double> out;
  for (std::size_t i = 0; i < a.size(); ++i) out.push_back(between(a[i], b[i], t));
  return out;
}

std::vector<std::int64_t> between(const std::vector<std::int64_t>& a,
                                  const std::vector<std::int64_t>& b, double t) {
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < a.size(); ++i) {
    out.push_back(static_cast<std::int64_t>(
        between(static_cast<double>(a[i]), static_cast<double>(b[i]), t)));
  }
  return out;
}

/// Of each time what `pick` makes of its values in all rounds.
template <class Pick>
StepMeasurement picked(const std::vector<StepMeasurement>& rounds, const Pick& pick) {
  using analysis::ComputeTimes;
  StepMeasurement out = rounds.front();
  for (double ComputeTimes::*const time :
       {&ComputeTimes::load, &ComputeTimes::loss, &ComputeTimes::norm, &ComputeTimes::update,
        &ComputeTimes::gradient}) {
    std::vector<double> values;
    for (const StepMeasurement& m : rounds) values.push_back(m.times.*time);
    out.times.*time = pick(std::move(values));
  }
  ComputeTimes& times = out.times;
  for (std::size_t i = 0; i < times.forward.size(); ++i) {
    std::vector<double> forward, backward;
    for (const StepMeasurement& m : rounds) {
      forward.push_back(m.times.forward[i]);
      backward.push_back(m.times.backward[i]);
    }
    times.forward[i] = pick(std::move(forward));
    const double before = times.backward[i];
    times.backward[i] = pick(std::move(backward));
    if (times.backward_input.empty() || before == 0) continue;
    times.backward_input[i] *= times.backward[i] / before;
    times.backward_weight[i] *= times.backward[i] / before;
  }
  return out;
}

}  // namespace

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

StepMeasurement between(const StepMeasurement& a, const StepMeasurement& b, double t) {
  return {.times = {.forward = between(a.times.forward, b.times.forward, t),
                    .backward = between(a.times.backward, b.times.backward, t),
                    .backward_input = between(a.times.backward_input, b.times.backward_input, t),
                    .backward_weight = between(a.times.backward_weight, b.times.backward_weight, t),
                    .load = between(a.times.load, b.times.load, t),
                    .loss = between(a.times.loss, b.times.loss, t),
                    .norm = between(a.times.norm, b.times.norm, t),
                    .update = between(a.times.update, b.times.update, t),
                    .gradient = between(a.times.gradient, b.times.gradient, t)},
          .activations = between(a.activations, b.activations, t),
          .outputs = between(a.outputs, b.outputs, t)};
}

StepMeasurement shortest(const std::vector<StepMeasurement>& rounds) {
  return picked(rounds, [](std::vector<double> times) { return std::ranges::min(times); });
}

StepMeasurement medians(const std::vector<StepMeasurement>& rounds) {
  return picked(rounds, median);
}

std::string to_text(const std::vector<StepMeasurement>& all) {
  json out = json::array();
  for (const StepMeasurement& m : all) {
    const analysis::ComputeTimes& t = m.times;
    out.push_back({t.forward, t.backward, t.backward_input, t.backward_weight, t.load, t.loss,
                   t.norm, t.update, t.gradient, m.activations, m.outputs});
  }
  return out.dump();
}

Result<std::vector<StepMeasurement>> measurements_of(std::string_view text) {
  std::vector<StepMeasurement> out;
  try {
    for (const json& in : json::parse(text)) {
      StepMeasurement& m = out.emplace_back();
      analysis::ComputeTimes& t = m.times;
      in.at(0).get_to(t.forward);
      in.at(1).get_to(t.backward);
      in.at(2).get_to(t.backward_input);
      in.at(3).get_to(t.backward_weight);
      in.at(4).get_to(t.load);
      in.at(5).get_to(t.loss);
      in.at(6).get_to(t.norm);
      in.at(7).get_to(t.update);
      in.at(8).get_to(t.gradient);
      in.at(9).get_to(m.activations);
      in.at(10).get_to(m.outputs);
    }
  } catch (const json::exception& e) {
    return Status(Code::kCorrupt, std::string("measured times: ") + e.what());
  }
  return out;
}

}  // namespace stormo::train
