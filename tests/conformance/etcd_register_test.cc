#include <gmock/gmock.h>
#include <stormo/membership/etcd_register.h>

#include <atomic>
#include <csignal>
#include <map>

#include "tests/conformance/etcd_cluster.h"
#include "tests/conformance/register_conformance.h"

namespace stormo::membership::test {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

/// A key of its own in a cluster that all tests share.
class KeyOfEtcd final : public RegisterUnderTest {
 public:
  explicit KeyOfEtcd(int members) : cluster_(shared(members)) {
    static int keys = 0;
    key_ = "/test/" + std::to_string(++keys);
  }
  std::unique_ptr<Register> client() override { return cluster_.client(key_); }

 private:
  static EtcdCluster& shared(int members) {
    static std::map<int, EtcdCluster> clusters;
    return clusters.try_emplace(members, members).first->second;
  }
  EtcdCluster& cluster_;
  std::string key_;
};

std::vector<RegisterEngine> engines() {
  if (etcd_program().empty()) return {};
  return {{"one_member", [] { return std::make_unique<KeyOfEtcd>(1); }},
          {"three_members", [] { return std::make_unique<KeyOfEtcd>(3); }}};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RegisterConformance);  // without an etcd
INSTANTIATE_TEST_SUITE_P(Etcd, RegisterConformance, ::testing::ValuesIn(engines()),
                         [](const auto& engine) { return std::string(engine.param.name); });

class EtcdRegisterTest : public NeedsEtcd {};

TEST_F(EtcdRegisterTest, EachMemberMayBeKilledAndComesBack) {
  EtcdCluster etcd(3);
  const auto reg = etcd.client();
  for (int i = 0; i < 3; ++i) {
    const Epoch epoch = static_cast<Epoch>(i) + 1;
    etcd.kill(i);
    const auto swap = reg->compare_and_swap(record(epoch, epoch), soon());
    ASSERT_TRUE(swap.ok()) << swap.status().to_string();
    EXPECT_TRUE(swap->done);
    EXPECT_EQ(*etcd.client()->read(soon()), record(epoch, epoch));
    etcd.restart(i);
  }
}

TEST_F(EtcdRegisterTest, TheLeaderMayStopWithoutAWord) {
  EtcdCluster etcd(3);
  const auto reg = etcd.client();
  ASSERT_TRUE(reg->compare_and_swap(record(1, 1), soon())->done);
  const int leader = etcd.leader(0);
  etcd.signal(leader, SIGSTOP);
  const auto swap = reg->compare_and_swap(record(2, 2), soon());
  ASSERT_TRUE(swap.ok()) << swap.status().to_string();
  EXPECT_TRUE(swap->done);
  EXPECT_NE(etcd.leader((leader + 1) % 3), leader);
  etcd.signal(leader, SIGCONT);
  // who was the leader does not answer from what it has
  EtcdRegister woken(
      {.endpoints = {etcd.endpoints()[static_cast<std::size_t>(leader)]}, .key = "/test/digits"});
  const auto present = woken.read(soon());
  ASSERT_TRUE(present.ok()) << present.status().to_string();
  EXPECT_EQ(*present, record(2, 2));
}

TEST_F(EtcdRegisterTest, WithoutAMajorityTheErrorComesInTimeAndNamesAllEndpoints) {
  EtcdCluster etcd(3);
  const auto reg = etcd.client();
  ASSERT_TRUE(reg->compare_and_swap(record(1, 1), soon())->done);
  etcd.kill(1);
  etcd.kill(2);
  for (const auto& client : {etcd.client(), etcd.client()}) {
    const TimePoint before = std::chrono::steady_clock::now();
    const Status why = client->compare_and_swap(record(2, 2), Deadline::after(3s)).status();
    EXPECT_LT(std::chrono::steady_clock::now() - before, 15s);
    EXPECT_EQ(why.code(), Code::kDeadlineExceeded) << why.to_string();
    EXPECT_THAT(why.message(), HasSubstr("etcd, key '/test/digits', has not answered in time"));
    EXPECT_THAT(why.message(), HasSubstr("the change may take place all the same"));
    for (const transport::HostPort& endpoint : etcd.endpoints()) {
      EXPECT_THAT(why.message(), HasSubstr(transport::to_string(endpoint) + ": "));
    }
    EXPECT_THAT(why.message(), HasSubstr("Connection refused"));
  }
  etcd.restart(1);
  const auto present = reg->read(soon());
  ASSERT_TRUE(present.ok()) << present.status().to_string();
  EXPECT_LE(present->epoch, 2U);  // that change may have taken place
}

TEST_F(EtcdRegisterTest, AllMayBeKilledAndForgetNothing) {
  EtcdCluster etcd(3);
  ASSERT_TRUE(etcd.client()->compare_and_swap(record(1, 1), soon())->done);
  for (int i = 0; i < 3; ++i) etcd.kill(i);
  for (int i = 0; i < 3; ++i) etcd.restart(i);
  EXPECT_EQ(*etcd.client()->read(soon()), record(1, 1));
}

TEST_F(EtcdRegisterTest, CallsHaveAnOrderWhileMembersAreKilledAndComeBack) {
  EtcdCluster etcd(3);
  expect_order({.client = [&] { return etcd.client(); },
                .take_away = [&](int i) { etcd.kill(i); },
                .bring_back = [&](int i) { etcd.restart(i); },
                .turns = 6,
                .each_call = 10s,
                .changes = 12});
}

/// An etcd of one member that asks for users: root, and "job", who may use the keys of /jobs.
class EtcdWithUsers : public EtcdRegisterTest {
 protected:
  void SetUp() override {
    EtcdRegisterTest::SetUp();
    if (IsSkipped()) return;
    etcd_ = std::make_unique<EtcdCluster>(1);
    const auto tell = [&](const std::string& path, const std::string& json) {
      const std::string answer = etcd_->post(0, "/v3/auth/" + path, json);
      ASSERT_THAT(answer, HasSubstr("header")) << path;
    };
    for (const std::string name : {"root", "job"}) {
      tell("user/add", R"({"name":")" + name + R"(","password":"of )" + name + R"("})");
      tell("role/add", R"({"name":")" + name + R"("})");
      tell("user/grant", R"({"user":")" + name + R"(","role":")" + name + R"("})");
    }
    // from "/jobs/" to "/jobs0", which follows all keys that begin so
    tell("role/grant", R"({"name":"job","perm":{"permType":"READWRITE",)"
                       R"("key":"L2pvYnMv","range_end":"L2pvYnMw"}})");
    tell("enable", "{}");
  }
  EtcdRegister client(const std::string& user, const std::string& password,
                      const std::string& key = "/jobs/digits") const {
    return EtcdRegister(
        {.endpoints = etcd_->endpoints(), .key = key, .user = user, .password = password});
  }
  std::unique_ptr<EtcdCluster> etcd_;
};

TEST_F(EtcdWithUsers, WhoKnowsThePasswordMayWrite) {
  EtcdRegister reg = client("job", "of job");
  const auto swap = reg.compare_and_swap(record(1, 1), soon());
  ASSERT_TRUE(swap.ok()) << swap.status().to_string();
  EXPECT_TRUE(swap->done);
  etcd_->kill(0);  // it forgets to whom it has given which token
  etcd_->restart(0);
  const auto present = reg.read(soon());
  ASSERT_TRUE(present.ok()) << present.status().to_string();
  EXPECT_EQ(*present, record(1, 1));
}

TEST_F(EtcdWithUsers, OthersAreRefusedAtOnce) {
  struct Case {
    EtcdRegister reg;
    const char* why;
  };
  for (Case& c : std::vector<Case>{
           {client("job", "wrong"), "authentication failed, invalid user ID or password"},
           {client("nobody", "of job"), "authentication failed, invalid user ID or password"},
           {client("", ""), "user name is empty for a caller without a user"},
           {client("job", "of job", "/other"), "permission denied for the user 'job'"}}) {
    for (const Status& status :
         {c.reg.read(soon()).status(), c.reg.compare_and_swap(record(1, 1), soon()).status()}) {
      EXPECT_EQ(status.code(), Code::kRefused) << status.to_string();
      EXPECT_THAT(status.message(), HasSubstr(c.why));
      EXPECT_THAT(status.message(), HasSubstr(transport::to_string(etcd_->endpoints()[0])));
      EXPECT_THAT(status.message(), ::testing::Not(HasSubstr("may take place")));
    }
  }
}

}  // namespace
}  // namespace stormo::membership::test
