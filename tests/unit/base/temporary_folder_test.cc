#include <stormo/base/temporary_folder.h>

#include <gtest/gtest.h>

#include <fstream>
#include <utility>

namespace stormo {
namespace {

namespace fs = std::filesystem;

TEST(TemporaryFolder, GoesWithItsLastOwnerAndAllThatIsInIt) {
  const TemporaryFolder other = TemporaryFolder::create("base-test").take_or_throw();
  fs::path path;
  {
    TemporaryFolder first = TemporaryFolder::create("base-test").take_or_throw();
    path = first.path();
    EXPECT_NE(path, other.path());
    EXPECT_TRUE(path.filename().string().starts_with("base-test-")) << path;
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
    fs::create_directories(path / "a" / "b");
    std::ofstream(path / "a" / "file") << "text";
    {
      const TemporaryFolder second = std::move(first);
      EXPECT_TRUE(fs::exists(path / "a" / "file"));
    }
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_TRUE(fs::exists(other.path()));
}

TEST(TemporaryFolder, SaysWhereItCouldNotBeMade) {
  const Status s = TemporaryFolder::create("no/such/folder").status();
  EXPECT_EQ(s.code(), Code::kIo);
  EXPECT_NE(s.message().find(fs::temp_directory_path().string()), std::string::npos);
}

}  // namespace
}  // namespace stormo
