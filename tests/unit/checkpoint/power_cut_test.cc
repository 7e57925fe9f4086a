// Power cuts at every moment of saves: what was not synced may be lost, in any combination that the
// states below try. The disk is modelled by its log (disk_log.h): a change of a folder lasts once
// the folder was synced, bytes of a file once the file was.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <set>

#include <stormo/checkpoint/file/checked_file.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/format/manifest.h>

#include "disk_log.h"
#include "saved.h"
#include "tests/sanitized.h"

namespace stormo::checkpoint {
namespace {

using namespace test;
using Kind = DiskChange::Kind;
using Tree = std::map<std::string, std::string>;
using Indices = std::vector<std::size_t>;

constexpr const char* kFolder = "new/nested";  // both are created by the first save

/// A log of saves, and the manifests that they published, in order.
class PowerCut : public FolderTest {
 protected:
  void SetUp() override {
    const fs::path root = folder_ / "disk";
    fs::create_directories(root);
    DiskRecorder recorder(root);
    save_all(root / kFolder, [&] { recorder.promise(); });
    log_ = recorder.log();
    left_ = tree_of(root);
  }

  /// New folders, a second save, the same step again, the oldest retired, another run.
  void save_all(const fs::path& folder, const std::function<void()>& promise) {
    const auto save_state = [&](const RunIdentity& run, std::int64_t step, std::int64_t values) {
      const auto state = test_state(values, /*large=*/1);
      on_ranks(2, [&](comm::Communicator& world) {
        Snapshot snapshot = snapshot_of(state, step, world.rank(), 2);
        snapshot.run = run;
        const auto path = save_checkpoint(world, folder, snapshot, /*keep=*/2);
        ASSERT_TRUE(path.ok()) << path.status().to_string();
      });
      promise();
      manifests_.push_back(content(checkpoint_path(folder, step) + "/manifest.json"));
    };
    const RunIdentity first = begin_run(folder, false).take_or_throw();
    save_state(first, 1, 1);
    save_state(first, 2, 2);
    save_state(first, 2, 102);
    save_state(first, 3, 3);
    const RunIdentity second = begin_run(folder, /*overwrite=*/true).take_or_throw();
    save_state(second, 2, 202);
    save_state(second, 4, 204);
  }

  /// What is wrong with a disk on which the saves up to number `promised` were reported as done.
  /// Empty: nothing. Known disks are looked up.
  const std::string& wrong_with(const Tree& disk, std::size_t promised) {
    const auto [place, is_new] = verdicts_.try_emplace({promised, disk});
    if (is_new) {
      const fs::path folder = folder_ / "after";
      fs::create_directory(folder);
      make_tree(folder, disk);
      place->second = judge(folder / kFolder, promised);
      fs::remove_all(folder);
    }
    return place->second;
  }

  std::string judge(const fs::path& folder, std::size_t promised) const {
    const auto newest = newest_checkpoint(folder);
    const bool none = newest.status().code() == Code::kNotFound;
    if (!newest.ok() && !(none && promised == 0)) return newest.status().to_string();
    if (newest.ok() && number_of(*newest) < promised) return *newest + " is not the newest saved";
    const fs::path latest = folder / kLatest;
    const bool has_latest = fs::is_symlink(latest);
    if (promised > 0 && !has_latest) return "no link to the newest";
    if (has_latest && number_of(latest) < promised) return "the link leads to an older one";
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      const bool named =
          entry.path().filename().string().starts_with("step-") || entry.is_symlink();
      if (!named || (!entry.is_symlink() && !fs::exists(entry.path() / "manifest.json"))) continue;
      const auto manifest = check_checkpoint(entry.path(), /*deep=*/true);
      if (!manifest.ok()) return manifest.status().to_string();
    }
    return "";
  }

  /// Which save wrote it, from 1; 0: none did.
  std::size_t number_of(const fs::path& checkpoint) const {
    const auto found =
        std::find(manifests_.begin(), manifests_.end(), content(checkpoint / "manifest.json"));
    return found == manifests_.end() ? 0 : static_cast<std::size_t>(found - manifests_.begin()) + 1;
  }

  /// What happened last to the node that is synced.
  std::string place_of_sync(std::size_t sync) const {
    const int node = log_.changes[sync].node;
    for (std::size_t i = sync; i-- > 0;) {
      const DiskChange& c = log_.changes[i];
      if (c.kind == Kind::kSync || c.node != node) continue;
      if (c.kind == Kind::kWrite) return "file";
      if (c.kind == Kind::kExchange) return "replaced";
      if (c.kind == Kind::kLink) {
        return log_.nodes.folders.contains(c.target) ? "folder created" : "files created";
      }
      if (c.name.starts_with(".latest")) return "link";
      return c.name.starts_with("step-") ? "retired" : "published";
    }
    return "nothing";
  }

  bool loses_something(const std::set<std::size_t>& without) {
    for (std::size_t count = *without.begin() + 1; count <= log_.changes.size(); ++count) {
      for (const Tree& disk : log_.after_power_cut(count, without)) {
        if (!wrong_with(disk, promises_before(count)).empty()) return true;
      }
    }
    return false;
  }

  std::size_t promises_before(std::size_t count) const {
    return static_cast<std::size_t>(
        std::count_if(log_.changes.begin(), log_.changes.begin() + static_cast<long>(count),
                      [](const DiskChange& c) { return c.kind == Kind::kPromise; }));
  }

  DiskLog log_;
  Tree left_;
  std::vector<std::string> manifests_;
  std::map<std::pair<std::size_t, Tree>, std::string> verdicts_;
};

TEST_F(PowerCut, TheLogHasEveryChange) {
  Indices all(log_.changes.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  EXPECT_EQ(log_.apply(all).tree(), left_);
  EXPECT_EQ(manifests_.size(), 6u);
  EXPECT_EQ(std::count_if(log_.changes.begin(), log_.changes.end(),
                          [](const DiskChange& c) { return c.kind == Kind::kExchange; }),
            2);
}

TEST_F(PowerCut, AtAnyMomentLeavesTheNewestCompleteCheckpoint) {
  for (std::size_t count = 0; count <= log_.changes.size(); ++count) {
    for (const Tree& disk : log_.after_power_cut(count)) {
      ASSERT_EQ(wrong_with(disk, promises_before(count)), "") << "after change " << count;
    }
  }
  EXPECT_GT(verdicts_.size(), 150u);
}

// Whoever makes folders for a run need not sync them.
TEST_F(PowerCut, FoldersThatWereThereAlreadyLast) {
  const fs::path root = folder_ / "made";
  fs::create_directories(root);
  DiskRecorder recorder(root);
  ASSERT_EQ(::mkdir((root / "runs").c_str(), 0777), 0);
  ASSERT_EQ(::mkdir((root / "runs/mine").c_str(), 0777), 0);
  ASSERT_TRUE(create_directories((root / "runs/mine").string()).ok());
  recorder.promise();
  log_ = recorder.log();
  for (const Tree& disk : log_.after_power_cut(log_.changes.size())) {
    EXPECT_TRUE(disk.contains("runs/mine")) << disk.size();
  }
}

// The proof that the test above would see it. A sync can be spared in one save by another one: the
// link may lead to the same step as before, and the folder is synced again when a checkpoint is
// retired. Then all syncs of that place in the code go.
TEST_F(PowerCut, WithoutAnySyncSomethingIsLost) {
  std::map<std::string, std::set<std::size_t>> places;
  for (std::size_t i = 0; i < log_.changes.size(); ++i) {
    if (log_.changes[i].kind == Kind::kSync) places[place_of_sync(i)].insert(i);
  }
  EXPECT_EQ(places.size(), 7u);
  int spared = 0;
  for (const auto& [place, syncs] : places) {
    for (const std::size_t sync : syncs) {
      if (!loses_something({sync})) {
        ++spared;
        EXPECT_TRUE(loses_something(syncs)) << place << ", sync " << sync;
      }
      if (kSanitized) break;  // one of each place
    }
  }
  EXPECT_LE(spared, 3);
}

}  // namespace
}  // namespace stormo::checkpoint
