#include <stormo/train/evaluation/best_score.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

namespace stormo::train {

bool BestScore::take(const Evaluation& result, std::int64_t step) {
  if (metric_ == "none") return false;
  const bool larger = metric_ == "accuracy";
  const double value = larger ? result.accuracy.value_or(NAN) : result.loss;
  const bool first = step_ == 0;
  const bool better = std::isfinite(value) && (first || (larger ? value > value_ : value < value_));
  if (better) {
    step_ = step;
    value_ = value;
  }
  since_ = better ? 0 : since_ + 1;
  return better;
}

std::string BestScore::to_json() const {
  return nlohmann::json(
             {{"metric", metric_}, {"step", step_}, {"since", since_}, {"value", value_}})
      .dump();
}

void BestScore::restore(std::string_view json) {
  const auto saved = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const auto whole = [&](const char* key) -> std::optional<std::int64_t> {
    const auto found = saved.find(key);
    if (found == saved.end() || !found->is_number_unsigned()) return std::nullopt;
    return found->get<std::int64_t>();
  };
  if (!saved.is_object() || saved.value("metric", nlohmann::json()) != metric_) return;
  const auto step = whole("step"), since = whole("since");
  const auto value = saved.find("value");
  if (!step || !since || value == saved.end() || !value->is_number()) return;
  step_ = *step;
  since_ = *since;
  value_ = value->get<double>();
}

}  // namespace stormo::train
