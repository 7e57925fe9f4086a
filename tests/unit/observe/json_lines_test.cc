#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include <stormo/observe/json_lines.h>

namespace stormo::observe {
namespace {

std::vector<std::string> keys(const nlohmann::ordered_json& object) {
  std::vector<std::string> names;
  for (const auto& [key, value] : object.items()) names.push_back(key);
  return names;
}

TEST(JsonObserver, PrintsTheStartLineOfTheDocs) {
  std::ostringstream out;
  JsonObserver(out).on_start({.recipe = "mnist",
                              .strategy = "mirrored",
                              .ranks = 2,
                              .hosts = 1,
                              .parameters = 421642,
                              .steps = 30,
                              .first_step = 0,
                              .global_batch = 64,
                              .seed = 7,
                              .checkpoint = "runs/mnist"});
  EXPECT_EQ(out.str(),
            R"({"event":"start","schema":1,"recipe":"mnist","strategy":"mirrored","ranks":2,)"
            R"("hosts":1,"parameters":421642,"steps":30,"first_step":0,"global_batch":64,"seed":7,)"
            R"("checkpoint":"runs/mnist"})"
            "\n");
}

TEST(JsonObserver, StepLossRoundTripsExactly) {
  std::ostringstream out;
  const double loss = 0.1 + 0.2;
  JsonObserver(out).on_step(
      {.step = 3, .steps = 30, .epoch = 0.5, .loss = loss, .share = {0.5, 0.25, 0.125, 0.125}});
  const auto line = nlohmann::ordered_json::parse(out.str());
  EXPECT_EQ(line["loss"].get<double>(), loss);
  EXPECT_EQ(line["share"]["communication"].get<double>(), 0.25);
  EXPECT_THAT(keys(line), testing::ElementsAre("event", "step", "steps", "epoch", "loss",
                                               "learning_rate", "samples_per_s", "eta_s", "share"));
}

TEST(JsonObserver, SaysWhatHasChangedAndWhoIsSlow) {
  std::ostringstream out;
  JsonObserver observer(out);
  observer.on_start(
      {.changed = {{"train.seed", "1", "2"}, {"optimizer.kind", "\"sgd\"", "\"lars\""}}});
  observer.on_step({.step = 3, .rank_shares = {{0.5, 0, 0.5, 0}, {1, 0, 0, 0}}, .slowest = 1});
  observer.on_warning({.kind = "at_chance", .step = 4, .message = "why"});
  observer.on_slow_ranks({.step = 20,
                          .changes = {{.rank = 1,
                                       .host = "b",
                                       .part = "data",
                                       .seconds = 0.75,
                                       .expected = 0.5,
                                       .ratio = 1.5,
                                       .without = 0.875},
                                      {.rank = 0, .part = "link", .begins = false}}});
  std::istringstream lines(out.str());
  std::string line;
  std::getline(lines, line);
  const auto changed = nlohmann::json::parse(line)["changed"];
  EXPECT_EQ(changed.dump(), R"([{"before":1,"key":"train.seed","now":2},)"
                            R"({"before":"sgd","key":"optimizer.kind","now":"lars"}])");
  std::getline(lines, line);
  const auto step = nlohmann::json::parse(line);
  EXPECT_EQ(step["rank_shares"][0]["wait"], 0.5);
  EXPECT_EQ(step["slowest"].dump(), R"({"host":null,"rank":1})");
  std::getline(lines, line);
  EXPECT_EQ(line, R"({"event":"warning","kind":"at_chance","step":4,"message":"why"})");
  std::getline(lines, line);
  EXPECT_EQ(line, R"({"event":"slow_rank","step":20,"rank":1,"host":"b","part":"data",)"
                  R"("part_s":0.75,"expected_s":0.5,"ratio":1.5,"step_ratio_without":0.875})");
  std::getline(lines, line);
  EXPECT_THAT(line,
              testing::StartsWith(
                  R"({"event":"slow_rank_end","step":20,"rank":0,"host":null,"part":"link")"));
}

TEST(JsonObserver, WhatAWarningIsAboutHasFieldsOfItsOwn) {
  std::ostringstream out;
  JsonObserver(out).on_warning(
      {.kind = "replica_mismatch",
       .step = 4,
       .message = "why",
       .fields = {{"rank", 2}, {"host", "b\"c"}, {"tensor", std::monostate()}}});
  EXPECT_EQ(out.str(), R"({"event":"warning","kind":"replica_mismatch","step":4,"message":"why",)"
                       R"("rank":2,"host":"b\"c","tensor":null})"
                       "\n");
}

TEST(JsonObserver, MembersAreLists) {
  using Names = std::vector<std::string>;
  std::ostringstream out;
  JsonObserver(out).on_warning({.kind = "membership",
                                .step = 4,
                                .message = "why",
                                .fields = {{"epoch", 2},
                                           {"members", Names{"a/0", "a/2"}},
                                           {"lost", Names{"a/1"}},
                                           {"joined", Names{}},
                                           {"cause", "ended"}}});
  EXPECT_EQ(out.str(),
            R"({"event":"warning","kind":"membership","step":4,"message":"why","epoch":2,)"
            R"("members":["a/0","a/2"],"lost":["a/1"],"joined":[],"cause":"ended"})"
            "\n");
}

TEST(JsonObserver, EvalLineHasAccuracyOnlyWhereItHasAMeaning) {
  std::ostringstream with, without;
  JsonObserver(with).on_eval(
      {.split = "test", .step = 4, .loss = 0.25, .accuracy = 0.5, .samples = 10});
  JsonObserver(without).on_eval({.split = "validation", .step = 4, .loss = 0.25, .samples = 10});
  EXPECT_EQ(with.str(),
            R"({"event":"eval","split":"test","step":4,"loss":0.25,"accuracy":0.5,"samples":10})"
            "\n");
  EXPECT_EQ(without.str(),
            R"({"event":"eval","split":"validation","step":4,"loss":0.25,"samples":10})"
            "\n");
}

TEST(JsonObserver, EndLineHasTheKeysOfTheDocs) {
  std::ostringstream out;
  EndRecord end{.steps = 30,
                .samples = 1920,
                .wall_s = 2,
                .samples_per_s = 960,
                .train_loss = 0.5,
                .train_loss_steps = 15};
  end.test_accuracy = 0.75;
  end.weights_hash = "0123456789abcdef";
  end.ranks = 2;
  end.bytes_sent_per_rank = {10, 20};
  end.servers = {{.bytes = 40, .pulls = {3, 4}, .pushes = {1, 2}}};
  end.lost_workers = {{.worker = 1, .lost = 2, .came_back = 1}};
  JsonObserver(out).on_end(end);
  EXPECT_EQ(
      out.str(),
      R"({"event":"end","steps":30,"samples":1920,"wall_s":2.0,"samples_per_s":960.0,)"
      R"("train_loss":0.5,"train_loss_steps":15,"skipped_steps":0,"val_loss":null,"test_accuracy":0.75,)"
      R"("weights_hash":"0123456789abcdef","ranks":2,"hosts":1,)"
      R"("bytes_sent_per_rank":[10,20],)"
      R"("servers":[{"bytes":40,"pulls":[3,4],"pushes":[1,2]}],)"
      R"("lost_workers":[{"worker":1,"lost":2,"came_back":1}],"checkpoint":null})"
      "\n");
}

TEST(JsonObserver, AFailedSaveIsALine) {
  std::ostringstream out;
  JsonObserver(out).on_save_failed(
      {.step = 40, .failures = 2, .max_failures = 3, .error = "write x: No space left on device"});
  EXPECT_EQ(out.str(), R"({"event":"save_failed","step":40,"failures":2,"max_failures":3,)"
                       R"("error":"write x: No space left on device"})"
                       "\n");
}

TEST(JsonObserver, ARunWithoutAnEndHasAnErrorLine) {
  std::ostringstream out;
  JsonObserver(out).on_error({.exit_code = 2, .message = "no data\nno recipe"});
  EXPECT_EQ(out.str(), R"({"event":"error","exit_code":2,"message":"no data\nno recipe"})"
                       "\n");
}

TEST(JsonObserver, StaysValidJsonWhateverItIsGiven) {
  std::ostringstream out;
  JsonObserver observer(out);
  observer.on_start({.recipe = "bad \xff bytes \"and\" quotes\n"});
  observer.on_step({.step = 1, .loss = std::nan("")});
  std::istringstream lines(out.str());
  std::string start, step, more;
  ASSERT_TRUE(std::getline(lines, start) && std::getline(lines, step));
  EXPECT_FALSE(std::getline(lines, more));
  EXPECT_TRUE(nlohmann::json::accept(start)) << start;
  EXPECT_TRUE(nlohmann::json::parse(step)["loss"].is_null());
}

}  // namespace
}  // namespace stormo::observe
