#pragma once

#include <unistd.h>
#include <csignal>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/built.h"
#include "tests/unit/train/run_job.h"

// Jobs of the worker program that train the same small problem, and what each of their ranks says.
// Free of libtorch itself: the launcher forks before anything starts threads.
namespace stormo::test {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

inline Words joined(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Where the ranks of a job run.
struct Placement {
  Placement(int ranks_, int hosts_ = 1) : ranks(ranks_), hosts(hosts_) {}  // a number will do
  int ranks;
  int hosts;  ///< names of this machine, between which ranks share no memory
};

/// Runs a job of the worker program; its exit code.
inline int run_worker(Placement placement, Words arguments) {
  arguments.insert(arguments.begin(), testing::built("train_worker"));
  return run_job(placement.ranks, arguments, placement.hosts);
}

/// What a rank left behind.
struct RankFile {
  std::map<long, double> losses;
  std::string eval, hash, status;
  long skipped = 0;                        ///< steps that overflowed
  std::map<long, std::string> mismatches;  ///< warnings by step
};

inline RankFile read_rank(const std::string& folder, int rank) {
  RankFile out;
  std::ifstream in(folder + "/rank-" + std::to_string(rank));
  std::string line;
  while (std::getline(in, line)) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "step") {
      long step = 0;
      std::string loss;
      words >> step >> loss;
      out.losses[step] = std::strtod(loss.c_str(), nullptr);
    } else if (kind == "eval") {
      out.eval = line;
    } else if (kind == "mismatch") {
      long step = 0;
      words >> step;
      std::getline(words, out.mismatches[step]);
    } else if (kind == "skipped") {
      words >> out.skipped;
    } else if (kind == "end") {
      words >> out.hash;
      std::getline(words, out.status);
    }
  }
  return out;
}

/// Which rank's end the launcher reports depends on who notices first.
inline constexpr int kAnyFailure = -1;

class DistributedTrainer : public ::testing::Test {
 protected:
  // Runs the workers; returns what rank 0 wrote, after comparing the end of all ranks with it.
  RankFile train(Placement placement, const Words& arguments, int expected_exit = 0) {
    return train_each(placement, {arguments}, expected_exit).front();
  }
  // Several trainings, one after the other, by the same workers: they take longer to start than to
  // train.
  std::vector<RankFile> train_each(Placement placement, const std::vector<Words>& trainings,
                                   int expected_exit = 0) {
    Words words, folders;
    for (const Words& arguments : trainings) {
      folders.push_back(root + "/" + std::to_string(count++));
      fs::create_directories(folders.back());
      words = joined(joined(words, {"train", folders.back()}), arguments);
    }
    const int code = run_worker(placement, words);
    if (expected_exit == kAnyFailure) {
      EXPECT_NE(code, 0);
    } else {
      EXPECT_EQ(code, expected_exit);
    }
    std::vector<RankFile> first;
    for (const std::string& folder : folders) {
      first.push_back(read_rank(folder, 0));
      for (int r = 1; r < placement.ranks && expected_exit == 0; ++r) {
        EXPECT_EQ(read_rank(folder, r).hash, first.back().hash) << "rank " << r;
      }
    }
    last_folder = folders.back();
    return first;
  }
  // The next run finds the checkpoints of the last one.
  void keep_checkpoint() const {
    fs::create_directories(root + "/" + std::to_string(count));
    fs::rename(last_folder + "/ckpt", root + "/" + std::to_string(count) + "/ckpt");
  }
  // A run on two ranks that a signal ends goes on with the losses and bits of the unbroken one.
  void expect_goes_on(const Words& arguments, const RankFile& unbroken) {
    const std::string what = ::testing::PrintToString(arguments);
    const RankFile broken = train(
        2, joined(arguments, {"event=sigterm", "event_rank=1", "event_call=5"}), 128 + SIGTERM);
    ASSERT_LT(broken.losses.size(), unbroken.losses.size()) << what;
    keep_checkpoint();
    const RankFile resumed = train(2, joined(arguments, {"resume=1"}));
    RankFile whole = broken;
    whole.losses.insert(resumed.losses.begin(), resumed.losses.end());
    EXPECT_EQ(whole.losses, unbroken.losses) << what;
    EXPECT_EQ(resumed.hash, unbroken.hash) << what;
  }
  void TearDown() override { fs::remove_all(root); }

  std::string root = ::testing::TempDir() + "stormo_distributed_" + std::to_string(getpid());
  std::string last_folder;
  int count = 0;
};

inline void expect_equal_losses(const RankFile& got, const RankFile& wanted,
                                const std::string& what) {
  ASSERT_FALSE(wanted.losses.empty()) << what;
  ASSERT_EQ(got.losses.size(), wanted.losses.size()) << what;
  for (const auto& [step, loss] : wanted.losses) {
    EXPECT_LE(std::fabs(got.losses.at(step) - loss), 1e-10 * std::fabs(loss))
        << what << ", step " << step;
  }
}

}  // namespace stormo::test
