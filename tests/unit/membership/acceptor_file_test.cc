#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include <stormo/base/temporary_folder.h>
#include <stormo/membership/acceptor/acceptor_file.h>

namespace stormo::membership {
namespace {

using protocol::AcceptorState;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

const AcceptorState kState{
    .promised = {.counter = 5, .proposer = 1},
    .accepted = {.counter = 4, .proposer = 2},
    .value = {.version = 3, .origin = {.counter = 4, .proposer = 2}, .bytes = "a record"}};

class AcceptorFileTest : public testing::Test {
 protected:
  void SetUp() override {
    AcceptorFile file = AcceptorFile::create(folder_, name_).take_or_throw();
    ASSERT_TRUE(file.save(kState).ok());
  }
  std::string content() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void replace(const std::string& content) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << content;
  }
  Status opened(const AcceptorName& name) const {
    return AcceptorFile::open(folder_, name).status();
  }

  TemporaryFolder root_ = TemporaryFolder::create("stormo-acceptor-").take_or_throw();
  std::string folder_ = (root_.path() / "register-a").string();
  std::string path_ = folder_ + "/register";
  AcceptorName name_{.job = "digits", .index = 1, .count = 3};
};

TEST_F(AcceptorFileTest, HasWhatWasSaved) {
  const auto file = AcceptorFile::open(folder_, name_);
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ(file.value().state(), kState);
}

TEST_F(AcceptorFileTest, IsTheOnlyFileAndOfThisUserAlone) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_EQ(entry.path().filename(), "register");
    ++files;
  }
  EXPECT_EQ(files, 1);
  EXPECT_EQ(fs::status(path_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(AcceptorFileTest, IsNotCreatedTwice) {
  const Status why = AcceptorFile::create(folder_, name_).status();
  EXPECT_EQ(why.code(), Code::kInvalidArgument);
  EXPECT_THAT(why.message(), HasSubstr("it is the register of a job that may go on"));
}

TEST_F(AcceptorFileTest, WhoHasLostItMayNotVote) {
  fs::remove(path_);
  const Status why = opened(name_);
  EXPECT_EQ(why.code(), Code::kNotFound);
  EXPECT_THAT(why.message(), HasSubstr("must not vote"));
}

TEST_F(AcceptorFileTest, IsRefusedWhenItIsShorterOrLonger) {
  const std::string good = content();
  for (std::size_t n = 0; n < good.size(); ++n) {
    replace(good.substr(0, n));
    const Status why = opened(name_);
    ASSERT_EQ(why.code(), Code::kCorrupt) << n << ": " << why.to_string();
    ASSERT_THAT(why.message(), HasSubstr("is damaged (" + std::to_string(n) + " bytes"));
  }
  replace(good + '\0');
  EXPECT_EQ(opened(name_).code(), Code::kCorrupt);
  replace(good);
  EXPECT_TRUE(opened(name_).ok());
}

TEST_F(AcceptorFileTest, IsRefusedWhenAnyBitDiffers) {
  const std::string good = content();
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    replace(bad);
    ASSERT_EQ(opened(name_).code(), Code::kCorrupt) << bit;
  }
}

TEST_F(AcceptorFileTest, ThatOfAnotherAcceptorIsRefused) {
  for (const AcceptorName& other : {AcceptorName{.job = "other", .index = 1, .count = 3},
                                    AcceptorName{.job = "digits", .index = 2, .count = 3},
                                    AcceptorName{.job = "digits", .index = 1, .count = 5}}) {
    const Status why = opened(other);
    EXPECT_EQ(why.code(), Code::kInvalidArgument);
    EXPECT_THAT(why.message(),
                HasSubstr("is that of acceptor 1 of 3 of job digits, not of " + other.text()));
  }
}

TEST_F(AcceptorFileTest, AFolderHasOneAcceptor) {
  const auto first = AcceptorFile::open(folder_, name_);
  ASSERT_TRUE(first.ok());
  EXPECT_THAT(opened(name_).message(), HasSubstr("is in use by another acceptor"));
}

TEST_F(AcceptorFileTest, ThereIsNoAcceptorThreeOfThree) {
  const std::string other = (root_.path() / "register-b").string();
  const AcceptorName three{.job = "digits", .index = 3, .count = 3};
  EXPECT_EQ(AcceptorFile::create(other, three).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace stormo::membership
