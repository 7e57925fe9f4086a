#include <cli/bench/step/data.h>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

namespace stormo::cli {
namespace {

constexpr std::uint64_t kDataSeed = 7;

}  // namespace

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

}  // namespace stormo::cli
