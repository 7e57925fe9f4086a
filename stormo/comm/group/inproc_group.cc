#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include <stormo/base/wait_until.h>
#include <stormo/comm/group/group.h>
#include <stormo/transport/inproc/inproc.h>

namespace stormo::comm {
namespace {

/// What the Store is to processes.
class InprocValues final : public transport::KeyValues {
 public:
  Result<std::string> set_if_absent(std::string_view key, std::string_view value,
                                    Deadline) override {
    const std::lock_guard lock(mutex_);
    const auto [entry, fresh] = values_.try_emplace(std::string(key), value);
    if (fresh) changed_.notify_all();
    return entry->second;
  }
  Result<std::string> get(std::string_view key, Deadline by) override {
    std::unique_lock lock(mutex_);
    const std::string wanted(key);
    if (wait_until(changed_, lock, by, [&] { return values_.contains(wanted); })) {
      return values_.at(wanted);
    }
    return Status(Code::kDeadlineExceeded, fmt::format("nobody has set '{}'", key));
  }
  Status erase_if(std::string_view key, std::string_view value, Deadline) override {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(std::string(key));
    if (found != values_.end() && found->second == value) values_.erase(found);
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

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
    while (!wait_until(changed_, lock, Deadline::at(std::min(by.when(), look())), complete)) {
      if (health_->failed()) return health_->status();
      if (by.expired()) {
        return Status(Code::kDeadlineExceeded, "the members did not all arrive in time");
      }
    }
    transport::InprocRank& mine = gathering.ranks[static_cast<std::size_t>(m.rank)];
    Connections made{std::move(mine.group), nullptr};
    if (++gathering.left == m.size()) open_.erase(m.name);
    return made;
  }

  transport::KeyValues& values() override { return values_; }

 private:
  struct Gathering {
    std::vector<transport::InprocRank> ranks;
    int arrived = 0;
    int left = 0;
  };
  static TimePoint look() { return Deadline::after(std::chrono::milliseconds(100)).when(); }

  std::shared_ptr<transport::Health> health_;
  InprocValues values_;
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
    parts.connections = {std::move(mine.group), nullptr};
    parts.connector = connector;
    group.push_back(std::make_unique<Group>(std::move(parts)));
  }
  return group;
}

}  // namespace stormo::comm
