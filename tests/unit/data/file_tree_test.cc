#include <stormo/data/file_tree.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include <sys/stat.h>

#include "scratch.h"

namespace stormo::data {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FileTreeTest : public ::testing::Test {
 protected:
  Status list(OnError on_error = OnError::kFail) {
    files_.clear();
    count_ = FileCount();
    FileTree tree(scratch_.path("d"),
                  {.endings = {".txt"}, .ignored_folders = {"build"}, .on_error = on_error},
                  count_);
    const Status status = tree.add_files(scratch_.path("d"), files_);
    for (std::string& file : files_) file = fs::path(file).lexically_relative(scratch_.path("d"));
    std::ranges::sort(files_);
    return status;
  }
  void link(const std::string& to, const std::string& name) {
    fs::create_directories(fs::path(scratch_.path(name)).parent_path());
    fs::create_symlink(to, scratch_.path(name));
  }
  Scratch scratch_;
  std::vector<std::string> files_;
  FileCount count_;
};

TEST_F(FileTreeTest, TakesWhatIsWantedAndCountsTheRest) {
  for (const char* name : {"d/a.txt", "d/B.TXT", "d/c/d.Txt", "d/e.webp", "d/c/f.WEBP", "d/.g.txt",
                           "d/.git/x.txt", "d/README", "d/build/h.txt", "d/c/build/i.txt"}) {
    scratch_.write(name, "x");
  }
  ASSERT_TRUE(list().ok());
  EXPECT_THAT(files_, ElementsAre("B.TXT", "a.txt", "c/d.Txt"));
  std::vector<std::string> reasons;
  for (const LeftOut& l : count_.left_out()) {
    reasons.push_back(l.why + "=" + std::to_string(l.count));
  }
  std::ranges::sort(reasons);
  EXPECT_THAT(reasons, ElementsAre("a folder named build=2", "ending .webp=2", "hidden=2",
                                   "without an ending=1"));
  EXPECT_THAT(count_.summary(), HasSubstr("2 ending .webp (c/f.WEBP)"));
}

TEST_F(FileTreeTest, FollowsLinksAndEndsCycles) {
  scratch_.write("store/blob", "x");
  scratch_.write("store/more/m.txt", "x");
  scratch_.write("d/a.txt", "x");
  link("../store/blob", "d/linked.txt");  // as in the cache of Hugging Face
  link("../store/more", "d/folder");
  link("../store/more", "d/again");
  link(".", "d/self");
  link("..", "d/deep/up");
  link("../d/deep", "store/back");  // reached by d/deep/up/store
  ASSERT_TRUE(list().ok());
  EXPECT_THAT(files_, ElementsAre("a.txt", "again/m.txt", "folder/m.txt", "linked.txt"));
  EXPECT_THAT(count_.summary(), HasSubstr("2 a link to a folder that it lies in"));
}

TEST_F(FileTreeTest, RefusesLinksThatMultiply) {
  for (const char from : {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}) {
    for (const char to : {'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}) {
      if (from != to) link(std::string("../") + to, std::string("d/") + from + "/" + to);
    }
  }
  const Status status = list();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("by more than 100 paths"));
}

TEST_F(FileTreeTest, HasOneRuleForWhatCannotBeRead) {
  scratch_.write("d/a.txt", "x");
  for (const auto& [to, name] :
       {std::pair{"/nowhere", "d/folder"}, {"/nowhere.txt", "d/b.txt"}, {"loop", "d/loop"}}) {
    link(to, name);
    const Status status = list();
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr(name), HasSubstr("a link to"), HasSubstr("data.on_error")))
        << name;
    EXPECT_TRUE(list(OnError::kSkip).ok());
    EXPECT_THAT(files_, ElementsAre("a.txt"));
    EXPECT_THAT(count_.skipped(), ElementsAre(HasSubstr(name)));
    EXPECT_THAT(count_.summary(), HasSubstr("1 cannot be read"));
    fs::remove(scratch_.path(name));
  }
  ASSERT_EQ(::mkfifo(scratch_.path("d/pipe.txt").c_str(), 0600), 0);
  EXPECT_THAT(list().message(), HasSubstr("pipe.txt: neither a file nor a folder"));
  fs::remove(scratch_.path("d/pipe.txt"));
  link("/nowhere.webp", "d/c.webp");  // whatever it was, it is not wanted
  EXPECT_TRUE(list().ok());
  EXPECT_THAT(count_.summary(), HasSubstr("1 ending .webp"));
}

TEST_F(FileTreeTest, ListsFoldersAndWhatIsBesideThem) {
  for (const char* name : {"d/b/x.txt", "d/a/x.txt", "d/x.txt", "d/.c/x.txt"}) {
    scratch_.write(name, "x");
  }
  link("..", "d/a/up");
  link(".", "d/self");
  const auto folders = [&](OnError on_error) {
    count_ = FileCount();
    FileTree tree(scratch_.path("d"),
                  {.endings = {".txt"}, .ignored_folders = {}, .on_error = on_error}, count_);
    return tree.folders();
  };
  EXPECT_THAT(*folders(OnError::kFail), ElementsAre("a", "b"));
  EXPECT_THAT(count_.summary(),
              AllOf(HasSubstr("1 hidden (.c)"), HasSubstr("1 beside the folders (x.txt)"),
                    HasSubstr("lies in (self)")));
  link("/nowhere", "d/third");
  EXPECT_THAT(folders(OnError::kFail).status().message(),
              HasSubstr("d/third (a link to /nowhere)"));
  EXPECT_THAT(*folders(OnError::kSkip), ElementsAre("a", "b"));
  EXPECT_THAT(count_.skipped(), ElementsAre(HasSubstr("d/third")));
}

}  // namespace
}  // namespace stormo::data
