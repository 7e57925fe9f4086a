#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/transport/call/fields.h>

namespace stormo::membership {

/// A member of a job in one epoch. Its position in the record is its rank.
struct Member {
  std::string identity;           ///< its lasting name in the job: "a/0"
  std::uint64_t incarnation = 0;  ///< which start of this identity it is
  std::string address;            ///< by which the others reach it
  std::uint32_t shares = 1;       ///< of the batch, in proportion to the shares of all
  std::uint32_t part = 0;         ///< of the model, of which it has the state
  bool operator==(const Member&) const = default;
};

/// Who is in a job, and from which state they go on. Every change of this is an epoch of its own.
/// An epoch number is a fencing token: who has seen a later one refuses what carries it.
struct EpochRecord {
  std::string job;
  Epoch epoch = 0;  ///< 1, 2, 3, ...; 0: nothing has been written yet
  std::vector<Member> members;
  std::uint64_t base_step = 0;      ///< the last step that all of them have committed
  std::uint64_t state_hash = 0;     ///< of parameters and optimizer state after it; 0: unknown
  std::uint64_t plan_hash = 0;      ///< of the step plan that they run
  std::vector<std::string> donors;  ///< members that have this state and give it to the others
  std::uint32_t group = 0;          ///< that they have made before; 0: none
  bool operator==(const EpochRecord&) const = default;
};

inline constexpr std::size_t kMaxNameBytes = 256;
inline constexpr std::size_t kMaxMembers = 16384;
inline constexpr std::size_t kMaxRecordBytes = std::size_t{1} << 20;

/// kInvalidArgument for a record that no register takes, with all that is wrong with it: no job or
/// members, names that are empty or too long, a member twice, no shares, a donor that is no member.
Status check(const EpochRecord& record);

/// As the value of a register. decode_record() refuses what check() refuses, with kCorrupt.
std::string encode_record(const EpochRecord& record);
Result<EpochRecord> decode_record(std::string_view bytes);

}  // namespace stormo::membership
