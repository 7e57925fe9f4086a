#include <condition_variable>
#include <map>
#include <mutex>

#include <stormo/base/wait_until.h>
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
    Gathering& gathering = open_[m.name];
    if (gathering.ranks.empty()) {
      STORMO_ASSIGN_OR_RETURN(gathering.ranks, transport::make_inproc_fabric(m.size(), health_));
    }
    ++gathering.arrived;
    changed_.notify_all();
    const auto complete = [&] { return gathering.arrived == m.size(); };
    if (!wait_until(changed_, lock, by, complete)) {
      return Status(Code::kDeadlineExceeded, "the members did not all arrive in time");
    }
    transport::InprocRank& mine = gathering.ranks[static_cast<std::size_t>(m.rank)];
    Connections made{std::move(mine.group), std::move(mine.transport), nullptr};
    if (++gathering.left == m.size()) open_.erase(m.name);
    return made;
  }

 private:
  struct Gathering {
    std::vector<transport::InprocRank> ranks;
    int arrived = 0;
    int left = 0;
  };
  std::shared_ptr<transport::Health> health_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Gathering> open_;
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
