#include <stormo/base/replace_file.h>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <stormo/base/temporary_folder.h>

namespace stormo {
namespace {

namespace fs = std::filesystem;

class ReplaceFile : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() / name; }
  std::string text(const std::string& name) const {
    std::ostringstream out;
    out << std::ifstream(path(name)).rdbuf();
    return out.str();
  }
  Status put(const std::string& name, const std::string& what) const {
    return replace_file(path(name), [&](std::ostream& out) { out << what; });
  }

 private:
  TemporaryFolder folder_ = TemporaryFolder::create("replace-file").take_or_throw();
};

TEST_F(ReplaceFile, TheOldFileStaysUntilAllOfTheNewOneIsWritten) {
  throw_if_error(put("a", "old"));
  const Status status = replace_file(path("a"), [&](std::ostream& out) {
    out << "new";
    out.flush();
    EXPECT_EQ(text("a"), "old");
  });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(text("a"), "new");
  EXPECT_FALSE(fs::exists(path("a.new")));
}

TEST_F(ReplaceFile, AFailureLeavesTheOldFileAlone) {
  throw_if_error(put("a", "old"));
  const Status status =
      replace_file(path("a"), [](std::ostream& out) { out.setstate(std::ios::badbit); });
  EXPECT_EQ(status.code(), Code::kIo);
  EXPECT_EQ(text("a"), "old");
  EXPECT_FALSE(fs::exists(path("a.new")));
  EXPECT_EQ(put("none/a", "x").message(), "cannot write '" + path("none/a") + "'");
  fs::create_directory(path("folder"));
  EXPECT_EQ(put("folder", "x").code(), Code::kIo);
}

TEST_F(ReplaceFile, LinksAndPipesStay) {
  throw_if_error(put("a", "old"));
  fs::create_symlink(path("a"), path("link"));
  EXPECT_TRUE(put("link", "new").ok());
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(text("a"), "new");

  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::fstream reader(path("pipe"));  // for both, so nobody waits to open it
  EXPECT_TRUE(put("pipe", "through\n").ok());
  std::string line;
  std::getline(reader, line);
  EXPECT_EQ(line, "through");
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
}

}  // namespace
}  // namespace stormo
