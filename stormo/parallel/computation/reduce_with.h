#pragma once

#include <string>

#include <stormo/codec/codec.h>
#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// How gradients are added up; equal on all ranks.
struct ReductionForm {
  Codec codec = Codec::kNone;
  /// Builders of schedules; empty: the fastest for size, ranks and hosts.
  std::string all_reduce = {};
  std::string reduce_scatter = {};
  bool operator==(const ReductionForm&) const = default;
};

/// One order of additions: bits depend only on the ranks and hosts, not on sizes or timing.
ReductionForm in_one_order(Codec codec);

/// Gives a reduction this form, and an average of parameters its codec; other actions stay as they
/// are.
void set_form(plan::Action& action, const ReductionForm& form);

/// All reductions of gradients in the plan have this form, and averages of parameters its codec. A
/// plan without any is not changed. Apply it after the passes that add reductions.
Pass reduce_with(ReductionForm form);

}  // namespace stormo::parallel
