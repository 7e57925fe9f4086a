#include <stormo/train/estimate/step_measurement.h>

#include <algorithm>
#include <array>
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

using analysis::ComputeTimes;

constexpr std::array kNumbers = {&ComputeTimes::load, &ComputeTimes::loss, &ComputeTimes::norm,
                                 &ComputeTimes::update, &ComputeTimes::gradient};
constexpr std::array kOfSegments = {&ComputeTimes::forward, &ComputeTimes::backward,
                                    &ComputeTimes::backward_input, &ComputeTimes::backward_weight};
constexpr std::array kBytes = {&StepMeasurement::activations, &StepMeasurement::outputs};

/// Of each time what `pick` makes of its values in all rounds.
template <class Pick>
StepMeasurement picked(const std::vector<StepMeasurement>& rounds, const Pick& pick) {
  StepMeasurement out = rounds.front();
  ComputeTimes& times = out.times;
  const auto of_rounds = [&](const auto& time_of) {
    std::vector<double> values;
    for (const StepMeasurement& m : rounds) values.push_back(time_of(m.times));
    return pick(std::move(values));
  };
  for (const auto time : kNumbers) {
    times.*time = of_rounds([&](const ComputeTimes& t) { return t.*time; });
  }
  for (std::size_t i = 0; i < times.forward.size(); ++i) {
    const double before = times.backward[i];
    times.forward[i] = of_rounds([&](const ComputeTimes& t) { return t.forward[i]; });
    times.backward[i] = of_rounds([&](const ComputeTimes& t) { return t.backward[i]; });
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
  StepMeasurement out;
  for (const auto of : kOfSegments) out.times.*of = between(a.times.*of, b.times.*of, t);
  for (const auto of : kNumbers) out.times.*of = between(a.times.*of, b.times.*of, t);
  for (const auto of : kBytes) out.*of = between(a.*of, b.*of, t);
  return out;
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
    json& one = out.emplace_back(json::array());
    for (const auto of : kOfSegments) one.push_back(m.times.*of);
    for (const auto of : kNumbers) one.push_back(m.times.*of);
    for (const auto of : kBytes) one.push_back(m.*of);
  }
  return out.dump();
}

Result<std::vector<StepMeasurement>> measurements_of(std::string_view text) {
  std::vector<StepMeasurement> out;
  try {
    for (const json& in : json::parse(text)) {
      StepMeasurement& m = out.emplace_back();
      std::size_t next = 0;
      for (const auto of : kOfSegments) in.at(next++).get_to(m.times.*of);
      for (const auto of : kNumbers) in.at(next++).get_to(m.times.*of);
      for (const auto of : kBytes) in.at(next++).get_to(m.*of);
    }
  } catch (const json::exception& e) {
    return Status(Code::kCorrupt, std::string("measured times: ") + e.what());
  }
  return out;
}

}  // namespace stormo::train
