#include <stormo/data/image/image_folder.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "image_bytes.h"
#include "scratch.h"

namespace stormo::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// An image of one grey.
std::string flat_png(std::uint8_t value) {
  return png_bytes(
      {.height = 4, .width = 4, .channels = 1, .pixels = std::vector<std::uint8_t>(16, value)});
}

class ImageFolderTest : public ::testing::Test {
 protected:
  ImageFolderTest() {
    scratch_.write("dog/b.png", flat_png(200));
    scratch_.write("dog/a.PNG", flat_png(100));
    scratch_.write("cat/deep/c.jpeg", jpeg_bytes(slope(40, 60, 3)));
    scratch_.write("cat/.hidden.png", "x");
    scratch_.write("cat/notes.txt", "x");
    scratch_.write(".git/x.png", "x");
  }
  Result<std::shared_ptr<const ImageFolder>> open(OnError on_error = OnError::kFail,
                                                  int threads = 1) {
    ImageFolderOptions options{.channels = 1, .height = 4, .width = 4, .on_error = on_error};
    options.threads = threads;
    return ImageFolder::create(scratch_.path(), options);
  }
  Scratch scratch_;
};

TEST_F(ImageFolderTest, ListsClassesAndSamplesInTheOrderOfTheirNames) {
  const auto folder = open();
  ASSERT_TRUE(folder.ok()) << folder.status().to_string();
  EXPECT_THAT((*folder)->classes(), ElementsAre("cat", "dog"));
  ASSERT_EQ((*folder)->size(), 3);
  const Batch batch = (*folder)->get(std::vector<std::int64_t>{2, 1, 0}, 0);
  EXPECT_EQ(batch.input.sizes(), at::IntArrayRef({3, 1, 4, 4}));
  EXPECT_TRUE(batch.target.equal(torch::tensor({1, 1, 0}, torch::kInt64)));
  EXPECT_NEAR(batch.input[0].min().item<double>(), (200.0 / 255 - 0.5) / 0.5, 1e-5);
  EXPECT_NEAR(batch.input[1].max().item<double>(), (100.0 / 255 - 0.5) / 0.5, 1e-5);
  EXPECT_GT(batch.input[2].max().item<double>(), batch.input[2].min().item<double>() + 0.5);
  EXPECT_EQ((*folder)->get({}, 0).input.sizes(), at::IntArrayRef({0, 1, 4, 4}));
  EXPECT_EQ((*folder)->files().taken(), 3);
  EXPECT_THAT((*folder)->files().summary(),
              AllOf(HasSubstr("2 hidden (.git)"), HasSubstr("1 ending .txt (cat/notes.txt)")));
}

TEST_F(ImageFolderTest, NamesABrokenImage) {
  const std::string whole = jpeg_bytes(slope(40, 60, 3));
  const std::string path = scratch_.write("dog/c.jpg", whole.substr(0, whole.size() / 2));
  const auto folder = open();
  ASSERT_TRUE(folder.ok());  // its first bytes are right
  (void)(*folder)->get(std::vector<std::int64_t>{0, 1, 2}, 0);
  try {
    (void)(*folder)->get(std::vector<std::int64_t>{3}, 0);
    FAIL() << "a broken image was decoded";
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code(), Code::kCorrupt);
    EXPECT_THAT(e.status().message(), AllOf(HasSubstr(path), HasSubstr("not a whole JPEG")));
  }
  scratch_.write("dog/c.jpg", "<html>");
  EXPECT_EQ(open().status().code(), Code::kCorrupt);
  EXPECT_THAT(open().status().message(), AllOf(HasSubstr(path), HasSubstr("data.on_error")));
}

TEST_F(ImageFolderTest, LeavesBrokenImagesOutBeforeTheyAreCounted) {
  const std::string whole = jpeg_bytes(slope(40, 60, 3));
  scratch_.write("cat/a.jpg", whole.substr(0, whole.size() / 2));
  scratch_.write("dog/aa.png", "");
  for (int i = 0; i < 20; ++i) scratch_.write("eel/" + std::to_string(i) + ".jpg", whole);
  scratch_.write("eel/17.jpg", "<html>");
  const auto one = open(OnError::kSkip, 1);
  ASSERT_TRUE(one.ok()) << one.status().to_string();
  EXPECT_EQ((*one)->size(), 3 + 19);
  EXPECT_THAT((*one)->files().skipped(),
              ElementsAre(HasSubstr("cat/a.jpg: not a whole JPEG"), HasSubstr("dog/aa.png"),
                          HasSubstr("eel/17.jpg")));
  std::vector<std::int64_t> all(22);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  const Batch batch = (*one)->get(all, 0);
  for (const int threads : {2, 7}) {  // other ranks, other machines
    const auto other = open(OnError::kSkip, threads);
    EXPECT_EQ((*other)->files().skipped(), (*one)->files().skipped());
    EXPECT_TRUE((*other)->get(all, 0).input.equal(batch.input));
    EXPECT_TRUE((*other)->get(all, 0).target.equal(batch.target));
  }
}

TEST_F(ImageFolderTest, FollowsLinksToFilesFoldersAndClasses) {
  const Scratch store;
  store.write("x.png", flat_png(10));
  store.write("more/y.png", flat_png(20));
  namespace fs = std::filesystem;
  fs::create_symlink(store.path("x.png"), scratch_.path("dog/x.png"));
  fs::create_symlink(store.path("more"), scratch_.path("dog/more"));
  fs::create_symlink(store.path("more"), scratch_.path("elk"));
  fs::create_symlink("../dog", scratch_.path("dog/again"));
  const auto folder = open();
  ASSERT_TRUE(folder.ok()) << folder.status().to_string();
  EXPECT_THAT((*folder)->classes(), ElementsAre("cat", "dog", "elk"));
  EXPECT_EQ((*folder)->size(), 3 + 2 + 1);
  EXPECT_THAT((*folder)->files().summary(), HasSubstr("lies in (dog/again)"));
}

TEST_F(ImageFolderTest, SaysWhatIsMissing) {
  const auto status = [&](const std::string& path, const std::vector<std::string>& classes = {}) {
    return ImageFolder::create(path, {}, classes).status();
  };
  EXPECT_EQ(status(scratch_.path("none")).code(), Code::kNotFound);
  EXPECT_THAT(status(scratch_.path("dog")).message(), HasSubstr("holds no folders"));
  EXPECT_THAT(status(scratch_.path(), {"cat", "fox"}).message(),
              HasSubstr("class \"dog\" is none of the training part's"));
  std::filesystem::create_directory(scratch_.path("emu"));
  EXPECT_THAT(status(scratch_.path()).message(),
              AllOf(HasSubstr("emu"), HasSubstr("holds no image")));
  scratch_.write("emu/a.webp", "x");
  EXPECT_THAT(status(scratch_.path()).message(), HasSubstr("1 ending .webp (emu/a.webp)"));
  const Scratch broken;
  broken.write("a/x.png", "");
  EXPECT_THAT(ImageFolder::create(broken.path(), {.on_error = OnError::kSkip}).status().message(),
              HasSubstr("no image can be decoded"));
}

}  // namespace
}  // namespace stormo::data
