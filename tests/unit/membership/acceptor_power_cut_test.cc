// Power cuts at every moment of what an acceptor writes: afterwards it has all that it has
// promised. The disk is modelled by its log (disk_log.h).
#include <gtest/gtest.h>

#include <filesystem>

#include <stormo/base/temporary_folder.h>
#include <stormo/membership/acceptor/acceptor_file.h>

#include "tests/unit/checkpoint/disk_log.h"

namespace stormo::membership {
namespace {

using protocol::AcceptorState;
using stormo::test::DiskChange;
using stormo::test::DiskLog;
using stormo::test::DiskRecorder;
namespace fs = std::filesystem;

constexpr int kSaves = 3;

AcceptorState state(std::uint64_t n) {
  return {.promised = {.counter = n + 1, .proposer = 1},
          .accepted = {.counter = n, .proposer = 1},
          .value = {.version = n,
                    .origin = {.counter = n, .proposer = 1},
                    .bytes = std::string(static_cast<std::size_t>(100 * n), 'x')}};
}

class AcceptorPowerCut : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path disk = root_.path() / "disk";
    fs::create_directory(disk);
    DiskRecorder recorder(disk);
    AcceptorFile file = AcceptorFile::create((disk / "acceptor").string(), kName).take_or_throw();
    recorder.promise();
    for (int i = 1; i <= kSaves; ++i) {
      ASSERT_TRUE(file.save(state(static_cast<std::uint64_t>(i))).ok());
      recorder.promise();
    }
    log_ = recorder.log();
  }

  /// What is wrong with a disk on which the acceptor has reported `promises` writes. Empty:
  /// nothing.
  std::string wrong_with(const std::map<std::string, std::string>& tree, std::uint64_t promises) {
    const fs::path disk = root_.path() / "after";
    fs::create_directory(disk);
    stormo::test::make_tree(disk, tree);
    const auto file = AcceptorFile::open((disk / "acceptor").string(), kName);
    std::string wrong;
    if (!file.ok()) {
      if (promises > 0) wrong = file.status().to_string();
    } else if (const std::uint64_t has = file.value().state().value.version; has + 1 < promises) {
      wrong = "it has state " + std::to_string(has) + " after " + std::to_string(promises);
    } else if (has > 0 && file.value().state() != state(has)) {
      wrong = "it is a state that never was";
    }
    fs::remove_all(disk);
    return wrong;
  }

  /// The first complaint about any state of the disk, if these syncs are left out.
  std::string find_loss(const std::set<std::size_t>& without) {
    std::uint64_t promises = 0;
    for (std::size_t count = 0; count <= log_.changes.size(); ++count) {
      if (count > 0 && log_.changes[count - 1].kind == DiskChange::Kind::kPromise) ++promises;
      for (const auto& tree : log_.after_power_cut(count, without)) {
        ++states_;
        if (std::string wrong = wrong_with(tree, promises); !wrong.empty()) {
          return wrong + ", after change " + std::to_string(count);
        }
      }
    }
    return {};
  }

  static inline const AcceptorName kName{.job = "digits", .index = 0, .count = 3};
  TemporaryFolder root_ = TemporaryFolder::create("stormo-acceptor-").take_or_throw();
  DiskLog log_;
  int states_ = 0;
};

TEST_F(AcceptorPowerCut, AtAnyMomentLosesNoPromise) {
  EXPECT_EQ(find_loss({}), "");
  EXPECT_GT(states_, 50);
}

/// The proof that the test above would see it.
TEST_F(AcceptorPowerCut, WithoutAnySyncSomethingIsLost) {
  int syncs = 0;
  for (std::size_t i = 0; i < log_.changes.size(); ++i) {
    if (log_.changes[i].kind != DiskChange::Kind::kSync) continue;
    ++syncs;
    EXPECT_NE(find_loss({i}), "") << "sync " << i;
  }
  // the folder above; then the file and its folder, each time
  EXPECT_EQ(syncs, 1 + 2 * (1 + kSaves));
}

}  // namespace
}  // namespace stormo::membership
