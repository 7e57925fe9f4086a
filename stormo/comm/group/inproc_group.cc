#include <condition_variable>
#include <map>
#include <mutex>

#include <stormo/comm/group/group.h>
#include <stormo/transport/inproc/inproc.h>

namespace stormo::comm {
namespace {

/// Members are threads of this process: the first to come makes the fabric of all.
class InprocConnector final : public Connector {
 public:
  explicit InprocConnector(std::shared_ptr<transport::Health> health)
      : health_(std::move(health)) {}

  Result<Connections> connect(const Membership& m, Deadline by) override {
    std::unique_lock lock(mutex_);
    Meeting& meeting = meetings_[m.name];
    if (meeting.ranks.empty()) {
      STORMO_ASSIGN_OR_RETURN(meeting.ranks, transport::make_inproc_fabric(m.size(), health_));
    }
    ++meeting.arrived;
    changed_.notify_all();
    const auto complete = [&] { return meeting.arrived == m.size(); };
    if (by.is_never()) {
      changed_.wait(lock, complete);
    } else if (!changed_.wait_until(lock, by.when(), complete)) {
      return Status(Code::kDeadlineExceeded, "the members did not all arrive in time");
    }
    transport::InprocRank& mine = meeting.ranks[static_cast<std::size_t>(m.rank)];
    Connections made{std::move(mine.group), std::move(mine.transport), nullptr};
    if (++meeting.left == m.size()) meetings_.erase(m.name);
    return made;
  }

 private:
  struct Meeting {
    std::vector<transport::InprocRank> ranks;
    int arrived = 0;
    int left = 0;
  };
  std::shared_ptr<transport::Health> health_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Meeting> meetings_;
};

}  // namespace

Result<std::vector<std::unique_ptr<Communicator>>> make_inproc_group(int n) {
  STORMO_ASSIGN_OR_RETURN(auto ranks, transport::make_inproc_fabric(n));
  const auto connector = std::make_shared<InprocConnector>(ranks.front().health);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int r = 0; r < n; ++r) {
    transport::InprocRank& mine = ranks[static_cast<std::size_t>(r)];
    Group::Parts parts;
    parts.rank = r;
    parts.ranks_per_host = {n};
    parts.health = mine.health;
    parts.connections = {std::move(mine.group), std::move(mine.transport), nullptr};
    parts.connector = connector;
    group.push_back(std::make_unique<Group>(std::move(parts)));
  }
  return group;
}

}  // namespace stormo::comm
