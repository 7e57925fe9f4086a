#pragma once

#include <stormo/codec/momentum_correction.h>
#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// Ranks encode the momentum of their gradients (codec::MomentumCorrection), where these travel in
/// a codec that sends few numbers, and clip them before that, not the averages after it. A plan in
/// which nothing travels so is not changed: there the optimizer has the momentum, and the averages
/// are clipped. Apply it after the passes that add reductions and codecs.
Pass correct_momentum(codec::MomentumCorrection correction);

}  // namespace stormo::parallel
