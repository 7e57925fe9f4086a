#pragma once

#include <cstdint>
#include <vector>

#include <stormo/plan/schedule.h>
#include <stormo/plan/topology.h>

namespace stormo::analysis {

/// Chunks at equal distances that one rank sends another in one round, one after the other. Small,
/// because large schedules have millions of them.
struct Message {
  std::uint16_t from = 0;
  std::uint16_t to = 0;
  std::uint16_t chunk = 0;   ///< the first
  std::uint16_t stride = 0;  ///< from one to the next
  std::uint16_t count = 1;
  plan::ReceiveOp how = plan::ReceiveOp::kCopy;

  int last_chunk() const { return chunk + stride * (count - 1); }
};

enum class Joining : std::uint8_t {
  kNone,         ///< a message for each transfer
  kInsideHosts,  ///< one for all chunks between two ranks of a host, where that changes no time
};

/// A schedule in the order in which it is played: in every round each rank serves its nearest
/// neighbours to the right first. Ranks that all served rank 0 first would queue there while the
/// other ports idle.
struct Messages {
  std::vector<int> host_of;  ///< by rank
  int chunks = 1;
  std::vector<std::vector<Message>> rounds;
};

/// Schedule and topology must have the same ranks. O(transfers + rounds).
Messages messages_of(const plan::Schedule& s, const plan::Topology& topology, Joining joining);

/// How much of a buffer of `count` bytes, or elements, each chunk and each message has.
class ChunkSizes {
 public:
  ChunkSizes(int chunks, std::int64_t count);

  std::int64_t of(int chunk) const { return sizes_[static_cast<std::size_t>(chunk)]; }
  std::int64_t of(const Message& m) const {
    return equal_ || m.count == 1 ? m.count * of(m.chunk) : sum(m);
  }

 private:
  std::int64_t sum(const Message& m) const;

  std::vector<std::int64_t> sizes_;  // by chunk
  bool equal_;
};

}  // namespace stormo::analysis
