// AdamW on the parameters of the wide MLP (1024-4096-4096-10, 21 M): ours, ATen's fused kernel,
// torch::optim::AdamW, and a loop that only moves the same 28 bytes per weight. All on the same
// memory, one after the other in each round; ratios are of the same round. One line of JSON:
//
//   optimizer_bench [ROUNDS] [THREADS]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adamw.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <bench/statistics.h>
#include <stormo/tensor/parallel_for.h>
#include <stormo/train/optimizer/fused_optimizer.h>

namespace {

using namespace stormo;

constexpr double kLr = 1e-3, kBytesPerWeight = 28;

struct Problem {
  std::vector<torch::Tensor> weights, gradients;
  std::int64_t count = 0;

  Problem() {
    for (const auto& [out, in] : {std::pair{4096, 1024}, {4096, 4096}, {10, 4096}}) {
      add({out, in});
      add({out});
    }
  }
  void add(const std::vector<std::int64_t>& shape) {
    weights.push_back(torch::randn(shape));
    gradients.push_back(torch::randn(shape) * 1e-2);
    weights.back().mutable_grad() = gradients.back();
    count += weights.back().numel();
  }
};

/// ATen's fused kernel on the state of `ours`.
struct AtenFused {
  std::vector<torch::Tensor> weights, gradients, averages, squares, steps;

  AtenFused(const Problem& problem, const train::FusedOptimizer& ours)
      : weights(problem.weights), gradients(problem.gradients) {
    const auto state = ours.state();
    for (const train::NamedParameter& p : ours.parameters()) {
      averages.push_back(state.at("optimizer.exp_avg." + p.name));
      squares.push_back(state.at("optimizer.exp_avg_sq." + p.name));
      steps.push_back(torch::ones({}));
    }
  }
  void step() {
    for (torch::Tensor& s : steps) *s.data_ptr<float>() += 1;
    at::_fused_adamw_(weights, gradients, averages, squares, {}, steps, kLr, 0.9, 0.999, 0.01, 1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
  }
};

/// The memory traffic of AdamW and next to no arithmetic: the least time that the update can take.
__attribute__((target_clones("default", "avx2", "avx512f"))) void move_only(
    float* __restrict w, const float* __restrict g, float* __restrict m, float* __restrict v,
    std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    w[i] += g[i];
    m[i] += g[i];
    v[i] += g[i];
  }
}

void move_all(const AtenFused& all) {
  for (std::size_t t = 0; t < all.weights.size(); ++t) {
    auto *w = all.weights[t].data_ptr<float>(), *g = all.gradients[t].data_ptr<float>();
    auto *m = all.averages[t].data_ptr<float>(), *v = all.squares[t].data_ptr<float>();
    tensor::parallel_for(all.weights[t].numel(), 32768, [&](std::int64_t a, std::int64_t b) {
      move_only(w + a, g + a, m + a, v + a, b - a);
    });
  }
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

nlohmann::json spread(const std::vector<double>& theirs, const std::vector<double>& ours) {
  const bench::Spread s = bench::ratios(theirs, ours);
  return {{"median", s.median}, {"min", s.min}, {"max", s.max}};
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  if (rounds < 1 || threads < 1) {
    std::fprintf(stderr, "usage: optimizer_bench [ROUNDS] [THREADS]\n");
    return 2;
  }
  at::set_num_threads(threads);
  const torch::NoGradGuard no_grad;
  Problem problem;
  std::vector<train::NamedParameter> named;
  for (std::size_t i = 0; i < problem.weights.size(); ++i) {
    named.push_back({std::to_string(i), problem.weights[i]});
  }
  train::FusedOptimizer ours(
      {.kind = train::OptimizerOptions::Kind::kAdamW, .lr = kLr, .weight_decay = 0.01}, named);
  throw_if_error(ours.step(kLr));
  AtenFused fused(problem, ours);
  torch::optim::AdamW plain(problem.weights, torch::optim::AdamWOptions(kLr).weight_decay(0.01));

  const std::map<std::string, std::function<void()>> systems = {
      {"stormo", [&] { throw_if_error(ours.step(kLr)); }},
      {"fused_adamw", [&] { fused.step(); }},
      {"torch_adamw", [&] { plain.step(); }},
      {"roofline", [&] { move_all(fused); }}};
  std::map<std::string, std::vector<double>> times;
  for (int round = -1; round < rounds; ++round) {
    for (const auto& [name, work] : systems) {
      work();  // what another system left in the caches counts for nobody
      const double seconds = seconds_of(work);
      if (round >= 0) times[name].push_back(seconds);
    }
  }
  nlohmann::json out = {{"parameters", problem.count}, {"threads", threads}, {"rounds", rounds}};
  for (const auto& [name, seconds] : times) out["seconds"][name] = bench::median(seconds);
  for (const char* other : {"fused_adamw", "torch_adamw"}) {
    out["against"][other] = spread(times[other], times["stormo"]);
  }
  out["of_roofline"] = spread(times["roofline"], times["stormo"]);
  out["bytes_per_second"] =
      kBytesPerWeight * static_cast<double>(problem.count) / bench::median(times["stormo"]);
  std::printf("%s\n", out.dump().c_str());
}
