#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <stormo/base/clock.h>

namespace stormo::c10d {

inline constexpr const char* kBackendName = "stormo";

/// What a user may choose for a default group: init_process_group("stormo", pg_options=...).
struct StormoOptions : ::c10d::Backend::Options {
  explicit StormoOptions(std::chrono::milliseconds timeout_ = kBackendDefaultTimeout)
      : Options(kBackendName, timeout_) {}
  /// Ranks of several hosts may agree on the job's secret through PyTorch's store, which asks
  /// nobody who he is: whoever reaches it can join the job.
  bool trust_store = false;

  /// torch 2.14 and later copy options by it; earlier ones have no such function.
  virtual c10::intrusive_ptr<Options> clone() const {  // NOLINT(modernize-use-override)
    return c10::make_intrusive<StormoOptions>(*this);
  }
};

/// PyTorch's timeouts may be longer than a Duration can be.
inline Duration duration_of(std::chrono::milliseconds timeout) {
  constexpr auto kMost = std::chrono::duration_cast<std::chrono::milliseconds>(Duration::max());
  return timeout < kMost ? Duration(timeout) : Duration::max();
}

}  // namespace stormo::c10d
