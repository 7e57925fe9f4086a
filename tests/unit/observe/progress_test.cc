#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include <stormo/observe/progress.h>

namespace stormo::observe {
namespace {

using testing::HasSubstr;
using testing::Not;

const StepRecord kStep{.step = 20,
                       .steps = 400,
                       .loss = 2.5,
                       .samples_per_s = 1234.4,
                       .eta_s = 125,
                       .share = {0.7, 0.2, 0.08, 0.02}};

TEST(TextObserver, PrintsOneLinePerStepIntoAFile) {
  std::ostringstream out;
  TextObserver observer(out, {});
  observer.on_step(kStep);
  observer.on_eval(
      {.split = "validation", .step = 20, .loss = 2.25, .accuracy = 0.5, .samples = 9});
  EXPECT_EQ(out.str(),
            "step  20/400  loss 2.5000  1234 samples/s  ETA 2 min 5 s  "
            "compute 70% comm 20% wait 8% data 2%\n"
            "validation after step 20: loss 2.2500, accuracy 50.00 % (9 samples)\n");
}

TEST(TextObserver, RedrawsOneLineOnATerminal) {
  std::ostringstream out;
  TextObserver observer(out, {.live = true, .color = false, .columns = 160});
  observer.on_step(kStep);
  observer.on_step(kStep);
  observer.on_eval({.split = "validation", .step = 20, .loss = 2.25, .samples = 9});
  const std::string drawn =
      "\r\x1b[2K[#...................] step  20/400  loss 2.5000  1234 samples/s  ETA 2 min 5 s  "
      "compute 70% comm 20% wait 8% data 2%";
  EXPECT_EQ(out.str(),
            drawn + drawn + "\r\x1b[2Kvalidation after step 20: loss 2.2500 (9 samples)\n");
}

TEST(TextObserver, SaysWhoIsSlowAndWhyAndWhatTheJobWouldGain) {
  std::ostringstream out, warnings;
  TextObserver observer(out, {});
  WarningObserver short_observer(warnings);
  SlowRanksRecord record{.step = 20,
                         .changes = {{.rank = 3,
                                      .host = "b",
                                      .part = "data",
                                      .seconds = 0.039,
                                      .expected = 0.03,
                                      .ratio = 1.3,
                                      .without = 0.87},
                                     {.rank = 1, .part = "link", .begins = false},
                                     {.rank = 2, .part = "compute", .seconds = 1, .ratio = 100}}};
  const std::string expected =
      "rank 3 on host b is slow: data takes 1.3 times as long as that of the others, 39.0 ms a "
      "step; without it a step would take 0.87 of its time\n"
      "rank 1 is as fast as the others again: link\n"
      "rank 2 is slow: compute takes at least 100.0 times as long as that of the others, 1.0 s a "
      "step; without it a step would take 1.00 of its time\n";
  observer.on_slow_ranks(record);
  EXPECT_EQ(out.str(), expected);
  record.changes.push_back({});
  record.changes.push_back({});
  short_observer.on_slow_ranks(record);
  EXPECT_EQ(warnings.str(), expected + "and 2 more changes: see --json\n");
}

TEST(TextObserver, NamesTheSlowestRankAndWhatHasChanged) {
  std::ostringstream out;
  TextObserver observer(out, {});
  StepRecord step = kStep;
  step.slowest = 3;
  observer.on_step(step);
  step.slowest_host = "b";
  observer.on_step(step);
  observer.on_start({.first_step = 2, .changed = {{"train.seed", "1", "2"}}});
  observer.on_warning({.kind = "at_chance", .step = 4, .message = "why"});
  EXPECT_THAT(
      out.str(),
      testing::AllOf(HasSubstr("data 2%  slowest rank 3\n"), HasSubstr("slowest rank 3 on b\n"),
                     HasSubstr("\n  train.seed was 1, is now 2\n"), HasSubstr("\nwarning: why\n")));
}

std::string live_line(int columns) {
  std::ostringstream out;
  TextObserver(out, {.live = true, .color = false, .columns = columns}).on_step(kStep);
  return out.str().substr(std::string("\r\x1b[2K").size());
}

TEST(TextObserver, LiveLineFitsTheTerminal) {
  for (const int columns : {1, 20, 80, 120, 400}) {
    EXPECT_LE(live_line(columns).size(), static_cast<std::size_t>(std::max(1, columns - 1)));
  }
}

TEST(TextObserver, TheBarComesBeforeTheShares) {
  EXPECT_THAT(live_line(60), Not(HasSubstr("[")));
  for (const int columns : {70, 80, 90, 100, 110, 120}) {
    EXPECT_THAT(live_line(columns), testing::StartsWith("[")) << columns;
    EXPECT_THAT(live_line(columns), HasSubstr("ETA 2 min 5 s")) << columns;
  }
  EXPECT_THAT(live_line(80), Not(HasSubstr("compute")));
  EXPECT_THAT(live_line(110), HasSubstr("data 2%"));
}

TEST(TextObserver, ProgressBetweenLoggedStepsMovesOnlyALiveLine) {
  std::ostringstream file, terminal;
  TextObserver(file, {}).on_progress(kStep);
  EXPECT_EQ(file.str(), "");
  TextObserver(terminal, {.live = true, .color = false, .columns = 80}).on_progress(kStep);
  EXPECT_THAT(terminal.str(), HasSubstr("step  20/400"));
}

TEST(TextObserver, AnErrorTakesThePlaceOfTheLiveLine) {
  std::ostringstream out;
  TextObserver observer(out, {.live = true, .color = false, .columns = 80});
  observer.on_progress(kStep);
  observer.on_error({.exit_code = 1, .message = "rank 1 is gone"});
  EXPECT_THAT(out.str(), testing::EndsWith("\r\x1b[2Kstormo train: rank 1 is gone\n"));
}

TEST(TextObserver, SummaryNamesWhatAPersonNeeds) {
  std::ostringstream out;
  EndRecord end{.steps = 400,
                .samples = 4800,
                .wall_s = 10,
                .samples_per_s = 480,
                .train_loss = 1.5,
                .train_loss_steps = 100};
  end.skipped_steps = 3;
  end.val_loss = 1.75;
  end.test_accuracy = 0.9875;
  end.weights_hash = "0123456789abcdef";
  end.ranks = 2;
  end.lost_workers = {{.worker = 1, .lost = 2, .came_back = 2}, {.worker = 3}};
  end.checkpoint = "runs/x/step-00000400";
  end.sample = "ROMEO:\nwhat\x1b[31m?";
  TextObserver(out, {}).on_end(end);
  EXPECT_EQ(out.str(),
            "\n"
            "done: 400 steps, 4800 samples in 10.0 s (480 samples/s) on 2 ranks\n"
            "  train loss       1.5000 (mean of the last 100 steps)\n"
            "  skipped steps    3\n"
            "  validation loss  1.7500\n"
            "  test accuracy    98.75 %\n"
            "  lost workers     worker 1: 2 times, came back; worker 3: once, did not come back\n"
            "  weights hash     0123456789abcdef\n"
            "  checkpoint       runs/x/step-00000400\n"
            "\n"
            "a sample of what the model writes\n"
            "  | ROMEO:\n"
            "  | what\\x1b[31m?\n");
}

TEST(TextObserver, ARunThatSavesNothingSaysSoAtItsStart) {
  const auto told = [](const std::string& folder) {
    std::ostringstream out;
    StartRecord start;
    start.checkpoint = folder;
    TextObserver(out, {}).on_start(start);
    return out.str();
  };
  EXPECT_THAT(told(""), HasSubstr("nothing is saved: no checkpoint.directory is given\n"));
  EXPECT_THAT(told("runs/x"), Not(HasSubstr("nothing is saved")));
}

TEST(TextObserver, InterruptedRunSaysHowToGoOn) {
  std::ostringstream out;
  EndRecord end{.steps = 3};
  end.interrupted = true;
  end.checkpoint = "runs/x/step-00000003";
  TextObserver(out, {}).on_end(end);
  EXPECT_THAT(out.str(), HasSubstr("interrupted after 3 steps"));
  EXPECT_THAT(out.str(), HasSubstr("--resume"));
}

TEST(TextObserver, AFailedSaveIsOneLineAboveTheLiveOne) {
  const SaveFailedRecord failed{
      .step = 40, .failures = 2, .max_failures = 3, .error = "rank 1: No space left on device"};
  std::ostringstream text, warnings;
  TextObserver observer(text, {.live = true});
  observer.on_step(kStep);
  observer.on_save_failed(failed);
  WarningObserver(warnings).on_save_failed(failed);
  WarningObserver(warnings).on_step(kStep);
  const std::string line = warnings.str();
  EXPECT_THAT(line, HasSubstr("after step 40 failed (2 in a row, 3 end the run)"));
  EXPECT_THAT(line, HasSubstr("rank 1: No space left on device\n"));
  EXPECT_THAT(text.str(), testing::EndsWith("\r\x1b[2K" + line));
}

TEST(TextObserver, SurvivesNumbersWithoutAMeaning) {
  std::ostringstream out;
  StepRecord step = kStep;
  step.eta_s = std::numeric_limits<double>::infinity();
  step.loss = std::numeric_limits<double>::quiet_NaN();
  TextObserver(out, {}).on_step(step);
  EXPECT_THAT(out.str(), HasSubstr("loss nan"));
  EXPECT_THAT(out.str(), HasSubstr("ETA unknown"));
}

TEST(TerminalStyle, HonoursNoColorAndDumbTerminals) {
  EXPECT_TRUE(terminal_style(true, 80, nullptr, "xterm").live);
  EXPECT_TRUE(terminal_style(true, 80, nullptr, "xterm").color);
  EXPECT_TRUE(terminal_style(true, 80, "", "xterm").color);
  EXPECT_FALSE(terminal_style(true, 80, "1", "xterm").color);
  EXPECT_TRUE(terminal_style(true, 80, "1", "xterm").live);
  EXPECT_FALSE(terminal_style(true, 80, nullptr, "dumb").live);
  EXPECT_FALSE(terminal_style(true, 80, nullptr, nullptr).live);
  EXPECT_FALSE(terminal_style(false, 80, nullptr, "xterm").live);
  EXPECT_FALSE(terminal_style(false, 80, nullptr, "xterm").color);
  EXPECT_EQ(terminal_style(true, 0, nullptr, "xterm").columns, 100);
}

TEST(TextObserver, ColoursOnlyWhenAllowed) {
  std::ostringstream plain, colored;
  EndRecord end;
  end.val_loss = 1;
  TextObserver(plain, {.live = true, .color = false}).on_end(end);
  TextObserver(colored, {.live = true, .color = true}).on_end(end);
  EXPECT_THAT(plain.str(), Not(HasSubstr("\x1b[1m")));
  EXPECT_THAT(colored.str(), HasSubstr("\x1b[1m1.0000\x1b[0m"));
}

}  // namespace
}  // namespace stormo::observe
