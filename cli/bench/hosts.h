#pragma once

#include <string>

#include <cli/launch_flags.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// Hosts made of network namespaces by tools/hosts, taken away at the end.
class BenchHosts {
 public:
  /// `rate` empty: links at the speed of memory. kInvalidArgument when this machine does not allow
  /// it (root only).
  static Result<BenchHosts> create(const std::string& tool, int count, const std::string& rate);
  BenchHosts(BenchHosts&& other) noexcept;
  BenchHosts& operator=(BenchHosts&&) = delete;
  ~BenchHosts();

  /// How the launcher reaches them, with `ranks` ranks each.
  void describe(int ranks, LaunchFlags& flags) const;

 private:
  BenchHosts(std::string tool, std::string name, int count)
      : tool_(std::move(tool)), name_(std::move(name)), count_(count) {}
  std::string tool_;
  std::string name_;  ///< empty: moved from
  int count_;
};

}  // namespace stormo::cli
