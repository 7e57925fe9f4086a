// Members of an elastic job in processes of their own: whose end is seen, and whose is not.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "made_hosts.h"
#include "process.h"
#include "tests/built.h"
#include "tests/unit/membership/linked_member.h"

namespace stormo::testing {
namespace {

using membership::test::LinkedMember;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const protocol::MemberId kA{"a", 1}, kB{"b", 1}, kC{"c", 1};

/// The line that begins with `begin`, without it.
std::string line_of(Process& process, const std::string& begin) {
  EXPECT_TRUE(process.wait_for_output(begin) && process.wait_for_output("\n")) << process.err();
  const std::size_t from = process.out().find(begin) + begin.size();
  return process.out().substr(from, process.out().find('\n', from) - from);
}

/// Two members here, a and b, and c in a process of its own. All know each other, but for a and b.
class EndOfAMember : public ::testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> command{built("member_worker"), "c", "lo"};
    for (LinkedMember* m : {&a, &b}) {
      command.push_back(m->entry().id.identity + "=" + m->entry().address);
    }
    c = std::make_unique<Process>(
        command, std::vector<std::string>{"STORMO_TEST_SECRET=" + secret.to_hex()});
    const std::string address = line_of(*c, "at ");
    for (LinkedMember* m : {&a, &b}) {
      m->links().set_peers({{.id = kC, .address = address}});
      m->links().send("c", m->status(1));
    }
    for (LinkedMember* m : {&a, &b}) ASSERT_TRUE(m->hears(kC, 1));
    ASSERT_TRUE(c->wait_for_output("hears a") && c->wait_for_output("hears b"));
  }

  const transport::Secret secret = transport::Secret::random();
  LinkedMember a{kA, secret}, b{kB, secret};
  std::unique_ptr<Process> c;
};

TEST_F(EndOfAMember, IsSeenByAllIfItIsKilled) {
  c->signal(SIGKILL);
  for (LinkedMember* m : {&a, &b}) {
    EXPECT_TRUE(m->hears_end_of(kC));
    EXPECT_EQ(m->ended().size(), 1U);
  }
}

TEST_F(EndOfAMember, IsSeenIfItIsKilledBeforeItHasReadWhatItGot) {
  c->signal(SIGSTOP);
  ASSERT_EQ(::waitpid(c->pid(), nullptr, WUNTRACED), c->pid());
  for (LinkedMember* m : {&a, &b}) m->links().send("c", m->status(2));
  c->signal(SIGKILL);  // its kernel resets the connections
  EXPECT_TRUE(a.hears_end_of(kC));
  EXPECT_TRUE(b.hears_end_of(kC));
}

TEST_F(EndOfAMember, IsNotSeenWhileItIsStopped) {
  c->signal(SIGSTOP);
  ASSERT_EQ(::waitpid(c->pid(), nullptr, WUNTRACED), c->pid());
  for (LinkedMember* m : {&a, &b}) {
    for (std::uint64_t i = 2; i < 100; ++i) m->links().send("c", m->status(i));
  }
  c->signal(SIGCONT);
  for (LinkedMember* m : {&a, &b}) {
    EXPECT_TRUE(m->hears(kC, m->progress_of(kC) + 2));
    EXPECT_THAT(m->ended(), IsEmpty());
  }
}

TEST_F(EndOfAMember, IsNoneIfItLeaves) {
  c->signal(SIGTERM);
  EXPECT_EQ(c->wait(), 0) << c->err();
  ASSERT_TRUE(a.takes_turns(10));  // attempts to connect, which are refused
  EXPECT_THAT(a.ended(), IsEmpty());
}

TEST(MembersOnTwoHosts, AreNotTakenForDeadWhenTheLineIsCutAndHearEachOtherAgain) {
  const MadeHosts hosts(2);
  if (!hosts.problem().empty()) GTEST_SKIP() << "root: " << hosts.problem();
  const auto isolate = [&](const std::string& how) {
    const std::string of_port = " type bridge_slave isolated " + how;
    const Outcome o = run_to_end({"/bin/sh", "-c",
                                  "ip link set " + hosts.name() + "v1" + of_port +
                                      " && ip link set " + hosts.name() + "v2" + of_port});
    ASSERT_EQ(o.status, 0) << o.err;
  };
  const std::vector<std::string> secret{"STORMO_TEST_SECRET=" +
                                        transport::Secret::random().to_hex()};
  const auto on_host = [&](const std::string& host, std::vector<std::string> arguments) {
    std::vector<std::string> command{"/sbin/ip", "netns", "exec", hosts.name() + host,
                                     built("member_worker")};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return std::make_unique<Process>(command, secret);
  };
  const auto one = on_host("-1", {"a", "eth0"});
  const auto other = on_host("-2", {"b", "eth0", "a=" + line_of(*one, "at ")});
  EXPECT_TRUE(one->wait_for_output("hears b"));
  EXPECT_TRUE(other->wait_for_output("hears a"));
  isolate("on");
  EXPECT_TRUE(one->wait_for_output("silent b"));
  EXPECT_TRUE(other->wait_for_output("silent a"));
  isolate("off");
  EXPECT_TRUE(one->wait_for_output("hears b", 2));
  EXPECT_TRUE(other->wait_for_output("hears a", 2));
  EXPECT_THAT(one->out() + other->out(), Not(HasSubstr("ended")));
  one->signal(SIGKILL);
  EXPECT_TRUE(other->wait_for_output("ended a"));
}

}  // namespace
}  // namespace stormo::testing
