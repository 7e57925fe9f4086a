#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <stormo/base/ids.h>

namespace stormo::protocol {

// What members of an elastic job tell each other (docs/adr/0036-elastic-training.md).

/// One start of a member: its lasting name in the job, and which start of it this is.
struct MemberId {
  std::string identity;
  std::uint64_t incarnation = 0;
  bool operator==(const MemberId&) const = default;
};

struct ElasticEntry {
  MemberId id{};
  std::string address{};     ///< only carried on
  std::uint32_t shares = 1;  ///< of the batch
  /// Of the model: a stage of a pipeline. Members of one part have the same state.
  std::uint32_t part = 0;
  bool operator==(const ElasticEntry&) const = default;
};

/// What a membership::EpochRecord says, but for the name of the job.
struct ElasticRecord {
  Epoch epoch = 0;                      ///< 0: nothing has been written yet
  std::vector<ElasticEntry> members{};  ///< by rank
  std::uint64_t base_step = 0;          ///< committed; the next one is the first of this epoch
  /// After base_step; 0: nobody has applied it yet, or members have parts of the model.
  std::uint64_t state_hash = 0;
  std::uint64_t plan_hash = 0;        ///< of the step plan that all run
  std::vector<std::string> donors{};  ///< who has the state, or the gradients that lead to it
  /// Which of the groups that its members have made before this epoch began; 0: they make one.
  std::uint32_t group = 0;
  bool operator==(const ElasticRecord&) const = default;

  std::optional<std::size_t> rank_of(std::string_view identity) const;
  bool names(const MemberId& id) const;
  bool is_donor(std::string_view identity) const;
  /// Of a member; 0 of others.
  std::uint32_t part_of(std::string_view identity) const;
};

/// What a member has of the model.
struct HeldState {
  std::uint64_t step = 0;  ///< the last one that it has committed
  /// All of the state of its part is there, and was compared. Else the member is being healed.
  bool is_whole = false;
  std::uint64_t state_hash = 0;     ///< after `step`, once it has been computed
  std::uint64_t gradient_hash = 0;  ///< that of `step`
  /// The next step, if its whole reduced gradient is there. Until all members have one it may
  /// still be redone.
  std::uint64_t prepared_step = 0;
  std::uint64_t prepared_hash = 0;
  bool operator==(const HeldState&) const = default;
};

enum class Standing : std::uint8_t {
  kOutside = 1,  ///< no member of the epoch; wants to be one, unless it leaves
  kRunning = 2,
  kHalting = 3,  ///< the epoch has to end; a part of its step has not ended yet
  kResting = 4,  ///< `held` does not change any more in this epoch
};

/// Sent at each beat, and at once when something changes. Whoever gets one of its epoch knows that
/// the sender lives.
struct MemberStatus {
  MemberId from{};
  Epoch epoch = 0;  ///< of the last record that it has followed
  Standing standing = Standing::kOutside;
  HeldState held{};
  std::uint64_t progress = 0;  ///< grows with all that its main thread does
  bool is_waiting = false;     ///< for other members
  bool leaves = false;
  std::uint64_t stop_after = 0;   ///< the job ends after this step; 0: not known
  std::vector<MemberId> heard{};  ///< whom it has heard within the limit
  std::vector<MemberId> dead{};   ///< of the members, those whose process has ended
  std::uint64_t plan_hash = 0;    ///< of a member outside
  std::string address{};          ///< likewise
  std::uint32_t shares = 1;       ///< likewise
  std::uint32_t part = 0;         ///< likewise
  /// Of the first member: members and group of the next epoch as it wishes it, or epoch 0. They
  /// make that group while the present epoch goes on.
  ElasticRecord wish{};
  std::uint32_t ready_group = 0;  ///< the last one of these that this member has made; 0: none
};

/// Of a member: "a" for "a/0". Members of one host reach each other's memory.
std::string_view host_of(std::string_view identity);

/// What the register has, for members that do not know it yet.
struct RecordNews {
  ElasticRecord record;
};

using ElasticMessage = std::variant<MemberStatus, RecordNews>;

bool contains(std::span<const MemberId> ids, const MemberId& id);

}  // namespace stormo::protocol
