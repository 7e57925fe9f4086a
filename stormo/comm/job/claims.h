#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::comm {

/// How a rank gets the job's secret when there are several hosts.
inline constexpr std::string_view kBySharedFile = "file";
inline constexpr std::string_view kByTrust = "trust";

/// What a rank says of itself in a Bulletin. Whoever writes there can claim anything.
struct Claims {
  std::string kernel;  ///< its boot id
  std::string user;
  std::string processes;  ///< namespaces
  std::string mounts;
  std::string network;
  std::string pid;
  std::string secret_by;  ///< as above; empty: no way
  std::string socket;     ///< path of its HostSocket
  std::string host;       ///< display name
  bool operator==(const Claims&) const = default;

  static Claims own(const transport::JobSettings& settings, std::string socket);
  /// "pid 12 on node1", for messages.
  std::string name() const;
  /// One line for each field.
  std::string to_text() const;
};
/// Those of `count` ranks, one after the other. kCorrupt when the text has not as many.
Result<std::vector<Claims>> parse_claims(std::string_view text, int count);

/// Empty if the two may be on one host; else in what they differ: "their network namespaces
/// differ".
std::string difference(const Claims& a, const Claims& b);

}  // namespace stormo::comm
