#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include <stormo/base/temporary_folder.h>
#include <stormo/membership/register.h>
#include <stormo/transport/net/socket.h>

#include "tests/multiproc/process.h"

namespace stormo::membership::test {

/// Where etcd is; empty: nowhere.
std::string etcd_program();

class NeedsEtcd : public ::testing::Test {
 protected:
  void SetUp() override {
    if (etcd_program().empty()) {
      GTEST_SKIP() << "set-up: there is no etcd; ./check unpacks it";
    }
  }
};

/// An etcd whose members are processes of this test, on loopback, with their data in a temporary
/// folder.
class EtcdCluster {
 public:
  explicit EtcdCluster(int count);

  std::vector<transport::HostPort> endpoints() const;
  std::unique_ptr<Register> client(const std::string& key = "/test/digits") const;

  void kill(int i) { member(i).process.reset(); }
  void restart(int i) { start(i, "existing"); }
  void signal(int i, int number) const { member(i).process->signal(number); }

  /// What a member answers to JSON; empty if it does not.
  std::string post(int i, const std::string& path, const std::string& json) const;
  /// The member that leads, as another one says that has just taken part in a change.
  int leader(int asked) const;

 private:
  struct Member {
    transport::HostPort client, peer;
    std::unique_ptr<testing::Process> process;
  };
  Member& member(int i) { return members_[static_cast<std::size_t>(i)]; }
  const Member& member(int i) const { return members_[static_cast<std::size_t>(i)]; }
  void choose_ports();
  void start(int i, const std::string& state);
  bool wait_until_up();

  TemporaryFolder folder_ = TemporaryFolder::create("stormo-etcd-").take_or_throw();
  std::vector<Member> members_;
  std::string why_;  // it is not up
};

}  // namespace stormo::membership::test
