#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace stormo::codec {

/// Momentum of gradients of which few numbers travel (Deep Gradient Compression). Each rank has a
/// momentum of its own terms, u = m u + g, and adds it to what it sends and keeps; the optimizer
/// has none. So what travels late comes with the momentum that it would have had.
///
/// Factor masking: where something late has been sent, u becomes 0. Else the momentum would go on
/// to point to where gradients pointed many steps ago. What is sent in the step in which it arises
/// keeps its u: if all numbers travel, ranks do what one process does that has a momentum. (The
/// paper masks there, too, which takes the momentum away as the density rises to 1.)
///
/// Paper: Y. Lin et al., "Deep gradient compression", ICLR 2018.
struct MomentumCorrection {
  double momentum = 0;  ///< above 0 and below 1
  /// > 0: each rank scales its term of the gradient down to a norm of clip_norm / sqrt(ranks),
  /// before it has a momentum. Terms of so many ranks that are independent have a sum of the norm
  /// clip_norm.
  double clip_norm = 0;
  bool operator==(const MomentumCorrection&) const = default;
};

/// As in the text form of plans: "momentum_0.9", "momentum_0.9_clip_1".
std::string to_string(const MomentumCorrection& correction);
/// Nothing: the word says something else.
std::optional<MomentumCorrection> momentum_correction_of(std::string_view word);

/// The factor that clips the terms of a rank with this norm.
double clip_factor(const MomentumCorrection& correction, double norm, int ranks);

/// Gives a rank's terms their momentum: u = m u + factor x terms, v = v + u. Notes of which numbers
/// v has something late. None is shorter than `terms`.
void add_momentum(const MomentumCorrection& correction, std::span<const float> terms, float factor,
                  std::span<float> u, std::span<float> v, std::span<std::byte> late);
/// After v has been encoded, and is 0 where it was sent: factor masking. What is not finite is 0
/// from now on.
void mask_momentum(std::span<const float> v, std::span<const std::byte> late, std::span<float> u);

/// The density in step `number`, from 1 on, where that of the first `warmup_steps` falls to
/// `density`: 1/4, 1/16 and so on, equally long each, as long as it is above.
double density_in_step(double density, std::int64_t number, std::int64_t warmup_steps);

}  // namespace stormo::codec
