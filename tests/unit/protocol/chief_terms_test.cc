#include <stormo/protocol/server/chief_terms.h>

#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/protocol/server/server_verdicts.h>

namespace stormo::protocol {
namespace {

TEST(ChiefTerms, ThePrimaryNamesTheNextChiefAndItsBackupKnowsItFirst) {
  ChiefTerms primary, backup, other;
  EXPECT_TRUE(primary.obeys(0, {}));
  EXPECT_FALSE(primary.obeys(1, {})) << "it is not the chief";
  const ChiefTerm next = primary.propose(2);
  EXPECT_EQ(next, (ChiefTerm{.number = 1, .worker = 2}));
  EXPECT_FALSE(primary.obeys(0, {})) << "from here on";
  EXPECT_FALSE(primary.obeys(2, next)) << "not before the backup knows it";
  EXPECT_EQ(primary.current(), ChiefTerm{});
  EXPECT_TRUE(backup.learn(next));
  EXPECT_FALSE(backup.obeys(0, {}));
  primary.confirm();
  EXPECT_TRUE(primary.obeys(2, next));
  EXPECT_TRUE(other.obeys(0, {})) << "it has not heard of the next one";
  EXPECT_TRUE(other.learn(next));
  EXPECT_FALSE(other.learn(next));
  EXPECT_FALSE(other.learn({})) << "an earlier one";
  EXPECT_FALSE(other.obeys(0, {}));
}

TEST(ChiefTerms, ThePrimaryMayLearnItsProposalFromOthersFirst) {
  ChiefTerms primary;
  const ChiefTerm next = primary.propose(1);
  EXPECT_TRUE(primary.learn(next));
  EXPECT_FALSE(primary.is_proposing());
  primary.confirm();
  EXPECT_EQ(primary.current(), next);
}

/// The servers of a run, messages between them that come late or never, and chiefs that were taken
/// for lost, but go on.
class SimulatedRun {
 public:
  SimulatedRun(int servers, Rng& rng) : servers_(static_cast<std::size_t>(servers)), rng_(rng) {
    chiefs_.emplace(0, Chief{.term = {}, .verdicts = ServerVerdicts(servers)});
    for (int s = 0; s < servers; ++s) chiefs_.at(0).heard.insert(s);
  }

  void step() {
    switch (below(6)) {
      case 0: take_chief_for_lost(below(2)); break;
      case 1: deliver_proposal(); break;
      case 2:
        if (delivered_) servers_[0].terms.confirm();
        break;
      case 3:
      case 4: beat(any_chief(), below(count())); break;
      default: complain(any_chief(), below(count()));
    }
    note_terms();
  }

  void expect_sound() const {
    for (int part = 0; part < count(); ++part) {
      const int backup = successor(part, count());
      const std::set<int>& at_primary = at(part).lost;
      const std::set<int>& at_backup = at(backup).lost;
      const bool primary_alone = at_primary.contains(backup) && !at_primary.contains(part);
      const bool backup_alone = at_backup.contains(part) && !at_backup.contains(backup);
      ASSERT_FALSE(primary_alone && backup_alone) << "part " << part;
    }
  }
  std::uint64_t terms() const { return chiefs_.rbegin()->first; }

 private:
  struct Server {
    ChiefTerms terms;
    std::set<int> lost;
    ChiefTerm before = {};
  };
  struct Chief {
    ChiefTerm term;
    ServerVerdicts verdicts;
    std::set<int> heard = {};  // servers that have answered it
  };

  int below(int n) { return static_cast<int>(rng_.below(static_cast<std::uint64_t>(n))); }
  int count() const { return static_cast<int>(servers_.size()); }
  Server& at(int s) { return servers_[static_cast<std::size_t>(s)]; }
  const Server& at(int s) const { return servers_[static_cast<std::size_t>(s)]; }
  Chief& any_chief() {
    return std::next(chiefs_.begin(), below(static_cast<int>(chiefs_.size())))->second;
  }

  // it has learned that it counts as lost itself
  bool has_ended(int s) const { return at(s).lost.contains(s); }
  void take_chief_for_lost(int s) {
    Server& server = at(s);
    const bool alone = server.lost.contains(1 - s);
    if (has_ended(s) || server.terms.is_proposing() || (s == 1 && !alone)) return;
    const ChiefTerm next = server.terms.propose(1 + below(5));
    if (alone) {
      server.terms.confirm();
    } else {
      sent_ = next;
      delivered_ = false;
    }
  }
  // the backup has closed this line when it goes on with the part
  void deliver_proposal() {
    if (!sent_ || has_ended(1) || at(1).lost.contains(0)) return;
    at(1).terms.learn(*sent_);
    sent_.reset();
    delivered_ = true;
  }
  void beat(Chief& chief, int s) {
    Server& server = at(s);
    if (has_ended(s)) return;
    server.terms.learn(chief.term);
    if (!server.terms.obeys(chief.term.worker, chief.term)) return;
    for (const int lost : chief.verdicts.lost()) server.lost.insert(lost);
    chief.heard.insert(s);
    for (const int lost : server.lost) chief.verdicts.lose(lost);
  }
  // not before it has heard what chiefs before it have told any server
  void complain(Chief& chief, int s) {
    for (int other = 0; other < count(); ++other) {
      if (!chief.heard.contains(other) && !chief.verdicts.is_lost(other)) return;
    }
    if (has_ended(s) || at(s).terms.current() != chief.term) return;
    chief.verdicts.complain(s, below(2) == 0 ? successor(s, count()) : predecessor(s, count()));
  }
  void note_terms() {
    for (Server& server : servers_) {
      const ChiefTerm now = server.terms.current();
      EXPECT_GE(now.number, server.before.number) << "terms do not go back";
      server.before = now;
      const auto [chief, is_new] =
          chiefs_.try_emplace(now.number, Chief{.term = now, .verdicts = ServerVerdicts(count())});
      EXPECT_EQ(chief->second.term, now) << "a term has one chief";
    }
  }

  std::vector<Server> servers_;
  Rng& rng_;
  std::map<std::uint64_t, Chief> chiefs_;
  std::optional<ChiefTerm> sent_;  // by server 0
  bool delivered_ = false;
};

// Whatever is taken for lost in whatever order, whoever goes on nevertheless: a term has one chief,
// and never two servers go on with one part.
TEST(ChiefTerms, NeverTwoChiefsOfOneTermAndNeverTwoHoldersOfOnePart) {
  Rng rng(1, "terms");
  std::uint64_t terms = 0;
  for (int round = 0; round < 3000; ++round) {
    SimulatedRun run(static_cast<int>(2 + rng.below(3)), rng);
    for (int event = 0; event < 80; ++event) {
      run.step();
      run.expect_sound();
      if (testing::Test::HasFailure()) return;
    }
    terms += run.terms();
  }
  EXPECT_GT(terms, 6000u) << "of chiefs after the first one";
}

}  // namespace
}  // namespace stormo::protocol
