#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <stormo/protocol/elastic/elastic_message.h>

namespace stormo::protocol {

/// Positions in the order of samples that the run's seed gives, which has no end.
struct SampleRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  bool operator==(const SampleRange&) const = default;
};

/// The samples of a step are a function of its number alone. So a step that is redone, by whomever,
/// has the same ones, none is left out, and none is taken twice. Steps begin with 1.
SampleRange batch_of(std::uint64_t step, std::uint64_t global_batch);

/// The part of that which one member computes. By rank, in proportion to the shares; exact: the
/// parts of all ranks are the batch. A member that is being healed computes nothing.
SampleRange part_of(const SampleRange& batch, const ElasticRecord& record, std::size_t rank,
                    bool is_healing);

/// The slices of the state that one step of an epoch carries to the members that are no donors.
struct SliceRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  bool operator==(const SliceRange&) const = default;
};

/// How the state gets to members that have not got it. It is cut into `slices`. While donors train
/// on, each step n carries the next ones as they were after step n - 1; whoever has received them
/// applies the reduced gradients of step n to them, as all members do. The numbers are at least 1.
struct Healing {
  std::uint32_t slices = 1;
  std::uint32_t slices_per_step = 1;       ///< where some of them go from host to host
  std::uint32_t near_slices_per_step = 1;  ///< where all of them stay on their host

  static bool is_needed(const ElasticRecord& record) {
    return record.donors.size() < record.members.size();
  }
  /// Whether each member that has not got the state has a donor on its host. Donors of a member are
  /// those of its part.
  static bool is_near(const ElasticRecord& record);
  /// The step after which everything has arrived; base_step if nothing is missing.
  std::uint64_t last_step(const ElasticRecord& record) const;
  SliceRange slices_of(const ElasticRecord& record, std::uint64_t step) const;
  /// Who sends a slice to `receiver`: the donors on its host take turns; if there are none, all of
  /// its part do.
  static const std::string& donor_of(const ElasticRecord& record, std::uint32_t slice,
                                     std::string_view receiver);
  /// Whether members that are no donors still compute nothing in this step: also in the first one
  /// after all has arrived, because it is committed only if their states are equal to the donors'.
  bool is_healing(const ElasticRecord& record, std::uint64_t step) const {
    return is_needed(record) && step <= last_step(record) + 1;
  }

 private:
  std::uint32_t in_step(const ElasticRecord& record) const {
    return is_near(record) ? near_slices_per_step : slices_per_step;
  }
};

}  // namespace stormo::protocol
