#include <stormo/observe/cost.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include <stormo/base/temporary_folder.h>

namespace stormo::observe {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class CostMeterTest : public ::testing::Test {
 protected:
  CostMeter::Options options() {
    CostMeter::Options out;
    out.joules = [this] { return joules_; };
    out.threads_per_rank = 4;
    out.ledger_file = file_;
    out.clock = &clock_;
    return out;
  }
  static StartRecord start(std::int64_t first_step = 0, int hosts = 1) {
    StartRecord out;
    out.ranks = 2;
    out.hosts = hosts;
    out.first_step = first_step;
    out.global_batch = 10;
    return out;
  }
  static StepRecord step(std::int64_t number, std::string checkpoint = {}) {
    StepRecord out;
    out.step = number;
    out.samples = 10 * number;
    out.checkpoint = std::move(checkpoint);
    return out;
  }
  CostLedger ledger() const {
    std::ifstream file(file_);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return parse_cost_ledger(text).value();
  }

  TemporaryFolder folder_ = TemporaryFolder::create("cost").take_or_throw();
  std::string file_ = (folder_.path() / "cost.json").string();
  std::map<std::string, double> joules_ = {{"package", 0}};
  ManualClock clock_;
};

TEST_F(CostMeterTest, HoursPriceAndEnergyOfARun) {
  CostMeter::Options o = options();
  o.price_per_host_hour = 3;
  CostMeter meter(std::move(o));
  meter.on_start(start());
  clock_.advance(30min);
  joules_ = {{"package", 150}, {"dram", 50}};
  EndRecord end;
  end.samples = 100;
  meter.on_end(end);
  const CostRecord r = meter.record();
  EXPECT_DOUBLE_EQ(r.wall_s, 1800);
  EXPECT_DOUBLE_EQ(r.host_hours, 0.5);
  EXPECT_DOUBLE_EQ(r.core_hours, 4);  // of 2 ranks with 4 threads
  EXPECT_DOUBLE_EQ(*r.price, 1.5);
  EXPECT_DOUBLE_EQ(*r.joules_per_sample, 2);
  EXPECT_EQ(r.no_energy, "");
  EXPECT_EQ(r.wasted_s, 0);
}

TEST_F(CostMeterTest, WhatIsNotMeasuredIsSaid) {
  CostMeter::Options o = options();
  o.joules = {};
  o.no_energy = "there are no counters";
  CostMeter meter(std::move(o));
  meter.on_start(start());
  clock_.advance(1h);
  meter.on_end({.samples = 100});
  EXPECT_FALSE(meter.record().joules_per_sample);
  EXPECT_FALSE(meter.record().price);
  EXPECT_EQ(cost_rows(meter.record()).at("energy"), "not measurable here: there are no counters");

  CostMeter of_several(options());
  of_several.on_start(start(0, /*hosts=*/3));
  clock_.advance(1h);
  of_several.on_end({.samples = 100});
  EXPECT_FALSE(of_several.record().joules_per_sample);
  EXPECT_DOUBLE_EQ(of_several.record().host_hours, 3);
  EXPECT_THAT(of_several.record().no_energy, HasSubstr("the job has 3 hosts"));
}

TEST_F(CostMeterTest, SamplesOfEarlierStartsDoNotCountForTheEnergyOfThisOne) {
  CostMeter meter(options());
  meter.on_start(start(/*first_step=*/8));
  clock_.advance(1min);
  joules_ = {{"package", 40}};
  meter.on_end({.samples = 100});
  EXPECT_DOUBLE_EQ(*meter.record().joules_per_sample, 2);
}

TEST_F(CostMeterTest, WhatAFaultHasWastedIsCountedByTheNextStart) {
  {
    CostMeter meter(options());
    meter.on_start(start());
    clock_.advance(60s);
    meter.on_step(step(1));  // not saved
    EXPECT_FALSE(std::ifstream(file_).good());
    clock_.advance(40s);
    meter.on_step(step(2, "step-2"));
    EXPECT_EQ(ledger(), (CostLedger{.wall_s = 100, .saved_wall_s = 100}));
    clock_.advance(20s);
    meter.on_progress(step(3, "step-2"));
    EXPECT_EQ(ledger(), (CostLedger{.wall_s = 120, .saved_wall_s = 100}));
  }  // it is killed
  CostMeter::Options o = options();
  o.before = resumed(ledger());
  EXPECT_EQ(o.before,
            (CostLedger{.wall_s = 120, .saved_wall_s = 120, .wasted_s = 20, .faults = 1}));
  CostMeter next(std::move(o));
  next.on_start(start(/*first_step=*/2));
  clock_.advance(30s);
  next.on_step(step(3, "step-2"));  // from which it goes on: not saved now
  clock_.advance(10s);
  next.on_step(step(4, "step-2"));
  EXPECT_EQ(ledger(),
            (CostLedger{.wall_s = 160, .saved_wall_s = 120, .wasted_s = 20, .faults = 1}));
  clock_.advance(40s);
  next.on_end({.samples = 50, .checkpoint = "step-5"});
  EXPECT_DOUBLE_EQ(next.record().wall_s, 200);
  EXPECT_DOUBLE_EQ(next.record().wasted_s, 20);
  EXPECT_EQ(cost_rows(next.record()).at("lost by faults"),
            "20.0 s of 3 min 20 s (10.0 %), 1 fault");
  // it has saved all: going on from there wastes nothing
  EXPECT_EQ(resumed(ledger()).wasted_s, 20);
  EXPECT_EQ(resumed(ledger()).faults, 1);
}

TEST_F(CostMeterTest, ARunThatFailsLeavesWhatItHasWasted) {
  CostMeter meter(options());
  meter.on_start(start());
  clock_.advance(10s);
  meter.on_step(step(1, "step-1"));
  clock_.advance(3s);
  meter.on_error({});
  EXPECT_EQ(resumed(ledger()),
            (CostLedger{.wall_s = 13, .saved_wall_s = 13, .wasted_s = 3, .faults = 1}));
}

TEST(CostLedger, IsReadBackAndChecked) {
  const CostLedger ledger{.wall_s = 12.5, .saved_wall_s = 10, .wasted_s = 1, .faults = 2};
  EXPECT_EQ(parse_cost_ledger(to_text(ledger)).value(), ledger);
  for (const char* wrong :
       {"", "[]", "{}", R"({"schema":2,"wall_s":1,"saved_wall_s":1,"wasted_s":0,"faults":0})",
        R"({"schema":1,"wall_s":1,"saved_wall_s":2,"wasted_s":0,"faults":0})",
        R"({"schema":1,"wall_s":1,"saved_wall_s":-1,"wasted_s":0,"faults":0})",
        R"({"schema":1,"wall_s":"1","saved_wall_s":1,"wasted_s":0,"faults":0})"}) {
    EXPECT_EQ(parse_cost_ledger(wrong).status().code(), Code::kCorrupt) << wrong;
  }
}

TEST(CostReport, IsALineOfJsonOrRowsForPeople) {
  ManualClock clock;
  CostMeter meter({.no_energy = "none", .clock = &clock});
  meter.on_start({.ranks = 1, .hosts = 1});
  clock.advance(std::chrono::hours(2));
  meter.on_end({});
  std::ostringstream lines, rows;
  CostReport(meter, lines, true).on_end({});
  CostReport(meter, rows, false).on_end({});
  const json line = json::parse(lines.str());
  EXPECT_EQ(line["event"], "cost");
  EXPECT_EQ(line["host_hours"], 2);
  EXPECT_EQ(line["wasted_share"], 0);
  EXPECT_TRUE(line["joules"].is_null());
  EXPECT_EQ(line["no_energy"], "none");
  EXPECT_EQ(rows.str(),
            "  cost             2 host hours, 2 core hours\n"
            "  energy           not measurable here: none\n");
}

}  // namespace
}  // namespace stormo::observe
