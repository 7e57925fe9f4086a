#include <cli/top/target.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include <stormo/base/proc.h>
#include <stormo/base/temporary_folder.h>

namespace stormo::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TopTarget, AddressesAndUrlsNameAJob) {
  for (const char* text : {"127.0.0.1:9464", "http://127.0.0.1:9464", "http://127.0.0.1:9464/",
                           "http://127.0.0.1:9464/metrics"}) {
    EXPECT_EQ(transport::to_string(parse_job(text).take_or_throw()), "127.0.0.1:9464") << text;
  }
  EXPECT_EQ(parse_job("[fd00::1]:80").take_or_throw().host, "fd00::1");
  for (const char* text :
       {"", "node7", "node7:x", ":9464", "https://node7:9464", "http://", "1:2:3"}) {
    EXPECT_EQ(parse_job(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(TopTarget, WithoutAnAddressThereMustBeOneJob) {
  const JobPlace one{.address = "127.0.0.1:9", .recipe = "small"};
  const JobPlace other{.address = "127.0.0.1:10", .recipe = "large"};
  EXPECT_EQ(choose_job("", "", {one}).take_or_throw().name(), "127.0.0.1:9");
  EXPECT_EQ(choose_job("node7:80", "", {one, other}).take_or_throw().name(), "node7:80");
  const Status none = choose_job("", "", {}).status();
  EXPECT_EQ(none.code(), Code::kNotFound);
  EXPECT_THAT(none.message(), HasSubstr("--metrics"));
  const Status several = choose_job("", "", {one, other}).status();
  EXPECT_EQ(several.code(), Code::kInvalidArgument);
  EXPECT_THAT(several.message(), AllOf(HasSubstr("2 jobs"), HasSubstr("`stormo top 127.0.0.1:9`"),
                                       HasSubstr("\n  127.0.0.1:9  small  does not answer"),
                                       HasSubstr("\n  127.0.0.1:10  large  does not answer")));
}

TEST(TopTarget, TheTokenIsInAFileOfTheUser) {
  const auto folder = TemporaryFolder::create("stormo-top-").take_or_throw();
  const std::string file = folder.path() / "secret";
  std::ofstream(file) << std::string(64, 'a') << "\n";
  ::chmod(file.c_str(), 0644);
  EXPECT_THAT(choose_job("a:1", file, {}).status().message(), HasSubstr("chmod 600"));
  ::chmod(file.c_str(), 0600);
  EXPECT_EQ(choose_job("a:1", file, {}).take_or_throw().token, std::string(64, 'a'));
  const JobPlace job{.address = "127.0.0.1:9", .recipe = "small", .token_file = file};
  EXPECT_EQ(choose_job("", "", {job}).take_or_throw().token, std::string(64, 'a'));
  EXPECT_EQ(choose_job("127.0.0.1:9", "", {job}).take_or_throw().token, std::string(64, 'a'));
  EXPECT_EQ(choose_job("127.0.0.1:10", "", {job}).take_or_throw().token, "");
}

TEST(TopTarget, EachFailureNamesCauseAndRemedy) {
  const Target open{.address = {"127.0.0.1", 9}};
  Target guarded = open;
  guarded.token = "aa";
  guarded.token_file = "secret";
  const auto told = [](const Target& target, Result<observe::HttpResponse> answer) {
    return status_in(target, answer).status();
  };
  const auto page = [](int status, const std::string& body) {
    return observe::HttpResponse{.status = status, .body = body};
  };
  const Status nobody = told(open, Status(Code::kNotFound, "Connection refused"));
  EXPECT_EQ(nobody.code(), Code::kNotFound);
  EXPECT_THAT(nobody.message(), AllOf(HasSubstr("127.0.0.1:9"), HasSubstr("Connection refused"),
                                      HasSubstr("--metrics")));
  EXPECT_THAT(told(open, page(401, "")).message(), HasSubstr("--token FILE"));
  EXPECT_THAT(told(guarded, page(401, "")).message(), HasSubstr("the token in secret is not"));
  EXPECT_THAT(told(open, page(403, "")).message(), HasSubstr("numeric address"));
  EXPECT_THAT(told(open, page(404, "")).message(), HasSubstr("no job of Stormo (HTTP status 404)"));
  EXPECT_THAT(told(open, page(200, "<html>")).message(), HasSubstr("no job of Stormo"));
  EXPECT_THAT(told(open, Status(Code::kCorrupt, "no HTTP")).message(), HasSubstr("(no HTTP)"));
  EXPECT_THAT(told(open, page(200, R"({"schema":9,"state":"","version":"7.0\u001b"})")).message(),
              AllOf(HasSubstr("version 7.0\\x1b;"), HasSubstr("this is version ")));
  const Status silent = told(open, Status(Code::kDeadlineExceeded, ""));
  EXPECT_EQ(silent.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(silent.message(), HasSubstr("stopped"));
}

/// An environment in which the folder of the login is this one.
launch::EnvironmentReader environment_with(const fs::path& folder) {
  return [folder](std::string_view name) -> std::optional<std::string> {
    if (name == "XDG_RUNTIME_DIR") return folder.string();
    return std::nullopt;
  };
}

/// Those in this folder: others of this user may run at the same time.
std::vector<JobPlace> jobs_in(const fs::path& folder) {
  std::vector<JobPlace> jobs = jobs_of_host(environment_with(folder));
  std::erase_if(jobs, [](const JobPlace& job) { return !job.recipe.starts_with("test "); });
  return jobs;
}

TEST(JobFile, IsThereWhileItsJobRuns) {
  const auto folder = TemporaryFolder::create("stormo-top-").take_or_throw();
  {
    const JobFile file =
        JobFile::write(
            {.address = "127.0.0.1:9", .recipe = "test \"1\"\n", .token_file = "/a/secret"},
            environment_with(folder.path()))
            .take_or_throw();
    const std::vector<JobPlace> jobs = jobs_in(folder.path());
    ASSERT_EQ(jobs.size(), 1u);
    EXPECT_EQ(jobs[0].address, "127.0.0.1:9");
    EXPECT_EQ(jobs[0].recipe, "test \"1\"\n");
    EXPECT_EQ(jobs[0].token_file, "/a/secret");
    EXPECT_EQ(jobs[0].process, ::getpid());
    EXPECT_EQ(fs::status(folder.path() / "stormo").permissions(), fs::perms::owner_all);
  }
  EXPECT_THAT(jobs_in(folder.path()), IsEmpty());
  EXPECT_TRUE(fs::is_empty(folder.path() / "stormo"));
}

TEST(JobFile, OfAProcessThatIsGoneItIsNotLookedAt) {
  const auto folder = TemporaryFolder::create("stormo-top-").take_or_throw();
  const fs::path files = folder.path() / "stormo";
  fs::create_directory(files);
  fs::permissions(files, fs::perms::owner_all);
  const auto started = process_state("/proc/self")->started;
  const auto leave =
      [&](const std::string& name, long process, std::uint64_t when) {
        std::ofstream(files / name)
            << R"({"schema":1,"address":"a:1","recipe":"test 1","token_file":"",)"
            << "\"process\":" << process << ",\"started\":" << when << "}\n";
      };
  const long other = 1L << 30;  // more than there are
  leave("job-1.json", other, started);
  leave("job-2.json", ::getpid(), started + 1);  // of one that had the same number
  leave("other.json", ::getpid(), started);
  std::ofstream(files / "job-3.json") << "{\n";
  std::ofstream(files / "job-4.json") << R"({"schema":2})"
                                      << "\n";
  EXPECT_THAT(jobs_in(folder.path()), IsEmpty());
  leave("job-5.json", ::getpid(), started);
  EXPECT_EQ(jobs_in(folder.path()).size(), 1u);
}

TEST(JobFile, AFolderThatOthersMayEnterIsNotLookedAt) {
  const auto folder = TemporaryFolder::create("stormo-top-").take_or_throw();
  const JobFile file =
      JobFile::write({.address = "a:1", .recipe = "test 1"}, environment_with(folder.path()))
          .take_or_throw();
  EXPECT_EQ(jobs_in(folder.path()).size(), 1u);
  fs::permissions(folder.path() / "stormo", fs::perms::owner_all | fs::perms::others_exec);
  EXPECT_THAT(jobs_in(folder.path()), IsEmpty());
}

}  // namespace
}  // namespace stormo::cli
