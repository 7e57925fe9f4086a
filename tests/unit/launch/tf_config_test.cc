#include <stormo/launch/tf_config.h>

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stormo::launch {
namespace {

using Role = ClusterTask::Role;
using testing::HasSubstr;

std::string config(const std::string& cluster, const std::string& task) {
  return R"({"cluster": {)" + cluster + R"(}, "task": {)" + task + "}}";
}
const std::string kCluster =
    R"("chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4", "[fd00::1]:5"])";

TEST(TfConfig, TellsEveryTaskWhatItIs) {
  const auto chief = parse_tf_config(config(kCluster, R"("type": "chief", "index": 0)"));
  ASSERT_TRUE(chief.ok()) << chief.status().message();
  EXPECT_EQ(chief->role, Role::kWorker);
  EXPECT_EQ(chief->index, 0);
  EXPECT_EQ(chief->workers, 3);
  EXPECT_EQ(chief->servers[1], (transport::HostPort{"fd00::1", 5}));
  const auto worker = parse_tf_config(config(kCluster, R"("type": "worker", "index": 1)"));
  EXPECT_EQ(worker->index, 2) << "the chief is worker 0";
  const auto server = parse_tf_config(config(kCluster, R"("type": "ps", "index": 1)"));
  EXPECT_EQ(server->role, Role::kServer);
  EXPECT_EQ(server->index, 1);
  EXPECT_EQ(parse_tf_config(config(kCluster, R"("type": "evaluator", "index": 0)"))->role,
            Role::kEvaluator);
}

TEST(TfConfig, WithoutAChiefTheFirstWorkerIsIt) {
  const auto first = parse_tf_config(
      config(R"("worker": ["b:2", "c:3"], "ps": ["d:4"])", R"("type": "worker", "index": 0)"));
  EXPECT_EQ(first->index, 0);
  EXPECT_EQ(first->workers, 2);
  EXPECT_EQ(first->workers_here, 1);
}

TEST(TfConfig, CountsTheWorkersOfAHost) {
  const auto workers_here = [](const char* task) {
    return parse_tf_config(
               config(R"("chief": ["a:1"], "worker": ["b:2", "a:3", "b:4", "b:5"], "ps": ["b:6"])",
                      task))
        ->workers_here;
  };
  EXPECT_EQ(workers_here(R"("type": "chief", "index": 0)"), 2);
  EXPECT_EQ(workers_here(R"("type": "worker", "index": 0)"), 3);
  EXPECT_EQ(workers_here(R"("type": "worker", "index": 1)"), 2);
}

TEST(TfConfig, TakesOtherWaysToWriteTheSame) {
  const auto usual = parse_tf_config(config(kCluster, R"("type": "worker", "index": 1)"));
  for (const std::string& text :
       {config(kCluster, R"("type": "worker", "index": "1")"),
        config(R"("master": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4", "[fd00::1]:5"])",
               R"("type": "worker", "index": 1)"),
        config(R"("chief": ["grpc://a:1"], "worker": ["grpc://b:2", "c:3"],
                  "ps": ["grpc://d:4", "grpc://[fd00::1]:5"])",
               R"("type": "worker", "index": 1)"),
        config(R"("chief": {"0": "a:1"}, "worker": {"1": "C:3", "0": "b:2"},
                  "ps": ["D:4", "[fd00::1]:5"], "evaluator": ["e:1"])",
               R"("type": "worker", "index": 1)")}) {
    const auto task = parse_tf_config(text);
    ASSERT_TRUE(task.ok()) << text << task.status().message();
    EXPECT_EQ(task->index, usual->index) << text;
    EXPECT_EQ(task->workers, usual->workers) << text;
    EXPECT_EQ(task->servers, usual->servers) << text;
  }
  EXPECT_EQ(parse_tf_config(
                config(R"("master": ["a:1"], "ps": ["d:4"])", R"("type": "master", "index": 0)"))
                ->index,
            0);
}

TEST(TfConfig, MaySayNothing) {
  for (const char* nothing : {"", " \n", "{}", " {} "})
    EXPECT_FALSE(task_of_environment([&](auto) { return std::string(nothing); })) << nothing;
  EXPECT_FALSE(task_of_environment([](auto) { return std::nullopt; }));
  for (const char* something : {"{", "[]", R"({"cluster": {}})"})
    EXPECT_FALSE(task_of_environment([&](auto) { return std::string(something); })->ok());
}

TEST(TfConfig, ListsEverythingThatIsWrong) {
  const Status status =
      parse_tf_config(config(R"("worker": ["b", 7], "ps": ["d:4", "d:4"], "x": [])",
                             R"("type": "worker", "index": 2)"))
          .status();
  for (const char* part : {"\"b\" has no port", "7 is no", "d:4 is there twice",
                           "cluster.x:", "cluster.worker has 2 entries"})
    EXPECT_THAT(status.message(), HasSubstr(part));
}

TEST(TfConfig, NamesTheFieldThatIsWrong) {
  const std::string worker = R"("type": "worker", "index": 0)";
  const std::pair<std::string, std::string> cases[] = {
      {"x", "no JSON object"},
      {"[]", "no JSON object"},
      {R"({"task": {}})", "cluster: missing"},
      {R"({"cluster": {}, "task": 3})", "task: missing"},
      {config(kCluster, R"("index": 0)"), "task.type: missing"},
      {config(kCluster, R"("type": "boss", "index": 0)"), "task.type: 'boss' is none of"},
      {config(kCluster, R"("type": "master", "index": 1)"), "cluster.master has 1 entries"},
      {config(kCluster, R"("type": "worker")"), "task.index: missing"},
      {config(kCluster, R"("type": "worker", "index": 2)"), "cluster.worker has 2 entries"},
      {config(kCluster, R"("type": "worker", "index": -1)"), "task.index: -1"},
      {config(kCluster, R"("type": "worker", "index": "0x")"), "task.index: \"0x\" is no number"},
      {config(kCluster, R"("type": "worker", "index": 0.5)"), "task.index: 0.5 is no number"},
      {config(kCluster + R"(, "tpu": ["x:1"])", worker), "cluster.tpu: there are"},
      {config(R"("worker": ["b:2"], "ps": ["d:4", "http://d:5"])", worker), "'http://d:5': write"},
      {config(R"("worker": ["b:2"], "ps": ["d:4", "e:4", "grpc://D:4"])", worker),
       "cluster.ps: d:4 is there twice"},
      {config(R"("worker": {"0": "b:2", "2": "c:3"}, "ps": ["d:4"])", worker),
       "cluster.worker: give a list"},
      {config(R"("chief": ["a:1"], "master": ["b:1"], "ps": ["d:4"])", worker),
       "cluster.chief: there is"},
      {config(R"("worker": ["b:2"])", R"("type": "evaluator")"), "cluster.ps: no server"},
      {config(R"("worker": ["b:2"])", R"("type": "ps", "index": 0)"),
       "task.type: 'ps', but cluster.ps has no"},
      {config(R"("ps": ["b:2"])", worker), "cluster.worker: no worker"},
      {config(R"("worker": "b:2", "ps": ["d:4"])", worker), "cluster.worker: give a list"},
      {config(R"("worker": [7], "ps": ["d:4"])", worker), "cluster.worker: 7 is no"},
      {config(R"("worker": ["b:2"], "ps": ["d"])", worker), "cluster.ps: \"d\" has no port"},
      {config(R"("worker": ["b:2"], "ps": ["d:99999"])", worker), "cluster.ps: "},
      {config(R"("chief": ["a:1", "b:1"], "ps": ["d:4"])", worker), "cluster.chief: there is"}};
  for (const auto& [text, message] : cases) {
    const Status status = parse_tf_config(text).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(message)) << text;
  }
}

}  // namespace
}  // namespace stormo::launch
