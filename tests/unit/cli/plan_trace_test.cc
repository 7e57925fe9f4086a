// `stormo plan simulate --trace`: a step with the times of a run.
#include <cli/plan/options.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <stormo/base/temporary_folder.h>

namespace stormo::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// Two stages, two micro-batches: all forwards, then all backwards.
constexpr const char* kTwoStages =
    "step_plan v2 two_stages\nmesh pp=2\nstep micro_batches=2\n"
    "segment 0: a flops=0\nparameter 0: a.w elements=10 type=float32\nsegment 1: b flops=0 stage "
    "1\nparameter 1: "
    "b.w elements=10 type=float32\n"
    "state parameters staged\nstate frozen staged\nstate optimizer staged\n"
    "action 0: load\n"
    "action 1: forward 0-0\naction 2: move_activation 0-1\n"
    "action 3: forward 0-0 batch 1\naction 4: move_activation 0-1 batch 1\n"
    "action 5: forward 1-1\naction 6: loss\n"
    "action 7: forward 1-1 batch 1\naction 8: loss batch 1\n"
    "action 9: backward 1-1\naction 10: move_gradient 0-1\n"
    "action 11: backward 1-1 batch 1\naction 12: move_gradient 0-1 batch 1\n"
    "action 13: backward 0-0\naction 14: backward 0-0 batch 1\n"
    "action 15: update 0-1\naction 16: agree\n";

/// Events of `stormo train --trace`, one behind the other on each rank.
class Trace {
 public:
  void add(int rank, int step, const char* lane, const char* name, double ms, double waits = 0) {
    double& now = now_[static_cast<std::size_t>(rank)];
    event(rank, step, lane, name, now, ms + waits);
    if (waits > 0) event(rank, step, "wait", "all_reduce", now, waits);
    now += ms + waits;
  }
  /// Each forward of `rank` takes `forward`, each backward twice that, and all is done after `ms`.
  void step(int rank, int step, double forward, double ms) {
    add(rank, step, "data", "load", 0);
    for (int m = 0; m < 2; ++m) {
      add(rank, step, "compute", "forward", forward);
      if (rank == 1) add(rank, step, "compute", "loss", 0);
    }
    for (int m = 0; m < 2; ++m) add(rank, step, "compute", "backward", 2 * forward, 0.5);
    add(rank, step, "compute", "update", 0);
    add(rank, step, "wait", "all_reduce", ms - 6 * forward - 1);
  }
  std::string text() const { return json{{"traceEvents", events_}}.dump(); }

 private:
  void event(int rank, int step, const char* lane, const char* name, double start, double ms) {
    events_.push_back({{"ph", "X"},
                       {"pid", rank},
                       {"cat", lane},
                       {"name", name},
                       {"ts", 1000 * start},
                       {"dur", 1000 * ms},
                       {"args", {{"step", step}}}});
  }
  double now_[2] = {};
  json events_ = json::array();
};

/// Steps of 12 ms in which now the one stage is slow, now the other. Besides: two for warming up,
/// and one with an evaluation.
Trace uneven_steps() {
  Trace trace;
  for (int step = 0; step < 7; ++step) {
    const double first = step < 2 ? 5 : step % 2 == 0 ? 1.5 : 0.5;
    trace.step(0, step, first, step < 2 ? 40 : 12);
    trace.step(1, step, step < 2 ? 5 : 2 - first, step < 2 ? 40 : 12);
    if (step == 6) trace.add(0, step, "compute", "evaluate", 50);
  }
  return trace;
}

class PlanTrace : public ::testing::Test {
 protected:
  PlanTrace() {
    o_.plan = write("two_stages.plan", kTwoStages);
    o_.ranks = "2";
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::string path = (folder_.path() / name).string();
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  /// What simulate_plan() prints.
  std::string printed() const {
    ::testing::internal::CaptureStdout();
    const Status st = simulate_plan(o_);
    EXPECT_TRUE(st.ok()) << st.message();
    return ::testing::internal::GetCapturedStdout();
  }

  TemporaryFolder folder_ = TemporaryFolder::create("stormo_plan_trace").take_or_throw();
  PlanOptions o_;
};

TEST_F(PlanTrace, GivesTheTimesOfAStep) {
  o_.trace = write("trace.json", uneven_steps().text());
  const std::string table = printed();
  for (const char* share : {"33.3 %", "42.9 %", "50.0 %"}) EXPECT_THAT(table, HasSubstr(share));
  o_.json = true;
  const std::string lines = printed();
  const json end = json::parse(lines.substr(lines.rfind('\n', lines.size() - 2) + 1));
  // m F + m B of either stage, and F + B of the other one, where F = 1 ms and B = 2 ms
  EXPECT_NEAR(end["seconds"], 9e-3, 1e-5);
  EXPECT_NEAR(end["idle_share"], 1 - 12.0 / 18, 1e-3);
  const json& traced = end["traced"];
  EXPECT_EQ(traced["steps"], 4);
  // the slow stage has F = 1.5 ms and B = 3 ms, the fast one a third of that
  EXPECT_NEAR(traced["each_step_seconds"], 10.5e-3, 1e-5);
  EXPECT_NEAR(traced["each_step_idle_share"], 1 - 12.0 / 21, 1e-3);
  EXPECT_NEAR(traced["seconds"], 12e-3, 1e-5);
  EXPECT_NEAR(traced["idle_share"], 1 - 12.0 / 24, 1e-3);
}

TEST_F(PlanTrace, OfAnotherPlanIsRefused) {
  const auto event_of = [](const char* rank) {
    return std::string(R"({"traceEvents":[{"ph":"X","cat":"compute","name":"forward","ts":1,)") +
           R"("dur":1,"args":{"step":0},"pid":)" + rank + "}]}";
  };
  const auto error = [this](const std::string& path) {
    o_.trace = path;
    return simulate_plan(o_).message();
  };
  EXPECT_THAT(error("nowhere"), HasSubstr("cannot read 'nowhere'"));
  EXPECT_THAT(error(write("text.json", "no trace")),
              HasSubstr("is no trace of 'stormo train --trace'"));
  EXPECT_THAT(error(write("other.json", event_of("1"))),
              HasSubstr("has no step of this plan: give the recipe"));
  EXPECT_THAT(error(write("wide.json", event_of("2"))),
              HasSubstr("has a rank 2, the plan has 2 rank(s): give -n"));
}

}  // namespace
}  // namespace stormo::cli
