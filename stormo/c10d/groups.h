#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <stormo/comm/communicator.h>

namespace stormo::c10d {

/// What PyTorch says of a group that it creates.
struct GroupTerms {
  c10::intrusive_ptr<::c10d::Store> store;  ///< the group's own keys
  int rank = 0;                             ///< in the group
  int size = 1;
  std::chrono::milliseconds timeout{};
  /// Unique among the groups of a default group; empty: a world of its own, of which no others are
  /// made.
  std::string name;
  std::vector<std::int64_t> global_ranks;  ///< of the members; empty: a default group
  bool trust_store = false;
};

/// The ranks of a group: a world, or some ranks of one.
class GroupRanks {
 public:
  /// A default group is a new world. Any other group is made of the world of this process's default
  /// group by its members alone; where that is of another backend, it is a world of its own. Throws
  /// c10::DistBackendError, for wrong ranks c10::ValueError.
  static GroupRanks join(const GroupTerms& terms);
  static GroupRanks of_world(std::shared_ptr<comm::Communicator> world) {
    return {std::move(world), nullptr};
  }
  /// Some ranks of these, in ascending order; this rank is one of them.
  GroupRanks part(const std::vector<Rank>& members, const std::string& name, Deadline by) const;

  comm::Communicator& get() const { return part_ ? *part_ : *world_; }
  bool are_world() const { return part_ == nullptr; }
  /// How long an operation that is submitted may take, once it begins.
  void set_timeout(Duration timeout) const;

 private:
  GroupRanks(std::shared_ptr<comm::Communicator> world, std::unique_ptr<comm::Communicator> part)
      : world_(std::move(world)), part_(std::move(part)) {}

  std::shared_ptr<comm::Communicator> world_;  // outlives its part
  std::unique_ptr<comm::Communicator> part_;
};

}  // namespace stormo::c10d
