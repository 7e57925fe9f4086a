#include <cli/bench/step/task.h>

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include <bench/step_record.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/prepare/recipe_task.h>

namespace stormo::cli {
namespace {

constexpr std::uint64_t kDataSeed = 7;

void write_tensor(std::ofstream& file, const torch::Tensor& tensor) {
  const torch::Tensor t = tensor.detach().contiguous();
  file.write(static_cast<const char*>(t.const_data_ptr()),
             static_cast<std::streamsize>(t.nbytes()));
}

std::vector<std::string> optimizer_keys(const StepJob& job) {
  if (job.plain_sgd) return {"optimizer.kind=sgd", "optimizer.lr=0.05"};
  return {"optimizer.kind=adamw", "optimizer.lr=1e-3", "optimizer.weight_decay=0.01"};
}

}  // namespace

Result<train::Recipe> step_recipe(const StepJob& job, int ranks) {
  const int steps = kStepWarmup + job.steps + 1;
  std::vector<std::string> keys = {
      "name=bench",
      "threads=1",
      "checkpoint.directory=",
      fmt::format("train.steps={}", steps),
      fmt::format("train.log_every={}", steps),
      fmt::format("train.micro_batches={}", job.micro_batches),
      fmt::format("train.global_batch={}", job.batch * parts_of(job, ranks))};
  for (const auto& more : {optimizer_keys(job), job.model->recipe, job.strategy->recipe})
    keys.insert(keys.end(), more.begin(), more.end());
  // one rank alone is the process that others are compared with
  const std::string_view cut = job.strategy->cut;
  if (ranks == 1 && !cut.empty())
    keys.insert(keys.end(), {"strategy.schedule=1f1b", "strategy.chunks=1", "strategy.period=8",
                             "strategy.attention=ring"});
  if (!cut.empty()) keys.push_back(fmt::format("{}={}", cut, ranks));
  train::ParsedRecipe parsed = train::parse_recipe("schema_version = 1\n", "bench step", ".", keys);
  std::vector<std::string> wrong = parsed.errors;
  // what it says of data does not matter here
  for (const std::string& error : train::check_recipe(parsed, ranks))
    if (error.find("strategy.") != std::string::npos) wrong.push_back(error);
  if (!wrong.empty())
    return invalid_argument(fmt::format("--model {} --strategy {}: {}", job.model->name,
                                        job.strategy->name, fmt::join(wrong, "\n")));
  parsed.recipe.model.vocabulary = kStepVocabulary;
  return parsed.recipe;
}

StepData::StepData(const StepJob& job, int ranks)
    : global_batch_(job.batch * parts_of(job, ranks)) {
  auto generator = at::detail::createCPUGenerator(kDataSeed);
  std::vector<std::int64_t> shape = {job.batch};
  shape.insert(shape.end(), job.model->sample.begin(), job.model->sample.end());
  const torch::TensorOptions integers(torch::kInt64);
  for (int i = 0; i < kStepBatches; ++i) {
    if (job.model->tokens) {
      const torch::Tensor text =
          torch::randint(kStepVocabulary, {job.batch, shape.back() + 1}, generator, integers);
      batches_.push_back({text.slice(1, 0, -1).contiguous(), text.slice(1, 1).contiguous()});
    } else {
      batches_.push_back({torch::randn(shape, generator),
                          torch::randint(kStepClasses, {job.batch}, generator, integers)});
    }
  }
}

data::Batch StepData::get(std::span<const std::int64_t>, std::int64_t epoch) const {
  return batches_[static_cast<std::size_t>(epoch) % batches_.size()];
}

Status write_step_inputs(const StepJob& job, const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(const train::Recipe recipe, step_recipe(job, 1));
  at::set_num_threads(1);
  STORMO_ASSIGN_OR_RETURN(const train::Task task, train::make_task(recipe, {}));
  std::ofstream file(path, std::ios::binary);
  for (const train::NamedParameter& p : train::trainable_parameters(*task.module))
    write_tensor(file, p.tensor);
  const StepData data(job, 1);
  for (const data::Batch& batch : data.batches()) {
    write_tensor(file, batch.input);
    write_tensor(file, batch.target);
  }
  file.close();
  return file ? Status{} : io_error("write " + path);
}

Result<std::string> describe_step(const StepJob& job, const SlowWorker& slow) {
  STORMO_ASSIGN_OR_RETURN(const train::Recipe recipe, step_recipe(job, 1));
  const auto all = nlohmann::json::parse(train::to_json(recipe));
  const nlohmann::json out = {
      {"model", all.at("model")},
      {"optimizer", all.at("optimizer")},
      {"vocabulary", recipe.model.vocabulary},
      {"sample", job.model->sample},
      {"tokens", job.model->tokens},
      {"batch", job.batch},
      {"batches", kStepBatches},
      {"micro_batches", job.micro_batches},
      {"warmup", kStepWarmup},
      {"steps", job.steps},
      {"compared", bench::kComparedUpdates},
      {"period", kMeetingPeriod},
      {"slow", {{"factor", slow.factor}, {"worker", slow.worker}, {"in_turns", slow.in_turns}}}};
  return out.dump();
}

}  // namespace stormo::cli
