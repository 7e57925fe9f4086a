#include <stormo/codec/momentum_correction.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <stormo/base/text.h>

namespace stormo::codec {
namespace {

constexpr std::string_view kMomentum = "momentum_", kClip = "_clip_";
constexpr double kWarmUpFactor = 0.25;

/// Takes a number from the front of `text`.
std::optional<double> take_number(std::string_view& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

}  // namespace

std::string to_string(const MomentumCorrection& correction) {
  std::string out = std::string(kMomentum) + shortest(correction.momentum);
  if (correction.clip_norm != 0) out += std::string(kClip) + shortest(correction.clip_norm);
  return out;
}

std::optional<MomentumCorrection> momentum_correction_of(std::string_view word) {
  if (!word.starts_with(kMomentum)) return {};
  word.remove_prefix(kMomentum.size());
  MomentumCorrection out;
  const auto momentum = take_number(word);
  if (!momentum) return {};
  out.momentum = *momentum;
  if (word.starts_with(kClip)) {
    word.remove_prefix(kClip.size());
    const auto clip = take_number(word);
    if (!clip) return {};
    out.clip_norm = *clip;
  }
  return word.empty() ? std::optional(out) : std::nullopt;
}

double clip_factor(const MomentumCorrection& correction, double norm, int ranks) {
  constexpr double kTiny = 1e-6;  // as in torch::nn::utils::clip_grad_norm_
  return std::min(1.0, correction.clip_norm / std::sqrt(ranks) / (norm + kTiny));
}

void add_momentum(const MomentumCorrection& correction, std::span<const float> terms, float factor,
                  std::span<float> u, std::span<float> v, std::span<std::byte> late) {
  const auto m = static_cast<float>(correction.momentum);
  for (std::size_t i = 0; i < terms.size(); ++i) {
    const float before = v[i];
    u[i] = m * u[i] + factor * terms[i];
    v[i] = before + u[i];
    late[i] = std::byte{before != 0 && v[i] != 0};
  }
}

void mask_momentum(std::span<const float> v, std::span<const std::byte> late, std::span<float> u) {
  for (std::size_t i = 0; i < u.size(); ++i) {
    const bool is_sent = v[i] == 0 && late[i] != std::byte{};
    if (is_sent || !std::isfinite(u[i])) u[i] = 0;
  }
}

double density_in_step(double density, std::int64_t number, std::int64_t warmup_steps) {
  if (number > warmup_steps) return density;
  int stages = 0;
  for (double d = kWarmUpFactor; d > density; d *= kWarmUpFactor) ++stages;
  if (stages == 0) return density;
  const std::int64_t stage = (number - 1) * stages / warmup_steps;
  return std::pow(kWarmUpFactor, static_cast<double>(stage + 1));
}

}  // namespace stormo::codec
