// A world whose group is another one in each epoch.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stormo/comm/job/epoch_world.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace stormo::comm {
namespace {

const Status kOver(Code::kCancelled, "a member was lost");

std::unique_ptr<EpochWorld> world_of(const transport::Secret& secret) {
  auto world = EpochWorld::open({.secret = secret});
  EXPECT_TRUE(world.ok()) << world.status().to_string();
  return std::move(world).value();
}

/// Ranks of one host in one process, each with a world.
class Members {
 public:
  explicit Members(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) worlds_.push_back(world_of(secret_));
  }
  EpochWorld& operator[](std::size_t i) { return *worlds_.at(i); }
  void kill(std::size_t i) { worlds_.at(i).reset(); }

  /// The place of the i-th one of `members`, who meet at the first of them.
  transport::Rendezvous place(Epoch epoch, const std::vector<std::size_t>& members, std::size_t i) {
    transport::Rendezvous r;
    r.rank = r.local_rank = static_cast<int>(i);
    r.size = r.local_size = static_cast<int>(members.size());
    r.host = "here";
    r.epoch = epoch;
    r.secret = secret_;
    if (members.size() > 1) r.store = worlds_.at(members.front())->store();
    return r;
  }
  /// Until these ranks of a group that meets at member 0 have said who they are.
  void await_records(Epoch epoch, const std::vector<Rank>& ranks) {
    const Deadline by = Deadline::after(std::chrono::seconds(20));
    auto client = transport::StoreClient::connect(
        {.address = worlds_.front()->store(), .secret = secret_}, by);
    ASSERT_TRUE(client.ok()) << client.status().to_string();
    for (const Rank rank : ranks) {
      const std::string key = fmt::format("epoch {}/version/{}", epoch, rank);
      EXPECT_TRUE((*client)->get(key, by).ok()) << key;
    }
  }
  /// Whether the Store of member 0 still has what this rank of a group has said.
  bool has_record(Epoch epoch, Rank rank) {
    const Deadline by = Deadline::after(std::chrono::seconds(20));
    auto client = transport::StoreClient::connect(
        {.address = worlds_.front()->store(), .secret = secret_}, by);
    const std::string key = fmt::format("epoch {}/version/{}", epoch, rank);
    const auto there = client.value()->set_if_absent(key, "none", by);
    const bool has = there.value() != "none";
    EXPECT_TRUE(has || client.value()->erase(key, by).ok());
    return has;
  }
  /// All of them enter; what each got, in their order.
  std::vector<Status> enter(Epoch epoch, const std::vector<std::size_t>& members) {
    std::vector<Status> all(members.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < members.size(); ++i) {
      threads.emplace_back(
          [&, i] { all[i] = worlds_.at(members[i])->enter(place(epoch, members, i)); });
    }
    for (std::thread& t : threads) t.join();
    return all;
  }

 private:
  const transport::Secret secret_ = transport::Secret::random();
  std::vector<std::unique_ptr<EpochWorld>> worlds_;
};

void expect_ok(const std::vector<Status>& all) {
  for (const Status& one : all) EXPECT_TRUE(one.ok()) << one.to_string();
}

/// All of them add up one number.
void expect_sum(Members& all, const std::vector<std::size_t>& members) {
  std::vector<std::thread> threads;
  for (const std::size_t m : members) {
    threads.emplace_back([&all, m, &members] {
      std::vector<double> one = {1};
      const Status added = all[m].all_reduce(std::span<double>(one), ReduceOp::kSum);
      EXPECT_TRUE(added.ok()) << added.to_string();
      EXPECT_EQ(one[0], static_cast<double>(members.size()));
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(EpochWorld, IsThePresentGroup) {
  Members all(1);
  std::vector<double> numbers = {1, 2};
  EXPECT_TRUE(all[0].all_reduce(std::span<double>(numbers), ReduceOp::kSum).ok());
  all[0].fail(Status(Code::kPeerLost, "rank 1 is gone"));
  EXPECT_EQ(all[0].all_reduce(std::span<double>(numbers), ReduceOp::kSum).code(), Code::kPeerLost);
  expect_ok(all.enter(2, {0}));
  EXPECT_TRUE(all[0].status().ok());
  EXPECT_TRUE(all[0].all_reduce(std::span<double>(numbers), ReduceOp::kSum).ok());
  EXPECT_EQ(all[0].epoch(), 2u);
}

TEST(EpochWorld, AnOldEpochFailsNothing) {
  Members all(1);
  expect_ok(all.enter(3, {0}));
  all[0].fail_epoch(2, kOver);
  EXPECT_TRUE(all[0].status().ok());
  all[0].fail_epoch(3, kOver);
  EXPECT_EQ(all[0].status().code(), Code::kCancelled);
}

TEST(EpochWorld, RanksMeetAtTheFirstOneOfEachEpoch) {
  Members all(3);
  expect_ok(all.enter(1, {0, 1, 2}));
  expect_sum(all, {0, 1, 2});
  all[1].fail_epoch(1, kOver);
  all[2].fail_epoch(1, kOver);
  all.kill(0);
  expect_ok(all.enter(2, {1, 2}));
  expect_sum(all, {1, 2});
  expect_ok(all.enter(3, {2}));
  expect_sum(all, {2});
}

TEST(EpochWorld, WhoServedTheStoreIsMissed) {
  Members all(2);
  expect_ok(all.enter(1, {0, 1}));
  all.kill(0);
  std::vector<double> one = {1};
  EXPECT_EQ(all[1].all_reduce(std::span<double>(one), ReduceOp::kSum).code(), Code::kPeerLost);
}

TEST(EpochWorld, OthersOfTheGroupAreTold) {
  Members all(3);
  expect_ok(all.enter(1, {0, 1, 2}));
  std::thread waits([&] {
    std::vector<double> one = {1};
    EXPECT_EQ(all[0].all_reduce(std::span<double>(one), ReduceOp::kSum).code(), Code::kCancelled);
  });
  all[2].fail_epoch(1, kOver);
  waits.join();
}

TEST(EpochWorld, WhoWaitsForOthersStops) {
  Members all(3);
  std::thread first([&] {  // rank 2 never comes
    EXPECT_FALSE(all[0].enter(all.place(1, {0, 1, 2}, 0)).ok());
  });
  std::thread second([&] { EXPECT_FALSE(all[1].enter(all.place(1, {0, 1, 2}, 1)).ok()); });
  all.await_records(1, {0, 1});
  all[0].fail_epoch(1, kOver);
  all[1].fail_epoch(1, kOver);
  first.join();
  second.join();
  expect_ok(all.enter(2, {0, 1}));
  expect_sum(all, {0, 1});
}

TEST(EpochWorld, NobodyWaitsForAFirstOneThatIsNotThere) {
  Members all(2);
  const transport::Rendezvous place = all.place(1, {0, 1}, 1);
  all.kill(0);
  std::thread waits([&] { EXPECT_EQ(all[1].enter(place).code(), Code::kCancelled); });
  all[1].fail_epoch(1, kOver);
  waits.join();
}

TEST(EpochWorld, AnEpochThatIsOverBeforeItBeginsIsNotEntered) {
  Members all(2);
  all[1].fail_epoch(4, kOver);
  EXPECT_EQ(all[1].enter(all.place(4, {0, 1}, 1)).code(), Code::kCancelled);
  EXPECT_EQ(all[1].enter(all.place(3, {0, 1}, 1)).code(), Code::kCancelled);
}

constexpr Epoch kBeside = 2;
/// As what the first group of that epoch meets that is made beside another one.
constexpr Epoch kMeeting = Epoch{1} << 31 | kBeside << 8 | 1;

/// All of `members` make a group of epoch 2 beside their present ones.
std::vector<EpochGroup> make(Members& all, const std::vector<std::size_t>& members) {
  std::vector<EpochGroup> groups(members.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] {
      auto made = all[members[i]].make(all.place(kBeside, members, i), /*number=*/1,
                                       std::make_shared<transport::Health>());
      ASSERT_TRUE(made.ok()) << made.status().to_string();
      groups[i] = *std::move(made);
    });
  }
  for (std::thread& t : threads) t.join();
  return groups;
}

TEST(EpochWorld, AGroupThatWasMadeBesideThePresentOneIsEntered) {
  Members all(3);
  expect_ok(all.enter(1, {0, 1}));
  std::thread others([&] { expect_sum(all, {0, 1}); });
  auto made = make(all, {0, 1, 2});
  others.join();
  for (std::size_t i = 0; i < made.size(); ++i) {
    ASSERT_NE(made[i].group, nullptr);
    EXPECT_TRUE(all[i].enter(std::move(made[i]), 2).ok());
  }
  expect_sum(all, {0, 1, 2});
  EXPECT_EQ(all[2].epoch(), 2u);
  // who has gone on does not end the group of others that have not
  EpochGroup former = all[0].take_former();
  EXPECT_EQ(former.group->size(), 2);
  EXPECT_TRUE(former.group->status().ok());
  former = {};
  EXPECT_TRUE(all[0].status().ok());
}

TEST(EpochWorld, AGroupThatWasMadeBeforeFailsWithItsEpoch) {
  Members all(2);
  auto made = make(all, {0, 1});
  ASSERT_TRUE(made[0].group && made[1].group);
  EXPECT_TRUE(all[0].enter(std::move(made[0]), 2).ok());
  std::thread waits([&] {
    std::vector<double> one = {1};
    EXPECT_FALSE(all[0].all_reduce(std::span<double>(one), ReduceOp::kSum).ok());
  });
  all[1].fail_epoch(2, kOver);  // before it is entered
  EXPECT_EQ(all[1].enter(std::move(made[1]), 2).code(), Code::kCancelled);
  waits.join();
}

TEST(EpochWorld, WhoMakesAGroupBesideStopsWithItsHealth) {
  Members all(2);
  const auto health = std::make_shared<transport::Health>();
  const transport::Rendezvous place = all.place(kBeside, {0, 1}, 0);  // rank 1 never comes
  std::thread waits(
      [&] { EXPECT_EQ(all[0].make(place, 1, health).status().code(), Code::kCancelled); });
  all.await_records(kMeeting, {0});
  health->fail(kOver);
  waits.join();
  EXPECT_TRUE(all[0].status().ok());
}

TEST(EpochWorld, TheStoreForgetsGroupsOfEarlierEpochs) {
  Members all(2);
  expect_ok(all.enter(1, {0, 1}));
  make(all, {0, 1});  // nobody enters it
  expect_ok(all.enter(2, {0, 1}));
  EXPECT_TRUE(all.has_record(1, 0));
  all[0].destroy(all[0].take_former());
  EXPECT_FALSE(all.has_record(1, 0));
  EXPECT_TRUE(all.has_record(2, 0));
  EXPECT_TRUE(all.has_record(kMeeting, 0)) << "of the present epoch";
  expect_ok(all.enter(3, {0, 1}));
  all[0].destroy(all[0].take_former());
  EXPECT_FALSE(all.has_record(2, 0));
  EXPECT_FALSE(all.has_record(kMeeting, 0));
  EXPECT_TRUE(all.has_record(3, 0));
  expect_sum(all, {0, 1});
}

}  // namespace
}  // namespace stormo::comm
