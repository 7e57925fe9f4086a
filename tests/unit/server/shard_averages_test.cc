// A shard whose workers push values of the parameters (policy average).
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {
namespace {

constexpr std::int64_t kElements = 20'000;  // three blocks, the last one incomplete
using Values = std::vector<double>;

Values constant(double value) { return Values(static_cast<std::size_t>(kElements), value); }

/// A shard of float64, and a SharedShard for each worker and a server process.
class Shards {
 public:
  explicit Shards(int workers)
      : memory_(transport::MemoryFile::anonymous(std::uint64_t{1} << 24).take_or_throw()) {
    const protocol::PolicyOptions average{.kind = protocol::PolicyOptions::Kind::kAverage};
    for (int w = 0; w <= workers; ++w) {
      all_.push_back(std::make_unique<SharedShard>(
          std::vector<ShardPiece>{
              {.parameter = 0, .begin = 0, .end = kElements, .dtype = DType::kFloat64}},
          // a rule with momentum, which must not be used
          ShardOptions{.workers = workers,
                       .optimizer = {.momentum = 0.9},
                       .policy = protocol::make_policy(average, workers).take_or_throw()},
          w, ShardWait{.policy = transport::wait_policy(workers, 2)}));
    }
    EXPECT_LE(all_[0]->bytes(), memory_.size());
    all_[0]->create(memory_.data());
    for (const auto& shard : all_) shard->attach(memory_.data());
    Values first = constant(7);
    throw_if_error(of(0).set(0, {.weights = reinterpret_cast<std::byte*>(first.data())}));
  }

  SharedShard& of(int worker) { return *all_[static_cast<std::size_t>(worker)]; }
  SharedShard& server() { return *all_.back(); }
  void push(int worker, const Values& values, double weight) {
    const PushedPiece pieces[] = {{.array = values.data()}};
    const std::uint64_t next = of(worker).current_state().worker(worker).pushes;
    (void)of(worker)
        .push({.pieces = pieces, .lr = 1, .weight = weight, .sequence = next})
        .take_or_throw();
  }
  Values read(int worker) {
    const Shard::View view = of(worker).read().take_or_throw();
    const auto* w = reinterpret_cast<const double*>(view.pieces[0]);
    return {w, w + kElements};
  }

 private:
  transport::MemoryFile memory_;
  std::vector<std::unique_ptr<SharedShard>> all_;
};

Values random_values(std::uint64_t seed) {
  Rng rng(seed, "values");
  Values out = constant(0);
  for (double& v : out) v = rng.uniform() - 0.5;
  return out;
}

// Workers push at once. What counts is their order, not that of their arrival.
TEST(ShardAverages, AreSumsInTheOrderOfWorkersBitForBit) {
  constexpr int kWorkers = 4, kRounds = 5;
  Shards shards(kWorkers);
  const auto values_of = [](int round, int worker) {
    return random_values(static_cast<std::uint64_t>(10 * round + worker));
  };
  const auto weight_of = [](int worker) { return 3.0 + 2 * worker; };
  for (int round = 0; round < kRounds; ++round) {
    std::vector<std::thread> threads;
    for (int w = kWorkers - 1; w >= 0; --w) {
      threads.emplace_back([&, w] { shards.push(w, values_of(round, w), weight_of(w)); });
    }
    for (std::thread& t : threads) t.join();
    Values expected = constant(0);
    double whole = 0;
    for (int w = 0; w < kWorkers; ++w) {
      const Values values = values_of(round, w);
      whole += weight_of(w);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double term = values[i] * weight_of(w);
        expected[i] = w == 0 ? term : expected[i] + term;
      }
    }
    for (double& e : expected) e *= 1 / whole;
    for (int w = 0; w < kWorkers; ++w) EXPECT_EQ(shards.read(w), expected) << round;
  }
  EXPECT_EQ(shards.of(0).values(0).updates, 0) << "there is no optimizer";
}

TEST(ShardAverages, OfNoSamplesChangeNothing) {
  Shards shards(2);
  shards.push(0, constant(5), 0);
  shards.push(1, constant(6), 0);
  EXPECT_EQ(shards.read(0), constant(7));
}

TEST(ShardAverages, GoOnWithoutALostWorker) {
  Shards shards(3);
  shards.push(0, constant(2), 1);
  shards.push(1, constant(5), 2);
  throw_if_error(shards.server().evict(2).status());
  EXPECT_EQ(shards.read(0), constant((2 + 5 * 2.0) * (1 / 3.0)));
  EXPECT_EQ(shards.read(1), shards.read(0));
}

}  // namespace
}  // namespace stormo::server
