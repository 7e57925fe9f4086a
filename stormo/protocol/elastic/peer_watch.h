#pragma once

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/protocol/elastic/elastic_message.h>
#include <stormo/protocol/elastic/membership_change.h>

namespace stormo::protocol {

/// When a member is taken for lost. One whose process has ended is at once.
struct WatchLimits {
  Duration beat = std::chrono::milliseconds(250);
  /// Nothing was heard of it. A pause of up to silence - 3 beats, less what a message takes, is
  /// never taken for a loss.
  Duration silence = std::chrono::seconds(2);
  /// Its beats come, and it does nothing, while it waits for nobody. Five times the slowest step,
  /// if that is longer.
  Duration stuck = std::chrono::seconds(10);
};

/// What a member knows about the others.
///
/// Time is counted as far as the member itself runs: a gap between two calls counts as at most one
/// beat. So whoever was stopped does not take the others for lost, whose messages have not been
/// read yet.
class PeerWatch {
 public:
  PeerWatch(MemberId me, WatchLimits limits) : me_(std::move(me)), limits_(limits) {}

  void advance(TimePoint now);
  /// A new epoch. Its members count as heard, if this one is among them.
  void begin(const ElasticRecord& record);

  void hear(const MemberStatus& status);
  /// Its process has ended.
  void bury(const MemberId& id);
  /// The connection to it is broken: it counts as not heard until the next epoch.
  void blame(std::string_view identity);
  void note_step(Duration took) { slowest_step_ = std::max(slowest_step_, took); }

  bool is_dead(const MemberId& id) const { return contains(dead_, id); }
  /// Dead, silent, blamed or stuck; unknown ones, too.
  bool is_lost(const MemberId& id) const;
  /// Why; kUnknown of one that is not.
  Departure departure_of(const MemberId& id) const;
  /// The last one of this epoch, or of a member outside; null: none yet.
  const MemberStatus* status_of(const MemberId& id) const;
  /// Whom this member hears, without itself.
  std::vector<MemberId> heard() const;
  const std::vector<MemberId>& dead() const { return dead_; }
  /// Those that are heard and no members of the epoch.
  std::vector<const MemberStatus*> outside() const;
  /// How long it takes until somebody is lost if nothing comes; at most one beat.
  Duration next_loss() const;
  Duration own_time() const { return own_time_; }
  /// Whether who does nothing for so long, and waits for nobody, is stuck.
  bool is_too_long(Duration idle) const;

 private:
  struct Peer {
    MemberStatus status{};
    bool is_member = false;
    bool has_status = false;
    bool is_blamed = false;
    Duration heard_at{};
    Duration progressed_at{};
  };
  const Peer* find(const MemberId& id) const;
  bool is_silent(const Peer& p) const { return own_time_ - p.heard_at >= limits_.silence; }
  bool is_stuck(const Peer& p) const;

  MemberId me_;
  WatchLimits limits_;
  std::vector<Peer> peers_;
  std::vector<MemberId> dead_;
  Duration own_time_{};
  Duration slowest_step_{};
  std::optional<TimePoint> last_;
};

}  // namespace stormo::protocol
