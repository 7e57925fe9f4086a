#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/protocol/server/chief_terms.h>
#include <stormo/server/message/server_message.h>
#include <stormo/server/process/hosted_partitions.h>
#include <stormo/server/process/server_members.h>

namespace stormo::server {

/// Who is the chief of a run, as one of its servers sees it. Without backups, and before the run is
/// open, the run ends with worker 0. With backups another worker takes its place: the server that
/// executes the requests for part 0 elects the lowest one that it hears, tells its backup, and then
/// all who ask. The process of a chief that was lost is ended, where it runs on a server's host.
/// For one thread.
class ChiefWatch {
 public:
  struct Options {
    HostedPartitions* parts = nullptr;  ///< borrowed
    ServerMembers* members = nullptr;   ///< borrowed
    std::function<void(const std::string&)> on_event;
  };
  explicit ChiefWatch(Options options) : options_(std::move(options)) {}

  const protocol::ChiefTerm& term() const { return terms_.current(); }
  int worker() const { return term().worker; }
  /// Null before it has come.
  const ServerMembers::Member* member() const { return options_.members->find(worker()); }
  /// kExhausted for a new process with the number of the chief, until another one is elected.
  Status check(const WorkerHello& hello) const;

  /// The chief has opened the run: from now on it may be lost.
  void open() { is_open_ = options_.parts->has_backups(); }
  /// The chief has finished the run.
  void finish() { is_over_ = true; }
  /// What a worker has said with a beat. True if its verdicts count.
  bool hear(int worker, const ServerNews& news);
  /// Call after ServerMembers::watch().
  void watch(TimePoint now);
  /// Why the run has ended: the chief is lost, and nobody has taken its place.
  Status failure() const { return failure_; }

 private:
  bool elects();
  void look_at_backup();
  void elect(const ServerMembers::Member& lost);
  void begin_term();
  void fail(const std::string& why, const std::string& more);

  Options options_;
  protocol::ChiefTerms terms_;
  std::int32_t before_ = 0;           // the chief of the term before this one
  std::optional<TimePoint> lost_at_;  // the chief, by this server's clock
  bool is_open_ = false, is_over_ = false;
  Status failure_;
};

}  // namespace stormo::server
