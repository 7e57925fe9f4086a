#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stormo/comm/program/execute.h>
#include <stormo/comm/request.h>
#include <stormo/transport/shm/host_group.h>

namespace stormo::comm {

/// Local ranks first to last-1.
struct LocalRanks {
  int first = 0;
  int last = 0;
  bool operator==(const LocalRanks&) const = default;
};

/// Operations among the ranks of one host whose data fits on the boards: every rank posts all that
/// it contributes, waits for those whose data it needs, and takes it from their boards. No memory
/// is shared, nothing is left to wait for.
class InlinePayload {
 public:
  explicit InlinePayload(const transport::HostGroup& host) : host_(host) {}

  /// Bytes that the rank with the most to say writes on its board.
  std::uint64_t contribution(const Request& request) const;
  /// Whether the request can go this way; all ranks that call the same operation agree.
  bool fits(const Request& request) const;
  /// Whose contributions this rank needs: a root's, all, or none.
  LocalRanks sources(const Request& request) const;
  /// Before the meeting: this rank's contribution goes to its board. `bytes`: contribution().
  void post(const Request& request, std::uint64_t bytes);
  /// After the meeting. `from`: sources(). Reads how, user and scales of `operands`.
  void finish(const Request& request, LocalRanks from, const Operands& operands);

 private:
  const std::byte* payload(int rank) const;
  void reduce_ranks(const Operands& operands, LocalRanks from, std::size_t offset,
                    const std::byte* own, const Buffer& out);
  void finish_reduction(const Request& request, LocalRanks from, const Operands& operands);

  const transport::HostGroup& host_;
  std::uint64_t posted_bytes_ = 0;  // from post() to finish()
  std::vector<Operand> sources_;
};

}  // namespace stormo::comm
