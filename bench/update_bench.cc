// What an update of AdamW takes that another process can end (optim/update_lane.h), over one that
// none can: on the same memory, in turns. One line of JSON:
//
//   update_bench [ROUNDS] [WEIGHTS]
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include <bench/statistics.h>
#include <stormo/optim/update.h>
#include <stormo/optim/update_lane.h>

namespace {

using namespace stormo;

const optim::Options kOptions{
    .kind = optim::Options::Kind::kAdamW, .lr = 1e-3, .weight_decay = 0.01};

/// A rank's part of the parameters of a host on which there are two.
class Part {
 public:
  explicit Part(std::int64_t weights) : count_(weights) {
    for (std::vector<float>& array : arrays_) array.assign(static_cast<std::size_t>(weights), 0);
    for (std::vector<float>& gradient : gradients_) {
      for (std::int64_t i = 0; i < weights; ++i) {
        gradient.push_back(static_cast<float>(i * 7919 % 1000) / 1000 - 0.5F);
      }
      terms_[terms_used_++] = {.data = gradient.data(), .scale = 0.5};
    }
  }

  void update() { optim::update(kOptions, next_step(), piece()); }
  void update_by_lane() {
    optim::UpdateLane lane(&memory_);
    const optim::UpdateStep step = next_step();
    lane.claim(1);
    lane.run({.number = static_cast<std::uint64_t>(step.number),
              .blocks = 1,
              .changes = [this](std::uint32_t /*block*/) { return changes(); },
              .perform =
                  [&](std::uint32_t /*block*/, optim::UpdateJournal& journal) {
                    optim::journaled_update_of(kOptions, DType::kFloat32)(kOptions, step, piece(),
                                                                          journal);
                  }});
    lane.leave();
  }

 private:
  optim::UpdateStep next_step() { return {.lr = kOptions.lr, .number = ++number_}; }
  optim::UpdateRange piece() {
    return {.end = count_,
            .weights = arrays_[0].data(),
            .gradients = terms_,
            .slots = {arrays_[1].data(), arrays_[2].data()}};
  }
  optim::UpdateJournal::Changes changes() {
    optim::UpdateJournal::Changes out;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = std::as_writable_bytes(std::span(arrays_[i]));
    }
    return out;
  }

  std::int64_t count_;
  std::array<std::vector<float>, 1 + optim::kMaxSlots> arrays_;
  std::array<std::vector<float>, 2> gradients_;
  std::array<optim::GradientTerm, 2> terms_;
  std::size_t terms_used_ = 0;
  std::int64_t number_ = 0;
  optim::UpdateLane::Memory memory_{};
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1000;
  const std::int64_t weights = argc > 2 ? std::atoll(argv[2]) : 334'853;  // half of mnist_mlp
  if (rounds < 1 || weights < 1) {
    std::fprintf(stderr, "usage: update_bench [ROUNDS] [WEIGHTS]\n");
    return 2;
  }
  Part part(weights);
  const auto plain = [&] { part.update(); };
  const auto by_lane = [&] { part.update_by_lane(); };
  std::vector<double> plain_times, lane_times;
  for (int round = -2; round < rounds; ++round) {
    double before = 0, after = 0;
    if (round % 2 == 0) {
      before = seconds_of(plain);
      after = seconds_of(by_lane);
    } else {
      after = seconds_of(by_lane);
      before = seconds_of(plain);
    }
    if (round < 0) continue;
    plain_times.push_back(before);
    lane_times.push_back(after);
  }
  std::vector<double> ratios;
  for (std::size_t i = 0; i < plain_times.size(); ++i) {
    ratios.push_back(lane_times[i] / plain_times[i]);
  }
  const nlohmann::json out = {{"weights", weights},
                              {"rounds", rounds},
                              {"seconds", bench::median(plain_times)},
                              {"seconds_by_lane", bench::median(lane_times)},
                              {"ratio", bench::median(ratios)},
                              {"ratio_p10", bench::percentile(ratios, 0.1)},
                              {"ratio_p90", bench::percentile(ratios, 0.9)}};
  std::printf("%s\n", out.dump().c_str());
}
