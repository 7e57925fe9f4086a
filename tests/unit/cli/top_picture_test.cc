#include <cli/top/picture.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <stormo/base/text.h>

namespace stormo::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

json shares(double compute, double communication, double wait, double data) {
  return {{"compute", compute}, {"communication", communication}, {"wait", wait}, {"data", data}};
}

/// The page of a job in which rank r waits r % 7 percent of its time. A step has 8 samples and
/// takes 20 ms; `slowest` waits for data for another tenth.
json page_of(int ranks, int slowest) {
  json step = {{"event", "step"},      {"step", 412},  {"steps", 1000},
               {"epoch", 1.5},         {"loss", 0.25}, {"learning_rate", 1e-3},
               {"samples_per_s", 400}, {"eta_s", 75},  {"share", shares(1, 0, 0, 0)}};
  for (int r = 0; r < ranks && ranks > 1; ++r) {
    const double wait = 0.01 * (r % 7);
    step["rank_shares"].push_back(shares(0.8 - wait, 0.05, wait, r == slowest ? 0.15 : 0.05));
  }
  if (ranks > 1) step["slowest"] = {{"rank", slowest}, {"host", nullptr}};
  json processes = json::array();
  for (int r = 0; r < ranks; ++r) {
    processes.push_back(
        {{"rank", r}, {"host", "node7"}, {"state", "running"}, {"memory_bytes", (256 + r) << 20}});
  }
  return {{"schema", 1},
          {"version", "0.1.0"},
          {"state", "training"},
          {"running_s", 125},
          {"last_step_s", 0.5},
          {"ranks", processes},
          {"records",
           {{{"event", "start"},
             {"recipe", "small"},
             {"strategy", "ddp"},
             {"ranks", ranks},
             {"hosts", 1},
             {"parameters", 12730},
             {"steps", 1000},
             {"global_batch", 8}},
            step}}};
}

JobStatus status_of(const json& page) { return parse_job_status(page.dump()).take_or_throw(); }

std::vector<std::string> lines_of(const json& page, const Window& window) {
  return job_picture(status_of(page), "127.0.0.1:9464", "", window);
}

std::string text_of(const json& page, const Window& window) {
  std::string text;
  for (const std::string& line : lines_of(page, window)) text += line + "\n";
  return text;
}

std::size_t characters_of(std::string_view text) {
  std::size_t n = 0;
  for (; !text.empty(); ++n) text.remove_prefix(first_character(text).length);
  return n;
}

TEST(TopPicture, OneRankInAWideWindow) {
  EXPECT_THAT(lines_of(page_of(1, -1), {.columns = 120, .rows = 40}),
              ElementsAre("small: training  127.0.0.1:9464  for 2 min 5 s",
                          "ddp  1 rank of 1 host  12730 parameters  batch 8",
                          "[########............]  step 412 of 1000  epoch 1.50  500.0 ms ago  "
                          "1 min 15 s left",
                          "loss 0.2500  learning rate 0.001  50.0 steps/s  400 samples/s  "
                          "20.0 ms a step",
                          "",  //
                          "rank  state    compute  wait  comm  data  memory   host",
                          " 0    running  20.0 ms  0 s   0 s   0 s   256 MiB  node7"));
}

TEST(TopPicture, TheSlowestOf64RanksIsMarkedAndFirstWhereNotAllFit) {
  const json page = page_of(64, 37);
  const std::vector<std::string> all = lines_of(page, {.columns = 120, .rows = 100});
  EXPECT_EQ(all.size(), 4 + 1 + 1 + 64u);
  EXPECT_THAT(all[6], AllOf(HasSubstr(" 0 "), Not(HasSubstr("slowest"))));
  EXPECT_THAT(all[6 + 37], AllOf(HasSubstr("*37"), HasSubstr("3.0 ms"), HasSubstr("slowest")));
  const std::vector<std::string> some = lines_of(page, {.columns = 120, .rows = 24});
  EXPECT_EQ(some.size(), 24u);
  EXPECT_THAT(some[6], HasSubstr("*37"));
  EXPECT_THAT(some[7], HasSubstr(" 0 "));  // then those that waited least, by rank
  EXPECT_THAT(some[8], HasSubstr(" 7 "));
  EXPECT_EQ(some.back(), "and 47 more ranks");
}

TEST(TopPicture, AStoppedRankComesBeforeTheSlowest) {
  json page = page_of(64, 37);
  page["ranks"][50]["state"] = "stopped";
  const std::vector<std::string> some = lines_of(page, {.columns = 120, .rows = 10});
  EXPECT_THAT(some[6], AllOf(HasSubstr(" 50 "), HasSubstr("stopped")));
  EXPECT_THAT(some[7], HasSubstr("*37"));
}

TEST(TopPicture, NeverIsLargerThanTheWindow) {
  for (const int ranks : {1, 2, 64}) {
    json page = page_of(ranks, ranks > 1 ? 1 : -1);
    page["records"].push_back({{"event", "warning"}, {"message", std::string(300, 'w')}});
    for (const int columns : {1, 2, 3, 7, 20, 39, 60, 80, 200}) {
      for (const int rows : {1, 2, 3, 5, 8, 13, 24, 100}) {
        const auto lines = lines_of(page, {.columns = columns, .rows = rows});
        EXPECT_LE(lines.size(), static_cast<std::size_t>(rows));
        for (const std::string& line : lines) {
          EXPECT_LE(characters_of(line), static_cast<std::size_t>(columns)) << line;
        }
      }
    }
  }
}

TEST(TopPicture, ANarrowWindowHasTheColumnsThatSayMost) {
  const std::string text = text_of(page_of(2, 1), {.columns = 32, .rows = 40});
  EXPECT_THAT(text, HasSubstr("\nrank  compute  wait      memory\n"));
  EXPECT_THAT(text, HasSubstr("\n*1    15.8 ms  200.0 us  257 MiB\n"));
  EXPECT_THAT(text, HasSubstr("\nstep 412 of 1000  epoch 1.50\n"));  // no bar
  EXPECT_THAT(text_of(page_of(2, 1), {.columns = 6, .rows = 40}), HasSubstr("\nrank\n 0\n*1\n"));
}

TEST(TopPicture, ColoursOnlyWhereTheyAreWanted) {
  EXPECT_THAT(text_of(page_of(2, 1), {.columns = 80}), Not(HasSubstr("\x1b")));
  const std::string text = text_of(page_of(2, 1), {.columns = 80, .color = true});
  EXPECT_THAT(text, HasSubstr("\x1b[1msmall: training  127.0.0.1:9464  for 2 min 5 s\x1b[0m\n"));
  EXPECT_THAT(text, HasSubstr("\x1b[33m*1 "));
}

TEST(TopPicture, WhatOthersSayCannotChangeTheTerminal) {
  json page = page_of(1, -1);
  page["records"][0]["recipe"] = "a\x1b[2Jb\nc";
  page["records"].push_back({{"event", "error"}, {"message", "two\nlines \x1b]0;x\x07"}});
  page["state"] = "failed";
  const std::string text = text_of(page, {.columns = 80});
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("a\\x1b[2Jb\\nc: failed  "));
  EXPECT_THAT(text, HasSubstr("failed: two\\nlines \\x1b]0;x\\x07\n"));
}

TEST(TopPicture, WarningsAndEvaluationsAreShown) {
  json page = page_of(1, -1);
  page["records"].push_back(
      {{"event", "eval"}, {"split", "validation"}, {"step", 400}, {"loss", 1}, {"accuracy", 0.5}});
  page["records"].push_back({{"event", "save_failed"}, {"step", 300}, {"error", "no space"}});
  page["records"].push_back({{"event", "warning"}, {"message", "the loss has grown"}});
  EXPECT_THAT(text_of(page, {.columns = 100}),
              AllOf(HasSubstr("\nvalidation after step 400: loss 1.0000, accuracy 50.00 %\n"),
                    HasSubstr("\nwarning: the checkpoint after step 300 failed: no space\n"),
                    HasSubstr("\nwarning: the loss has grown\n")));
}

TEST(TopPicture, AJobThatHasNotBegunHasNoTable) {
  EXPECT_THAT(
      lines_of({{"schema", 1}, {"state", "starting"}, {"running_s", 2}, {"records", json::array()}},
               {.columns = 80, .rows = 24}),
      ElementsAre("starting  127.0.0.1:9464  for 2.0 s"));
}

TEST(JobStatus, OtherPagesAreRefused) {
  for (const char* text : {"", "{}", "[1]", "7", "<html>", R"({"schema": 1})",
                           R"({"schema": "1", "state": "training"})"}) {
    EXPECT_EQ(parse_job_status(text).status().code(), Code::kCorrupt) << text;
  }
  EXPECT_EQ(parse_job_status(std::string(100'000, '[')).status().code(), Code::kCorrupt);
  json other = page_of(1, -1);
  other["schema"] = 2;
  const Status refused = parse_job_status(other.dump()).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("0.1.0"));
}

// Each field of another kind: no failure, and a picture.
TEST(JobStatus, FieldsOfOtherKindsAreLeftOut) {
  const json page = page_of(2, 1);
  for (const json& wrong :
       {json(), json("x"), json(-1), json(1e300), json::array({1}), json{{"a", 1}}}) {
    for (const auto& [key, value] : page.items()) {
      json changed = page;
      changed[key] = wrong;
      const auto job = parse_job_status(changed.dump());
      if (!job.ok()) continue;
      EXPECT_FALSE(job_picture(*job, "a", "", {.columns = 80, .rows = 24}).empty()) << key;
    }
    for (const int record : {0, 1}) {
      for (const auto& [key, value] : page["records"][record].items()) {
        json changed = page;
        changed["records"][record][key] = wrong;
        const JobStatus job = status_of(changed);
        EXPECT_FALSE(job_picture(job, "a", "", {.columns = 80, .rows = 24}).empty()) << key;
        EXPECT_TRUE(json::parse(to_json(job, "a")).is_object());
      }
    }
  }
}

TEST(JobStatus, JsonHasTheSameNumbers) {
  json page = page_of(2, 1);
  page["records"][1]["loss"] = nullptr;  // not a number
  const json out = json::parse(to_json(status_of(page), "127.0.0.1:9464"));
  EXPECT_EQ(out["schema"], 1);
  EXPECT_EQ(out["address"], "127.0.0.1:9464");
  EXPECT_EQ(out["state"], "training");
  EXPECT_EQ(out["step"], 412);
  EXPECT_EQ(out["steps_per_s"], 50);
  EXPECT_TRUE(out["loss"].is_null());
  EXPECT_TRUE(out["error"].is_null());
  ASSERT_EQ(out["ranks"].size(), 2u);
  EXPECT_EQ(out["ranks"][1]["slowest"], true);
  EXPECT_EQ(out["ranks"][1]["memory_bytes"], 257 << 20);
  EXPECT_DOUBLE_EQ(out["ranks"][1]["seconds"]["data"], 0.15 * 0.02);
}

TEST(JobStatus, SaysHowItEnded) {
  json page = page_of(1, -1);
  page["state"] = "done";
  page["records"].push_back({{"event", "end"}, {"steps", 1000}, {"train_loss", 0.125}});
  EXPECT_EQ(state_text(status_of(page)), "done after step 1000, train loss 0.1250");
  page["state"] = "failed";
  page["records"].push_back({{"event", "error"}, {"message", "rank 1 was lost"}});
  EXPECT_EQ(state_text(status_of(page)), "failed: rank 1 was lost");
  EXPECT_EQ(state_text(status_of(page_of(1, -1))), "training, step 412 of 1000");
}

TEST(TopPicture, SaysWhoIsSlowAndInWhat) {
  json page = page_of(3, 1);
  EXPECT_THAT(lines_of(page, {.columns = 120})[5], Not(HasSubstr("slow")));
  page["records"].push_back({{"event", "slow_rank"},
                             {"step", 400},
                             {"rank", 2},
                             {"part", "data"},
                             {"ratio", 1.31},
                             {"step_ratio_without", 0.875}});
  page["records"].push_back({{"event", "slow_rank"}, {"rank", 7}, {"part", "data"}, {"ratio", 2}});
  EXPECT_THAT(lines_of(page, {.columns = 120}), testing::Contains(HasSubstr("data 1.3x")).Times(1));
  const json out = json::parse(to_json(status_of(page), ""));
  EXPECT_TRUE(out["ranks"][1]["slow"].empty());
  EXPECT_EQ(out["ranks"][2]["slow"].dump(),
            R"([{"part":"data","ratio":1.31,"step_ratio_without":0.875}])");
}

}  // namespace
}  // namespace stormo::cli
