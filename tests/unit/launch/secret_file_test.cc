#include <stormo/launch/secret_file.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <stormo/base/temporary_folder.h>

namespace stormo::launch {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kHex = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";

class SecretFile : public ::testing::Test {
 protected:
  std::string path() const { return folder_.path() / "secret"; }
  Result<transport::Secret> read(const std::string& text, mode_t mode = 0600) const {
    std::ofstream(path(), std::ios::binary) << text;
    EXPECT_EQ(::chmod(path().c_str(), mode), 0);
    return read_secret_file(path());
  }
  std::string refusal(const std::string& text, mode_t mode = 0600) const {
    const Status status = read(text, mode).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), AllOf(HasSubstr(path()), Not(HasSubstr(kHex.substr(0, 12)))));
    return status.message();
  }

  const TemporaryFolder folder_ = TemporaryFolder::create("secret-file-test").take_or_throw();
};

TEST_F(SecretFile, HasTheSecretWithOrWithoutALineEnd) {
  const transport::Secret secret = transport::Secret::from_hex(kHex).take_or_throw();
  for (const char* end : {"", "\n", "\r\n", " \n\n"}) {
    EXPECT_EQ(read(kHex + end).take_or_throw().bytes(), secret.bytes());
  }
}

TEST_F(SecretFile, WithAnyOtherTextIsRefusedWithTheRemedy) {
  const std::string remedy = "openssl rand -hex 32 > secret), and copy it to all hosts";
  EXPECT_THAT(refusal(""), AllOf(HasSubstr("secret is empty;"), EndsWith(remedy)));
  EXPECT_THAT(refusal("\n\n"), HasSubstr("secret is empty;"));
  EXPECT_THAT(refusal(kHex.substr(0, 62) + "\n"),
              AllOf(HasSubstr("has 62 hexadecimal digits, a secret has 64;"), EndsWith(remedy)));
  EXPECT_THAT(refusal(kHex + "ab"), HasSubstr("has 66 hexadecimal digits, a secret has 64;"));
  EXPECT_THAT(refusal(kHex + "\n" + kHex), HasSubstr("has text after its 64 hexadecimal digits;"));
  EXPECT_THAT(refusal(kHex + " # of the cluster"), HasSubstr("has text after its 64"));
  EXPECT_THAT(refusal("x" + kHex.substr(1)), HasSubstr("has characters that are no hexadecimal"));
  EXPECT_THAT(refusal(std::string(64, '\0')), HasSubstr("has characters that are no hexadecimal"));
}

TEST_F(SecretFile, ThatOthersCanReadIsRefused) {
  EXPECT_THAT(refusal(kHex, 0640), HasSubstr("can be read by others; chmod 600 it"));
  EXPECT_THAT(refusal(kHex, 0604), HasSubstr("chmod 600"));
}

TEST_F(SecretFile, IsARegularFile) {
  const auto refused = [&] { return read_secret_file(path()).status().message(); };
  EXPECT_THAT(refused(), AllOf(HasSubstr("does not exist"), HasSubstr("make a secret with")));
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_THAT(refused(), HasSubstr("is a pipe, no file"));  // and nothing waits for a writer
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  EXPECT_THAT(refused(), AllOf(HasSubstr("is a folder, no file"), Not(HasSubstr("chmod"))));
  std::filesystem::remove(path());
  std::filesystem::create_symlink("/dev/zero", path());
  EXPECT_THAT(refused(), HasSubstr("is a device, no file"));
}

}  // namespace
}  // namespace stormo::launch
