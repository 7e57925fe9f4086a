#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {

/// Ranks that have joined a job with a Store, as processes do, but as threads of this one.
class JoinedRanks {
 public:
  explicit JoinedRanks(const std::vector<int>& hosts) {
    auto server = transport::StoreServer::start(
        {.secret = secret_, .on_set = [this](std::string_view key, std::string_view) {
           const std::lock_guard lock(mutex_);
           keys_.emplace_back(key);
         }});
    EXPECT_TRUE(server.ok()) << server.status().to_string();
    server_ = std::move(*server);
    world_.resize(static_cast<std::size_t>(std::accumulate(hosts.begin(), hosts.end(), 0)));
    std::vector<std::thread> threads;
    for (int h = 0; h < static_cast<int>(hosts.size()); ++h) {
      for (int local = 0; local < hosts[static_cast<std::size_t>(h)]; ++local) {
        transport::Rendezvous r;
        r.rank = static_cast<Rank>(threads.size());
        r.size = static_cast<int>(world_.size());
        r.local_rank = local;
        r.local_size = hosts[static_cast<std::size_t>(h)];
        r.cross_rank = h;
        r.cross_size = static_cast<int>(hosts.size());
        r.host = "host" + std::to_string(h);
        r.store = server_->address();
        r.secret = secret_;
        r.interface = "lo";
        threads.emplace_back([this, r] {
          auto joined = join(r);
          ASSERT_TRUE(joined.ok()) << joined.status().to_string();
          world_[static_cast<std::size_t>(r.rank)] = std::move(*joined);
        });
      }
    }
    for (std::thread& t : threads) t.join();
  }

  /// The communicators of the world; once.
  std::vector<std::unique_ptr<Communicator>> take() { return std::move(world_); }
  /// Keys that somebody has set, of those that begin with one of these.
  std::vector<std::string> keys_set(const std::vector<std::string>& beginnings) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> keys;
    for (const std::string& key : keys_) {
      const auto begins = [&](const std::string& with) { return key.starts_with(with); };
      if (std::ranges::any_of(beginnings, begins)) keys.push_back(key);
    }
    return keys;
  }
  bool has_value(const std::string& key) const { return server_->get(key).has_value(); }
  /// A session of its own with the job's Store.
  std::unique_ptr<transport::StoreClient> client() {
    auto made = transport::StoreClient::connect({.address = server_->address(), .secret = secret_},
                                                Deadline::after(std::chrono::seconds(20)));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(*made);
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> keys_;  // guarded by mutex_
  const transport::Secret secret_ = transport::Secret::random();
  std::unique_ptr<transport::StoreServer> server_;
  std::vector<std::unique_ptr<Communicator>> world_;
};

}  // namespace stormo::comm
