#include <gmock/gmock.h>

#include <stormo/checkpoint/dcp.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/pytorch/dcp_names.h>
#include <stormo/checkpoint/pytorch/pickle_writer.h>
#include <stormo/checkpoint/pytorch/torch_archive.h>

#include "saved.h"

namespace stormo::checkpoint {
namespace {

using namespace test;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

/// A folder of a tensor [2, 3], a row by each of two ranks, as a list of entries to change.
class DcpFolder : public FolderTest {
 protected:
  void SetUp() override {
    for (int row = 0; row < 2; ++row) {
      FileWriter file;
      const std::string name = "__" + std::to_string(row) + "_0.distcp";
      throw_if_error(file.create(folder_ / name));
      const std::array<float, 3> values = {3.0F * static_cast<float>(row), 1, 2};
      const std::uint64_t bytes = write_tensor_archive(file, "F32", {1, 3}, [&](ZipWriter& zip) {
                                    return zip.write(values.data(), sizeof values);
                                  }).take_or_throw();
      (void)file.finish().take_or_throw();
      weight_.chunks.push_back({{{row, 0}, {1, 3}}, {name, 0, bytes}});
    }
  }

  void write(const std::vector<DcpEntry>& entries) {
    overwrite(folder_ / kDcpMetadata, format_dcp_metadata(entries));
  }

  /// Why the folder cannot be imported; nothing is left of the attempt.
  std::string refusal() {
    const auto imported = import_dcp(folder_, folder_ / "new");
    EXPECT_FALSE(imported.ok());
    EXPECT_FALSE(fs::exists(folder_ / "new"));
    return imported.status().message();
  }
  std::string refusal(const std::vector<DcpEntry>& entries) {
    write(entries);
    return refusal();
  }

  DcpEntry weight_{.name = "model.w", .path = {"model", "w"}, .dtype = "F32", .shape = {2, 3}};
};

TEST_F(DcpFolder, PartsOfTwoRanksBecomeOneTensor) {
  write({weight_});
  const auto imported = import_dcp(folder_, folder_ / "new");
  ASSERT_TRUE(imported.ok()) << imported.status().to_string();
  auto reader = CheckpointReader::open(imported->path).take_or_throw();
  std::array<float, 6> values{};
  ASSERT_TRUE(reader.read("w", 0, 6, values.data()).ok());
  EXPECT_THAT(values, ElementsAre(0, 1, 2, 3, 1, 2));
  EXPECT_EQ(reader.manifest().step, 0);
  EXPECT_THAT(import_dcp(folder_, folder_ / "new").status().message(), HasSubstr("new folder"));
}

TEST_F(DcpFolder, HolesAndOverlapsAreFound) {
  DcpEntry hole = weight_;
  hole.chunks.pop_back();
  EXPECT_THAT(refusal({hole}), HasSubstr("'model.w': its 1 parts leave out some"));
  DcpEntry twice = weight_;
  twice.chunks[1].box = {{0, 1}, {1, 3}};
  EXPECT_THAT(refusal({twice}), HasSubstr("a part lies outside"));
  twice.chunks[1].box = {{0, 1}, {2, 2}};
  EXPECT_THAT(refusal({twice}), HasSubstr("or hold some twice"));
  DcpEntry empty = weight_;  // of a rank that had nothing
  empty.chunks.push_back({{{2, 0}, {0, 3}}, {"none", 0, 0}});
  write({empty});
  EXPECT_TRUE(import_dcp(folder_, folder_ / "new").ok());
}

TEST_F(DcpFolder, FilesThatAreMissingOrDamagedAreNamed) {
  EXPECT_THAT(refusal(), HasSubstr("no file .metadata"));
  write({weight_});
  std::string bytes = content(folder_ / "__1_0.distcp");
  overwrite(folder_ / "__1_0.distcp", bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(refusal(), HasSubstr("__1_0.distcp has"));
  bytes[bytes.find("data/0") + 7] ^= 1;
  overwrite(folder_ / "__1_0.distcp", bytes);
  EXPECT_THAT(refusal(), HasSubstr("'model.w' in __1_0.distcp: its checksum"));
  overwrite(folder_ / "__1_0.distcp", bytes.replace(bytes.find("little"), 6, "big\x1b[1"));
  EXPECT_THAT(refusal(), HasSubstr("big-endian machine"));
  fs::remove(folder_ / "__1_0.distcp");
  EXPECT_THAT(refusal(), HasSubstr("__1_0.distcp is missing: copy all files"));
  overwrite(folder_ / kDcpMetadata, "\x80\x02]q\x01(i");
  EXPECT_THAT(refusal(), HasSubstr(".metadata: a pickle that"));
  fs::resize_file(folder_ / kDcpMetadata, kMaxDcpMetadataBytes + 1);
  EXPECT_THAT(refusal(), HasSubstr(".metadata"));
}

TEST_F(DcpFolder, WhatAPartReallyIsCounts) {
  DcpEntry other = weight_;
  other.dtype = "I32";
  EXPECT_THAT(refusal({other}), HasSubstr("a part of it is F32 [1, 3], not I32 [1, 3]"));
  other = weight_;
  other.shape = {2, 4};
  other.chunks[0].box.sizes = other.chunks[1].box.sizes = {1, 4};
  EXPECT_THAT(refusal({other}), HasSubstr("[1, 3], not F32 [1, 4]"));
}

TEST_F(DcpFolder, NoFileOutsideOfTheFolderIsRead) {
  for (const char* file : {"../secret", "/etc/passwd", "..", ""}) {
    DcpEntry other = weight_;
    other.chunks[0].place.file = file;
    EXPECT_THAT(refusal({other}), HasSubstr("is none of the folder"));
  }
}

TEST_F(DcpFolder, ATerminalIsSafeFromItsNames) {
  DcpEntry other = weight_;
  other.name = "model.\x1b[2J";
  other.chunks[0].place.file = "\x1b[2J";
  EXPECT_THAT(refusal({other}), testing::Not(HasSubstr("\x1b")));
}

/// A shape without values, for tests of names.
DcpEntry named(std::vector<std::string> path, bool tensor = true) {
  DcpEntry e;
  for (const std::string& key : path) e.name += (e.name.empty() ? "" : ".") + key;
  e.path = std::move(path);
  if (tensor) e.dtype = "F32";
  e.shape = {2};
  return e;
}

std::vector<std::string> names_in(const DcpNames& names) {
  std::vector<std::string> out;
  for (const auto& [name, entry] : names.model) out.push_back(name);
  for (const OptimizerTensor& t : names.optimizer) out.push_back(t.name);
  return out;
}

/// Of the file that is no tensor: a list of numbers up to `count`.
auto numbers_to(int count) {
  return [count](const DcpEntry& e) -> Result<std::string> {
    PickleWriter p;
    p.empty_list();
    p.mark();
    for (int i = 0; i < count && e.name.ends_with("params"); ++i) p.integer(i);
    p.append_all();
    return std::move(p).finish();
  };
}

DcpEntry state_of(const std::string& parameter, const std::string& slot) {
  return named({"optim", "state", parameter, slot});
}

const DcpEntry kParams = named({"optim", "param_groups", "0", "params"}, false);

TEST(DcpNamesTest, TheModelIsFoundWhereverItWasSaved) {
  const auto found = [](const std::vector<DcpEntry>& entries) {
    return names_in(names_of_dcp(entries, numbers_to(0)).take_or_throw());
  };
  EXPECT_THAT(found({named({"model", "a.w"}), named({"rng"})}), ElementsAre("a.w"));
  EXPECT_THAT(found({named({"app", "model", "a.w"}), named({"app", "rng", "cpu"})}),
              ElementsAre("a.w"));
  EXPECT_THAT(found({named({"net", "module.a.w"}), named({"net", "module.b"})}),
              ElementsAre("a.w", "b"));
  EXPECT_THAT(found({named({"model.embed"}), named({"head"}), named({"train", "rng"})}),
              ElementsAre("head", "model.embed"));
  const auto unclear = names_of_dcp({named({"a", "w"}), named({"b", "w"})}, numbers_to(0));
  EXPECT_THAT(unclear.status().message(), HasSubstr("under 'a', 'b'"));
  const auto nothing = names_of_dcp({named({"step"}, false)}, numbers_to(0));
  EXPECT_THAT(nothing.status().message(), HasSubstr("no tensors of a model"));
}

TEST(DcpNamesTest, NumbersOfParametersFollowTheModel) {
  const std::vector<DcpEntry> entries = {
      named({"model", "z"}),    named({"model", "running_mean"}), named({"model", "a"}),  kParams,
      state_of("0", "exp_avg"), state_of("1", "exp_avg"),         named({"epoch"}, false)};
  const auto names = names_of_dcp(entries, numbers_to(2)).take_or_throw();
  EXPECT_THAT(names_in(names),
              ElementsAre("a", "running_mean", "z", "optimizer.exp_avg.z", "optimizer.exp_avg.a"));
  EXPECT_THAT(names.left_out, ElementsAre("epoch"));
  const auto frozen = names_of_dcp(entries, numbers_to(1));
  EXPECT_THAT(frozen.status().message(), HasSubstr("get_state_dict"));
}

// RMSprop counts updates in PyTorch and not here, Adam in both.
TEST(DcpNamesTest, UpdatesAreCountedWhereTheRuleNeedsThem) {
  const auto found = [](const char* slot) {
    return names_in(
        names_of_dcp({named({"model", "w"}), kParams, state_of("w", slot), state_of("w", "step")},
                     numbers_to(1))
            .take_or_throw());
  };
  EXPECT_THAT(found("square_avg"), ElementsAre("w", "optimizer.square_avg.w"));
  EXPECT_THAT(found("exp_avg_sq"), ElementsAre("w", "optimizer.exp_avg_sq.w", "optimizer.step.w"));
}

TEST(DcpNamesTest, StateOfAnotherModelIsRefused) {
  const auto refusal = [](const DcpEntry& state) {
    return names_of_dcp({named({"model", "w"}), kParams, state}, numbers_to(1)).status().message();
  };
  EXPECT_THAT(refusal(state_of("v", "exp_avg")), HasSubstr("the model does not have"));
  DcpEntry other = state_of("w", "exp_avg");
  other.shape = {3};
  EXPECT_THAT(refusal(other), HasSubstr("is [3], but 'w' is [2]"));
  EXPECT_THAT(refusal(state_of("7", "exp_avg")), HasSubstr("no group has"));
  EXPECT_THAT(names_of_dcp({named({"model", "w"}), kParams,
                            named({"other", "param_groups", "0", "params"}, false)},
                           numbers_to(1))
                  .status()
                  .message(),
              HasSubstr("2 optimizers"));
}

TEST_F(DcpFolder, ExportAndImportAreEqual) {
  const auto state = test_state(1, 1500);  // more than a portion of reading
  const std::string path = save(folder_ / "a", 1, 9, 1500).take_or_throw();
  const Status exported = export_dcp(path, folder_ / "dcp", false);
  ASSERT_TRUE(exported.ok()) << exported.to_string();
  EXPECT_THAT(export_dcp(path, folder_ / "dcp/", false).message(), HasSubstr("exists already"));
  const auto imported = import_dcp(folder_ / "dcp", folder_ / "b");
  ASSERT_TRUE(imported.ok()) << imported.status().to_string();
  std::vector<TestTensor> model;
  for (const TestTensor& t : state) {
    if (!t.name.starts_with("optimizer.")) model.push_back(t);
  }
  expect_holds(imported->path, model);
}

TEST_F(DcpFolder, AFailedExportLeavesNothing) {
  const fs::path path = save(folder_ / "a", 1).take_or_throw();
  EXPECT_THAT(export_dcp(path, folder_ / "dcp", true).message(),
              HasSubstr("does not say which optimizer"));
  std::string damaged = content(path / "shard-00000.safetensors");
  damaged.back() ^= 1;
  overwrite(path / "shard-00000.safetensors", damaged);
  EXPECT_EQ(export_dcp(path, folder_ / "dcp", false).code(), Code::kCorrupt);
  EXPECT_THAT(test::names_in(folder_),
              testing::UnorderedElementsAre("a", "__0_0.distcp", "__1_0.distcp"));
}

TEST(ZipTest, TheChecksumIsThatOfZip) { EXPECT_EQ(crc32_of("123456789", 9), 0xcbf43926U); }

std::string little(std::uint64_t value, std::size_t width) {
  std::string out;
  for (std::size_t i = 0; i < width; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

Result<std::vector<ZipEntry>> entries_of(const std::string& zip) {
  return read_zip_entries(zip.size(), [&](std::uint64_t at, void* data, std::size_t bytes) {
    std::memcpy(data, zip.data() + at, bytes);
    return ok_status();
  });
}

// As PyTorch writes archives of more than 4 GiB: all sizes stand in fields of 64 bits.
TEST(ZipTest, LargeSizesAreRead) {
  const std::string local = little(0x04034b50, 4) + std::string(22, '\0') + little(1, 2) +
                            little(3, 2) + "aXYZ" + "content";
  const std::string in64 = little(0xffffffff, 4);
  const auto central = [&](std::uint64_t size) {
    return little(0x02014b50, 4) + std::string(16, '\0') + in64 + in64 + little(1, 2) +
           little(28, 2) + std::string(10, '\0') + in64 + "a" + little(1, 2) + little(24, 2) +
           little(size, 8) + little(size, 8) + little(0, 8);
  };
  const auto archive = [&](std::uint64_t size) {
    const std::string directory = central(size);
    const std::uint64_t end = local.size() + directory.size();
    return local + directory + little(0x06064b50, 4) + std::string(36, '\0') +
           little(directory.size(), 8) + little(local.size(), 8) + little(0x07064b50, 4) +
           little(0, 4) + little(end, 8) + little(1, 4) + little(0x06054b50, 4) +
           std::string(8, '\xff') + in64 + in64 + little(0, 2);
  };
  const auto entries = entries_of(archive(7));
  ASSERT_TRUE(entries.ok()) << entries.status().to_string();
  ASSERT_EQ(entries->size(), 1U);
  EXPECT_EQ(entries->front().name, "a");
  EXPECT_EQ(archive(7).substr(entries->front().begin, entries->front().bytes), "content");
  EXPECT_THAT(entries_of(archive(8)).status().message(), HasSubstr("outside of it"));
  EXPECT_THAT(entries_of(archive(std::uint64_t{1} << 63)).status().message(),
              HasSubstr("outside of it"));
  EXPECT_THAT(entries_of("PK").status().message(), HasSubstr("too short"));
}

}  // namespace
}  // namespace stormo::checkpoint
