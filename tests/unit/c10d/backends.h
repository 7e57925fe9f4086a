#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <stormo/c10d/backend.h>

#include "tests/unit/c10d/mutant.h"
#include "tests/unit/comm/joined_ranks.h"

namespace stormo::c10d {

/// Backends of ranks that are threads of this process, on hosts with these numbers of ranks; they
/// do not know that they share memory with those of other hosts. Where STORMO_TEST_MUTATION asks
/// for it, the tests get mutants of them, and operations that never end do so soon.
class Backends {
 public:
  explicit Backends(const std::vector<int>& hosts,
                    std::chrono::milliseconds timeout = std::chrono::seconds(30))
      : timeout_(mutation() ? std::min(timeout, kSoon) : timeout), joined_(hosts) {
    for (auto& world : joined_.take()) all_.push_back(made(std::move(world)));
    tested_.assign(all_.begin(), all_.end());
    if (const auto what = mutation()) mutate(*what, hosts);
  }
  /// Stormo's own.
  StormoBackend& operator[](std::size_t rank) const { return *all_[rank]; }
  /// What is tested.
  auto begin() const { return tested_.begin(); }
  auto end() const { return tested_.end(); }

 private:
  static constexpr std::chrono::milliseconds kSoon = std::chrono::seconds(3);

  c10::intrusive_ptr<StormoBackend> made(std::unique_ptr<comm::Communicator> world) const {
    return c10::make_intrusive<StormoBackend>(
        GroupRanks::of_world(std::shared_ptr<comm::Communicator>(std::move(world))),
        c10::make_intrusive<StormoOptions>(timeout_));
  }
  void mutate(const Mutation& what, const std::vector<int>& hosts) {
    std::vector<BackendPtr> wrong(all_.size());
    if (what.kind == "gloo") wrong = gloo_backends(static_cast<int>(all_.size()), timeout_);
    if (what.kind == "reversed") {
      reversed_ = std::make_unique<comm::JoinedRanks>(hosts);
      auto worlds = reversed_->take();
      for (std::size_t r = 0; r < wrong.size(); ++r) {
        wrong[r] = made(std::move(worlds[worlds.size() - 1 - r]));
      }
    }
    for (std::size_t r = 0; r < wrong.size(); ++r) tested_[r] = mutant(what, all_[r], wrong[r]);
  }

  const std::chrono::milliseconds timeout_;
  comm::JoinedRanks joined_;  // serves the Store
  std::unique_ptr<comm::JoinedRanks> reversed_;
  std::vector<c10::intrusive_ptr<StormoBackend>> all_;
  std::vector<BackendPtr> tested_;
};

/// What a wait throws, if it does.
inline std::string error_of_wait(::c10d::Work& work,
                                 std::chrono::milliseconds timeout = kNoTimeout) {
  try {
    work.wait(timeout);
  } catch (const c10::DistBackendError& e) {
    return e.what_without_backtrace();
  }
  return "nothing";
}

/// Calls `body` for every backend, each in a thread. An exception is a failure of the test.
inline void on_backends(const Backends& backends,
                        const std::function<void(::c10d::Backend&)>& body) {
  std::vector<std::thread> threads;
  for (const auto& backend : backends) {
    threads.emplace_back([&body, backend] {
      try {
        body(*backend);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << backend->getRank() << ": " << e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

inline void on_ranks(const std::vector<int>& hosts,
                     const std::function<void(::c10d::Backend&)>& body) {
  on_backends(Backends(hosts), body);
}

}  // namespace stormo::c10d
