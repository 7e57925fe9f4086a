#pragma once

#include <string>

namespace stormo::testing {

/// Two network namespaces with one interface each (eth0), and a bridge of this host that reaches
/// both. Needs root.
class TwoHosts {
 public:
  explicit TwoHosts(bool v6);
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  /// Empty, or why there are none.
  const std::string& problem() const { return problem_; }
  const std::string& bridge() const { return bridge_; }
  const std::string& host(int index) const { return hosts_[index]; }

 private:
  void take_down();

  std::string problem_;
  std::string bridge_;
  std::string hosts_[2];
};

}  // namespace stormo::testing
