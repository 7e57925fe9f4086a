#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/unit/train/written_plan.h"

// What the Runner owes for any plan that verifies: it does the actions as they stand, and the
// outcome is that of the plain plan. These are written by hand, and no strategy makes them.
namespace stormo::test {

using plan::StepPlan;

/// A plan by hand, and one that must train to the same bits.
struct Pair {
  std::string name;
  StepPlan plan, same_as;
  double clip_norm = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Pair& pair) { return out << pair.name; }

inline void add_orders(std::vector<Pair>& out) {
  const std::string passes = "load\nforward 0-2\nloss\nbackward 0-2\n";
  out.push_back({"GradientsReducedInAnOddOrder",
                 written("dp=2", passes + "all_reduce 2-3 over dp\nall_reduce 5-5 over dp\n"
                                          "all_reduce 0-1 over dp\nall_reduce 4-4 over dp\n"
                                          "update 0-5\nagree"),
                 plain(2)});
  out.push_back({"AnUpdateForEachSegment",
                 written("dp=2", passes + "all_reduce 0-5 over dp\n"
                                          "update 4-5\nupdate 0-1\nupdate 2-3\nagree"),
                 plain(2)});
  out.push_back({"ReducedAndUpdatedByTurns",
                 written("dp=2", passes + "all_reduce 4-5 over dp\nupdate 4-5\n"
                                          "all_reduce 0-3 over dp\nupdate 0-3\nagree"),
                 plain(2)});
  out.push_back({"OverTwoAxes",
                 written("dp=1 other=2", passes + "all_reduce 0-5 over dp,other\nupdate 0-5\nagree",
                         "micro_batches=1",
                         {"replicate replicate", "replicate replicate", "replicate replicate"}),
                 plain(2)});
  for (const int ranks : {1, 2}) {
    out.push_back({"PiecesOfThePassesOn" + std::to_string(ranks),
                   written("dp=" + std::to_string(ranks),
                           "load\nforward 0-0\nforward 1-2\nloss\n"
                           "backward 1-2\nall_reduce 2-5 over dp\n"
                           "backward 0-0\nall_reduce 0-1 over dp\nupdate 0-5\nagree"),
                   plain(ranks)});
  }
}

inline void add_micro_batches(std::vector<Pair>& out) {
  const std::string two = "micro_batches=2", end = "all_reduce 0-5 over dp\nupdate 0-5\nagree";
  const std::string forwards = "load\nforward 0-2\nloss\nforward 0-2 batch 1\nloss batch 1\n";
  const StepPlan one_by_one = written("dp=2",
                                      "load\nforward 0-2\nloss\nbackward 0-2\nforward 0-2 batch 1\n"
                                      "loss batch 1\nbackward 0-2 batch 1\n" +
                                          end,
                                      two);
  out.push_back({"AllForwardsFirst",
                 written("dp=2", forwards + "backward 0-2\nbackward 0-2 batch 1\n" + end, two),
                 one_by_one});
  out.push_back({"BackwardsInReverse",
                 written("dp=2", forwards + "backward 0-2 batch 1\nbackward 0-2\n" + end, two),
                 one_by_one});
  out.push_back({"SegmentsOfMicroBatchesByTurns",
                 written("dp=2",
                         "load\nforward 0-0\nforward 0-0 batch 1\nforward 1-2\n"
                         "forward 1-2 batch 1\nloss batch 1\nloss\nbackward 1-2 batch 1\n"
                         "backward 1-2\nbackward 0-0\nbackward 0-0 batch 1\n" +
                             end,
                         two),
                 one_by_one});
  const auto clipped = [&](const std::string& passes) {
    return written("dp=2", passes + "all_reduce 0-5 over dp\nnorm\nclip\nupdate 0-5\nagree",
                   two + " clipped");
  };
  out.push_back({"ClippingOfMicroBatches",
                 clipped(forwards + "backward 0-2 batch 1\nbackward 0-2\n"),
                 clipped("load\nforward 0-2\nloss\nbackward 0-2\nforward 0-2 batch 1\n"
                         "loss batch 1\nbackward 0-2 batch 1\n"),
                 0.1});
}

inline void add_recomputation(std::vector<Pair>& out) {
  const std::string forwards = "load\nforward 0-0\nforward 1-1\nforward 2-2\nloss\n",
                    end = "all_reduce 0-5 over dp\nupdate 0-5\nagree";
  for (const int ranks : {1, 2}) {
    out.push_back(
        {"RecomputationOfOneSegmentOn" + std::to_string(ranks),
         written("dp=" + std::to_string(ranks),
                 forwards + "backward 2-2\nrecompute 1-1\nbackward 1-1\nbackward 0-0\n" + end),
         plain(ranks)});
  }
  out.push_back(
      {"RecomputationAheadOfTime",
       written("dp=2",
               forwards + "recompute 0-0\nbackward 2-2\nbackward 1-1\nbackward 0-0\n" + end),
       plain(2)});
}

inline void add_asynchronous(std::vector<Pair>& out) {
  out.push_back({"ReductionsThatOnlyTheUpdateAwaits",
                 written("dp=2",
                         "load\nsum_weights async\nforward 0-0\nforward 1-1\nforward 2-2\nloss\n"
                         "backward 2-2\nall_reduce 4-5 over dp async\n"
                         "backward 1-1\nall_reduce 2-3 over dp async\n"
                         "backward 0-0\nall_reduce 0-1 over dp async\nupdate 0-5\nagree"),
                 plain(2)});
  out.push_back({"BucketsAgainstTheOrderOfBackward",
                 written("dp=2",
                         "load\nforward 0-2\nloss\nsum_weights\nbackward 0-2\n"
                         "all_reduce 0-2 over dp async\nall_reduce 5-5 over dp async\n"
                         "all_reduce 3-4 over dp async\nupdate 3-5\nupdate 0-2\nagree"),
                 plain(2)});
  out.push_back({"OneReductionThatBlocksAmongOthers",
                 written("dp=2",
                         "load\nforward 0-2\nloss\nsum_weights async\nbackward 0-2\n"
                         "all_reduce 4-5 over dp async\nall_reduce 2-3 over dp\n"
                         "all_reduce 0-1 over dp async\nupdate 0-5\nagree"),
                 plain(2)});
}

inline void add_other_stores(std::vector<Pair>& out) {
  out.push_back({"OneCopyPerHostInPieces",
                 written("host=2",
                         "load\nforward 0-0\nforward 1-2\nloss\nforward 0-2 batch 1\n"
                         "loss batch 1\nbackward 0-2 batch 1\nbackward 1-2\nbackward 0-0\n"
                         "share_gradients 0-5 over host\nupdate 0-5\n"
                         "share_parameters 0-5 over host\nagree",
                         "micro_batches=2", kOneCopy),
                 written("host=2",
                         "load\nforward 0-2\nloss\nbackward 0-2\nforward 0-2 batch 1\n"
                         "loss batch 1\nbackward 0-2 batch 1\nshare_gradients 0-5 over host\n"
                         "update 0-5\nshare_parameters 0-5 over host\nagree",
                         "micro_batches=2", kOneCopy)});
  const std::string gathers =
      "load\nall_gather 0-1 over shard\nall_gather 2-3 over shard\nall_gather 4-5 over shard\n";
  out.push_back({"ShardsGatheredAtOnce",
                 written("shard=2",
                         gathers + "sum_weights\nforward 0-2\nloss\nbackward 0-2\n"
                                   "reduce_scatter 0-1 over shard\nreduce_scatter 4-5 over shard\n"
                                   "release_gradients 0-1\nreduce_scatter 2-3 over shard\n"
                                   "release_gradients 2-3\nrelease_gradients 4-5\n"
                                   "find_unused\nupdate 0-5\nagree",
                         "micro_batches=1", kShards),
                 written("shard=2",
                         gathers + "forward 0-0\nforward 1-1\nforward "
                                   "2-2\nloss\nsum_weights\nbackward 2-2\nbackward 1-1\n"
                                   "backward 0-0\nreduce_scatter 4-5 over shard\n"
                                   "release_gradients 4-5\nreduce_scatter 2-3 over shard\n"
                                   "release_gradients 2-3\nreduce_scatter 0-1 over shard\n"
                                   "release_gradients 0-1\nfind_unused\nupdate 0-5\nagree",
                         "micro_batches=1", kShards)});
}

inline std::vector<Pair> pairs() {
  std::vector<Pair> out;
  add_orders(out);
  add_micro_batches(out);
  add_recomputation(out);
  add_asynchronous(out);
  add_other_stores(out);
  return out;
}

/// Trains by both plans; `device` of a rank, if not the CPU.
inline void expect_trains_alike(const Pair& pair, const DeviceOf& device = {}) {
  const auto run_of = [&](const StepPlan& plan, double clip_norm = 0) {
    PlanRun run = run_by_hand(plan, clip_norm);
    run.device = device;
    return run;
  };
  const PlanRun run = run_of(pair.plan, pair.clip_norm);
  const auto mine = train_by_plan(run);
  const auto same = train_by_plan(run_of(pair.same_as, pair.clip_norm));
  const auto alone = train_by_plan(run_by_hand(plain(1)));
  for (std::size_t r = 0; r < mine.size(); ++r) {
    expect_trace(mine[r].trace, pair.plan, run.batches.size());
    expect_near(mine[r].values, same[r].values, 0, "the plain plan");
    EXPECT_EQ(mine[r].losses, same[r].losses);
    // clipping changes what is trained
    if (pair.clip_norm == 0) {
      expect_near(mine[r].values, alone[0].values, 1e-12, "one process");
    } else {
      EXPECT_FALSE(mine[r].values.begin()->second.allclose(alone[0].values.begin()->second));
    }
  }
}

}  // namespace stormo::test
