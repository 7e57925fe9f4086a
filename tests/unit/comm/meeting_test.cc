// How members meet by a name, over a table that does what is asked of it at the worst moment.
#include <gtest/gtest.h>
#include <stormo/base/rng.h>
#include <stormo/base/wait_until.h>
#include <stormo/comm/operation/meeting.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace stormo::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLong = seconds(60);
const std::string kName = "name";

/// What the Store is to processes.
class Table {
 public:
  std::string set_if_absent(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    const auto [entry, fresh] = values_.try_emplace(key, value);
    changed_.notify_all();
    return entry->second;
  }
  Result<std::string> get(const std::string& key, Deadline by) {
    std::unique_lock lock(mutex_);
    if (wait_until(changed_, lock, by, [&] { return values_.contains(key); })) {
      return values_.at(key);
    }
    return Status(Code::kDeadlineExceeded, "nobody has set " + key);
  }
  void erase_if(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(key);
    if (found != values_.end() && found->second == value) values_.erase(found);
  }
  std::map<std::string, std::string> values() {
    const std::lock_guard lock(mutex_);
    return values_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;  // guarded by mutex_
};

/// The table as one rank sees it.
class View final : public transport::KeyValues {
 public:
  explicit View(Table& table) : table_(table) {}
  /// Called with the key, before or after the call; an error is what the caller gets.
  std::function<Status(std::string_view)> after_set;
  std::function<Status(std::string_view)> before_erase;

  Result<std::string> set_if_absent(std::string_view key, std::string_view value,
                                    Deadline) override {
    std::string there = table_.set_if_absent(std::string(key), std::string(value));
    if (after_set) STORMO_RETURN_IF_ERROR(after_set(key));
    return there;
  }
  Result<std::string> get(std::string_view key, Deadline by) override {
    return table_.get(std::string(key), by);
  }
  Status erase_if(std::string_view key, std::string_view value, Deadline) override {
    if (before_erase) STORMO_RETURN_IF_ERROR(before_erase(key));
    table_.erase_if(std::string(key), std::string(value));
    return {};
  }

 private:
  Table& table_;
};

struct Caller {
  Caller(Table& table, Rank rank, std::vector<Rank> list)
      : values(table), me(rank), members(std::move(list)) {}
  Meeting meeting() {
    return Meeting({.values = values,
                    .key = kName,
                    .name = "group 'x'",
                    .members = members,
                    .me = me,
                    .job = job,
                    .has_left = has_left});
  }
  Result<std::string> meet(Duration limit) { return meet(Deadline::after(limit)); }
  Result<std::string> meet(Deadline by) { return meeting().meet(by); }
  /// In a thread of its own.
  std::future<Result<std::string>> begin(Deadline by) {
    return std::async(std::launch::async, [this, by] { return meet(by); });
  }

  View values;
  Rank me;
  std::vector<Rank> members;
  std::function<Status()> job = [] { return Status(); };
  std::function<bool(Rank)> has_left;
};

void expect_says(const Status& s, Code code, const std::string& text) {
  EXPECT_EQ(s.code(), code) << s.to_string();
  EXPECT_NE(s.message().find(text), std::string::npos) << s.to_string();
}

/// Until so many have come to the attempt that there is.
void wait_until_here(Table& table, std::ptrdiff_t count) {
  for (;;) {
    const auto values = table.values();
    const auto name = values.find(kName);
    const std::string attempt =
        name == values.end() ? "none" : "met/" + name->second.substr(0, 16) + "/";
    if (std::ranges::count_if(values, [&](const auto& entry) {
          return entry.first.starts_with(attempt) && entry.second == "here";
        }) >= count) {
      return;
    }
    std::this_thread::yield();
  }
}

// Whoever has ended the attempt is slow to free its name; whoever was told tries again at once.
TEST(Meeting, ANewCallNeverGetsTheOutcomeOfTheOneBefore) {
  Table table;
  std::vector<Caller> ranks;
  for (Rank r = 0; r < 3; ++r) ranks.emplace_back(table, r, std::vector<Rank>{0, 1, 2});
  std::promise<void> again;
  std::atomic<bool> held{true};
  ranks[1].values.before_erase = [&, until = again.get_future().share()](std::string_view key) {
    if (key == kName && held.exchange(false)) until.wait();
    return Status();
  };
  auto first = ranks[0].begin(Deadline::never());
  wait_until_here(table, 1);
  auto ended = ranks[1].begin(Deadline::after(milliseconds(50)));
  expect_says(first.get().status(), Code::kDeadlineExceeded, "rank 2 has not come");
  auto second = ranks[0].begin(Deadline::after(kLong));
  const std::string before = table.get(kName, Deadline::after(kLong)).value();
  again.set_value();
  expect_says(ended.get().status(), Code::kDeadlineExceeded, "rank 2 has not come");
  auto third = ranks[1].begin(Deadline::after(kLong));
  const auto last = ranks[2].meet(kLong);
  ASSERT_TRUE(last.ok()) << last.status().to_string();
  EXPECT_EQ(second.get().value(), *last);
  EXPECT_EQ(third.get().value(), *last);
}

// A rank that gives other members reads the name and then stops; the name is of another attempt
// when it goes on.
TEST(Meeting, OneThatIsLateEndsNoLaterAttempt) {
  Table table;
  Caller a(table, 0, {0, 1});
  Caller b(table, 1, {0, 1});
  Caller late(table, 2, {0, 2});
  std::promise<void> go_on;
  std::atomic<bool> held{true};
  late.values.after_set = [&, until = go_on.get_future().share()](std::string_view key) {
    if (key == kName && held.exchange(false)) until.wait();
    return Status();
  };
  Meeting of_a = a.meeting();
  auto first = std::async(std::launch::async, [&] { return of_a.meet(Deadline::after(kLong)); });
  wait_until_here(table, 1);
  auto other = late.begin(Deadline::after(kLong));
  while (held) std::this_thread::yield();
  Meeting of_b = b.meeting();
  const auto met_first = of_b.meet(Deadline::after(kLong));
  EXPECT_TRUE(met_first.ok()) << met_first.status().to_string();
  EXPECT_TRUE(first.get().ok());
  of_a.clear();
  of_b.clear();
  auto second = a.begin(Deadline::after(kLong));
  wait_until_here(table, 1);
  go_on.set_value();
  EXPECT_EQ(other.get().status().code(), Code::kMismatch);
  const auto met = b.meet(kLong);
  ASSERT_TRUE(met.ok()) << met.status().to_string();
  EXPECT_EQ(second.get().value(), *met);
}

// What the Store does not answer in time is still carried out.
TEST(Meeting, AFounderWhoseCallTimedOutLeavesNoAttemptBehind) {
  Table table;
  Caller founder(table, 0, {0, 1});
  Caller other(table, 1, {0, 1});
  founder.values.after_set = [](std::string_view key) {
    return key == kName ? Status(Code::kDeadlineExceeded, "the Store does not answer") : Status();
  };
  bool erases = false;
  founder.values.before_erase = [&](std::string_view) {
    return erases ? Status() : Status(Code::kDeadlineExceeded, "the Store does not answer");
  };
  for (erases = false;; erases = true) {
    Meeting meeting = founder.meeting();
    expect_says(meeting.meet(Deadline::after(kLong)).status(), Code::kDeadlineExceeded, "Store");
    EXPECT_FALSE(meeting.has_broken_off()) << "nobody waits for this rank";
    if (erases) break;
    EXPECT_EQ(table.values().size(), 2u) << "the name, and that it is here";
  }
  EXPECT_EQ(table.values().size(), 2u) << "the second call has found the first one's attempt";
  founder.values.after_set = nullptr;
  founder.values.before_erase = nullptr;
  auto waits = other.begin(Deadline::never());
  const auto met = founder.meet(Deadline::never());  // it gathers its own attempt
  ASSERT_TRUE(met.ok()) << met.status().to_string();
  EXPECT_EQ(waits.get().value(), *met);
}

TEST(Meeting, AnErrorInAnAttemptIsNoOutcome) {
  Table table;
  Caller rank(table, 0, {0, 1});
  bool has_name = false;
  rank.values.after_set = [&](std::string_view key) {
    has_name |= key == kName;
    return key == kName || !has_name ? Status() : Status(Code::kExhausted, "the Store is full");
  };
  table.set_if_absent(kName, "0123456789abcdef 1 0 1");
  Meeting meeting = rank.meeting();
  expect_says(meeting.meet(Deadline::after(kLong)).status(), Code::kExhausted, "full");
  EXPECT_TRUE(meeting.has_broken_off());
}

// Its name is not free, although it has an outcome: who ended it has died.
TEST(Meeting, WhoTriesAgainMindsItsDeadlineAndTheJob) {
  Table table;
  table.set_if_absent(kName, "0123456789abcdef 1 0 1");
  table.set_if_absent("met/0123456789abcdef/0", "missed");
  table.set_if_absent(
      "met/0123456789abcdef",
      "1 " + std::to_string(static_cast<int>(Code::kDeadlineExceeded)) + " 1: rank 0 has not come");
  Caller rank(table, 0, {0, 1});
  rank.values.before_erase = [](std::string_view) { return Status(Code::kIo, "out of order"); };
  expect_says(rank.meet(milliseconds(100)).status(), Code::kDeadlineExceeded, "deadline of rank 0");
  std::atomic<int> asked{0};
  rank.job = [&] { return ++asked < 3 ? Status() : Status(Code::kIo, "disk full"); };
  expect_says(rank.meet(Deadline::never()).status(), Code::kIo, "disk full");
  rank.job = [] { return Status(); };
  rank.values.before_erase = nullptr;  // it frees the name itself
  EXPECT_EQ(rank.meet(milliseconds(1)).status().code(), Code::kDeadlineExceeded);
  EXPECT_FALSE(table.values().contains(kName));
}

TEST(Meeting, WhoRefusesTellsThoseThatWait) {
  Table table;
  Caller a(table, 0, {0, 1, 2});
  Caller refuses(table, 1, {0, 1, 2});
  const Status why = invalid_argument("it is in use");
  refuses.meeting().refuse(why);
  EXPECT_TRUE(table.values().empty()) << "nobody has come";
  auto waits = a.begin(Deadline::never());
  wait_until_here(table, 1);
  refuses.meeting().refuse(why);
  expect_says(waits.get().status(), Code::kInvalidArgument, "rank 1: it is in use");
  EXPECT_TRUE(table.values().empty());
}

TEST(Meeting, ARefusalDoesNotEndACallOfTheSameRank) {
  Table table;
  Caller a(table, 0, {0, 1});
  Caller b(table, 1, {0, 1});
  auto waits = a.begin(Deadline::after(kLong));
  wait_until_here(table, 1);
  a.meeting().refuse(invalid_argument("another thread makes it"));
  const auto met = b.meet(kLong);
  ASSERT_TRUE(met.ok()) << met.status().to_string();
  EXPECT_EQ(waits.get().value(), *met);
}

TEST(Meeting, AMemberThatHasLeftIsNamedAtOnceToAll) {
  Table table;
  std::atomic<bool> gone{false};
  Caller a(table, 0, {0, 1, 2});
  Caller b(table, 1, {0, 1, 2});
  a.has_left = [&](Rank rank) { return rank == 2 && gone; };  // b has not heard of it
  auto waits = a.begin(Deadline::never());
  auto unaware = b.begin(Deadline::never());
  wait_until_here(table, 2);
  gone = true;
  expect_says(waits.get().status(), Code::kPeerLost, "rank 2 has left in order");
  expect_says(unaware.get().status(), Code::kPeerLost, "rank 2 has left in order");
  EXPECT_TRUE(table.values().empty());
}

// The founder has set the name, and nothing else yet, when another list comes.
TEST(Meeting, AFounderThatIsSlowIsToldOfOtherMembers) {
  Table table;
  Caller founder(table, 0, {0, 1});
  Caller other(table, 1, {0, 1, 2});
  std::promise<void> go_on;
  std::atomic<bool> held{true};
  founder.values.after_set = [&, until = go_on.get_future().share()](std::string_view key) {
    if (key == kName && held.exchange(false)) until.wait();
    return Status();
  };
  auto first = founder.begin(Deadline::after(kLong));
  while (held) std::this_thread::yield();
  expect_says(other.meet(kLong).status(), Code::kMismatch, "rank 1 gives 0 1 2");
  go_on.set_value();
  expect_says(first.get().status(), Code::kMismatch, "rank 1 gives 0 1 2");
  EXPECT_TRUE(table.values().empty());
}

// A member that came to an attempt of which nothing is left goes to the next one.
TEST(Meeting, OneThatIsLateTriesAgain) {
  Table table;
  Caller a(table, 0, {0, 1});
  Caller late(table, 1, {0, 1});
  std::promise<void> go_on;
  std::atomic<bool> held{true};
  late.values.after_set = [&, until = go_on.get_future().share()](std::string_view key) {
    if (key == kName && held.exchange(false)) until.wait();
    return Status();
  };
  auto first = a.begin(Deadline::after(milliseconds(200)));
  wait_until_here(table, 1);
  auto second = late.begin(Deadline::after(kLong));
  expect_says(first.get().status(), Code::kDeadlineExceeded, "rank 1 has not come");
  EXPECT_EQ(table.values().size(), 1u) << "of the attempt that it would have founded";
  go_on.set_value();
  const auto met = a.meet(kLong);
  ASSERT_TRUE(met.ok()) << met.status().to_string();
  EXPECT_EQ(second.get().value(), *met);
}

// Deadlines, refusals and other lists at random moments, and then a meeting of all.
/// By chance; how many attempts have failed, and what is left at the end, of the last meeting too.
void expect_little_left(bool with_other_lists) {
  constexpr int kRanks = 5;
  constexpr int kRounds = 200;
  Table table;
  std::vector<Rank> all(kRanks);
  for (Rank r = 0; r < kRanks; ++r) all[static_cast<std::size_t>(r)] = r;
  std::vector<std::future<int>> ranks;
  for (Rank r = 0; r < kRanks; ++r) {
    ranks.push_back(std::async(std::launch::async, [&, r] {
      Rng rng(static_cast<std::uint64_t>(r), "meetings");
      int failed = 0;
      Caller me(table, r, all);
      for (int i = 0; i < kRounds; ++i) {
        const auto limit = microseconds(rng.below(2000));
        std::vector<Rank> fewer = all;
        fewer.erase(fewer.begin() + (r + 1) % kRanks);
        const auto kind = rng.below(8);
        me.members = kind == 0 && with_other_lists ? fewer : all;
        Meeting meeting = me.meeting();
        if (kind == 1) {
          meeting.refuse(invalid_argument("in use"));
        } else if (meeting.meet(Deadline::after(limit)).ok()) {
          meeting.clear();
        } else {
          ++failed;
        }
      }
      return failed;
    }));
  }
  int failed = 0;
  for (auto& rank : ranks) failed += rank.get();
  EXPECT_GT(failed, kRanks * kRounds / 8);
  std::vector<std::future<Result<std::string>>> met;
  std::vector<std::unique_ptr<Caller>> callers;
  for (const Rank r : all) {
    callers.push_back(std::make_unique<Caller>(table, r, all));
    met.push_back(callers.back()->begin(Deadline::after(kLong)));
  }
  for (auto& m : met) EXPECT_TRUE(m.get().ok());
  // of the last meeting, which has not been cleared, who is here, the outcome and the name
  constexpr std::size_t kLast = kRanks + 2;
  // what ranks set when the others had just ended the attempt
  constexpr std::size_t kTooLate = kRanks * kRounds / 50;
  EXPECT_LE(table.values().size(), kLast + kTooLate);
}

// The Store may be lost because the job has failed.
TEST(Meeting, TheFirstCauseOfTheJobIsToldAndNotThatTheStoreIsLost) {
  const auto group = make_inproc_group(2).take_or_throw();
  Table table;
  View values(table);
  values.after_set = [&](std::string_view) {
    group[1]->fail({Code::kPeerLost, "rank 0 died"});
    return Status(Code::kPeerLost, "lost the Store");
  };
  GroupNames names;
  const Rank members[] = {0, 1};
  const auto made = meet_by_name(
      {*group[1], "", names, &values}, members, kName, Deadline::after(kLong),
      [](const GroupToConnect&) { return Status(Code::kCancelled, "not to be called"); });
  expect_says(made.status(), Code::kPeerLost, "rank 0 died");
}

TEST(Meeting, LittleIsLeftOfAttemptsThatFail) { expect_little_left(false); }
TEST(Meeting, LittleIsLeftOfAttemptsWithOtherLists) { expect_little_left(true); }

}  // namespace
}  // namespace stormo::comm
