// Which elastic job `stormo resize` means.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <cli/resize/job_socket.h>
#include <stormo/base/temporary_folder.h>

namespace stormo::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ElasticJob job(pid_t launcher, std::vector<std::int32_t> processes) {
  return {.launcher = launcher,
          .socket = "/s" + std::to_string(launcher),
          .size = launch::JobSize{.command = "stormo-train train \x1b[31m.toml",
                                  .ranks = 2,
                                  .processes = std::move(processes)}};
}

const std::vector<ElasticJob> kTwo = {job(10, {11, 12}), job(20, {21, 22})};
const std::vector<JobPlace> kPages = {{.address = "127.0.0.1:9464", .process = 22},
                                      {.address = "127.0.0.1:9465", .process = 77}};

TEST(ChooseElastic, ByNothingIfThereIsOnlyOne) {
  EXPECT_EQ(choose_elastic("", {kTwo[1]}, kPages)->launcher, 20);
  const Status several = choose_elastic("", kTwo, kPages).status();
  EXPECT_EQ(several.code(), Code::kInvalidArgument);
  EXPECT_THAT(several.message(), AllOf(HasSubstr("`stormo resize 10 -n N`"),
                                       HasSubstr("\n  10  2 ranks  stormo-train train"),
                                       HasSubstr("\n  20  2 ranks"), Not(HasSubstr("\x1b"))));
  const Status none = choose_elastic("", {}, kPages).status();
  EXPECT_EQ(none.code(), Code::kNotFound);
  EXPECT_THAT(none.message(), HasSubstr("elastic.enabled=true"));
}

TEST(ChooseElastic, ByItsLauncher) {
  EXPECT_EQ(choose_elastic("20", kTwo, {})->socket, "/s20");
  const Status none = choose_elastic("21", kTwo, {}).status();
  EXPECT_EQ(none.code(), Code::kNotFound);
  EXPECT_THAT(none.message(), AllOf(HasSubstr("process 21 is no launcher"), HasSubstr("\n  10  ")));
}

TEST(ChooseElastic, ByThePagesOfOneOfItsRanks) {
  EXPECT_EQ(choose_elastic("127.0.0.1:9464", kTwo, kPages)->launcher, 20);
  EXPECT_EQ(choose_elastic("http://127.0.0.1:9464/metrics", kTwo, kPages)->launcher, 20);
  EXPECT_THAT(choose_elastic("127.0.0.1:9465", kTwo, kPages).status().message(),
              HasSubstr("keeps its number of ranks"));
  EXPECT_THAT(choose_elastic("127.0.0.1:1", kTwo, kPages).status().message(),
              HasSubstr("no job of this user on this host is at 127.0.0.1:1"));
  EXPECT_EQ(choose_elastic("nonsense", kTwo, kPages).status().code(), Code::kInvalidArgument);
}

TEST(ElasticJobs, AreThoseWhoseLauncherAnswers) {
  const auto folder = TemporaryFolder::create("stormo-resize-").take_or_throw();
  const launch::EnvironmentReader read =
      [&folder](std::string_view name) -> std::optional<std::string> {
    if (name == "XDG_RUNTIME_DIR") return folder.path().string();
    return std::nullopt;
  };
  const std::string path = own_job_socket(read).take_or_throw();
  const auto ours = [&] {
    std::vector<ElasticJob> jobs = elastic_jobs(read);
    std::erase_if(jobs, [&](const ElasticJob& j) { return j.socket != path; });  // others may run
    return jobs;
  };
  EXPECT_TRUE(ours().empty());
  std::ofstream{path} << "left by somebody";
  EXPECT_TRUE(ours().empty());
  const auto control = launch::JobControl::start(path, [](const launch::SizeRequest& request) {
                         EXPECT_EQ(request.ranks, 0) << "it only looks";
                         return launch::JobSize{.ranks = 3};
                       }).take_or_throw();
  const std::vector<ElasticJob> jobs = ours();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].launcher, ::getpid());
  EXPECT_EQ(jobs[0].size->ranks, 3);
  fs::permissions(fs::path(path).parent_path(), fs::perms::owner_all | fs::perms::others_exec);
  EXPECT_TRUE(ours().empty()) << "others may enter the folder";
}

}  // namespace
}  // namespace stormo::cli
