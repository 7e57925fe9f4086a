#pragma once

#include <set>

namespace stormo::protocol {

/// Which servers of a run with backups count as lost: decided in one place, the chief, so that all
/// agree. What server s holds, its successor (s + 1) % servers holds too. Two neighbours that
/// cannot talk to each other cannot tell which of them is lost: each complains to the chief, and
/// the first complaint counts. A server that is lost stays lost, and ends when it learns it; its
/// successor goes on with its part, and its predecessor goes on without a copy. So at no time two
/// servers go on with one part. A plain value without clock and I/O.
class ServerVerdicts {
 public:
  explicit ServerVerdicts(int servers) : servers_(servers) {}

  /// `from` cannot talk to its neighbour `about`, or takes it for ended. True if `about` is lost
  /// from now on. A complaint of a server that is lost itself, or about one that is no neighbour,
  /// does not count.
  bool complain(int from, int about);
  /// The chief itself cannot reach the server. True if it is lost from now on.
  bool lose(int server);

  bool is_lost(int server) const { return lost_.contains(server); }
  const std::set<int>& lost() const { return lost_; }

 private:
  int servers_;
  std::set<int> lost_;
};

/// Of a ring of servers.
inline int successor(int server, int servers) { return (server + 1) % servers; }
inline int predecessor(int server, int servers) { return (server + servers - 1) % servers; }

}  // namespace stormo::protocol
