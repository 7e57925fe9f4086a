#include <stormo/model/generate.h>

#include <algorithm>
#include <tuple>

#include <stormo/base/check.h>
#include <stormo/base/status.h>

namespace stormo::model {
namespace {

/// Draws an index from unnormalised `logits` (one dimension).
std::int64_t draw(torch::Tensor logits, const SamplingOptions& options, Rng& rng) {
  if (!logits.isfinite().all().item<bool>()) {
    throw Error({Code::kCorrupt, "the model's output is no finite number; its weights are broken"});
  }
  if (options.temperature <= 0) return logits.argmax().item<std::int64_t>();
  logits = logits.to(torch::kFloat64) / options.temperature;
  torch::Tensor candidates;
  if (options.top_k > 0 && options.top_k < logits.numel()) {
    std::tie(logits, candidates) = logits.topk(options.top_k);
  }
  const torch::Tensor cumulative = at::softmax(logits, 0).cumsum(0);
  const double* c = cumulative.const_data_ptr<double>();
  const double* end = c + cumulative.numel();
  const double point = rng.uniform() * end[-1];
  const std::int64_t index =
      std::min<std::int64_t>(std::upper_bound(c, end, point) - c, cumulative.numel() - 1);
  return candidates.defined() ? candidates[index].item<std::int64_t>() : index;
}

}  // namespace

torch::Tensor generate(Gpt& model, const torch::Tensor& prompt, std::int64_t count,
                       const SamplingOptions& options, Rng& rng) {
  STORMO_CHECK(prompt.dim() == 1 && prompt.numel() > 0, "a prompt has at least one token");
  const torch::NoGradGuard no_grad;
  const std::int64_t given = prompt.numel();
  const torch::Tensor text = torch::empty({given + count}, torch::kInt64);
  text.slice(0, 0, given).copy_(prompt);
  for (std::int64_t end = given; end < given + count; ++end) {
    const std::int64_t begin = std::max<std::int64_t>(0, end - model.options().context);
    const torch::Tensor logits = model.forward(text.slice(0, begin, end).unsqueeze(0));
    text[end] = draw(logits[0][-1], options, rng);
  }
  return text;
}

}  // namespace stormo::model
