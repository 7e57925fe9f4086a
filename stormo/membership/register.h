#pragma once

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/membership/epoch_record.h>

namespace stormo::membership {

/// The one place that says who is in a job (docs/adr/0034-membership-register.md). All calls of all
/// processes have an order that fits the times at which they began and ended, and in which each
/// sees what those before it have written. Used by one thread at a time.
class Register {
 public:
  virtual ~Register() = default;

  /// The present record; one with epoch 0 if nothing has been written yet.
  virtual Result<EpochRecord> read(Deadline by) = 0;

  struct Swap {
    bool done = false;
    EpochRecord present;  ///< `next` if it was done, else what stands in its way
  };
  /// Writes `next` if the present record has the epoch before it. kInvalidArgument for a record
  /// that check() refuses. After any other failure nobody knows whether this was done, or will be:
  /// read again, and look whether the record is this one.
  virtual Result<Swap> compare_and_swap(const EpochRecord& next, Deadline by) = 0;
};

}  // namespace stormo::membership
