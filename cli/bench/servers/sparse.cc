#include <cli/bench/servers/sparse.h>

#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include <bench/measure.h>
#include <bench/statistics.h>
#include <cli/bench/report.h>
#include <cli/bench/servers/sparse_samples.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/server/shard/in_place_shard.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::cli {
namespace {

using server::HostShard;
using server::Shard;

constexpr double kRate = 0.05;

/// One worker: the logistic regression of its samples, on a shard.
class SparseWorker {
 public:
  SparseWorker(std::unique_ptr<HostShard> shard, const SparseSamples& samples)
      : shard_(std::move(shard)), samples_(samples) {}

  HostShard& shard() { return *shard_; }

  /// Reads, computes the gradient of the next sample, and pushes it, under `lock` if there is one.
  Status step(std::mutex* lock) {
    STORMO_ASSIGN_OR_RETURN(const Shard::View view, shard_->read());
    const SparseSamples::Sample sample = samples_.sample(next_++ % samples_.size());
    const float error = probability(view, sample) - sample.label;
    std::array<float, kNonZeros> gradient;
    for (std::size_t i = 0; i < kNonZeros; ++i) gradient[i] = error * sample.values[i];
    const server::PushedPiece rows{
        .rows = {.indices = sample.features, .row_length = 1, .values = gradient.data()}};
    const std::unique_lock held =
        lock == nullptr ? std::unique_lock<std::mutex>() : std::unique_lock(*lock);
    const server::PushedGradient push{.pieces = {&rows, 1}, .lr = kRate, .sequence = sequence_++};
    return shard_->push(push).status();
  }

  /// Mean log loss of its samples. Weights of zero give log 2.
  Result<double> loss() {
    STORMO_ASSIGN_OR_RETURN(const Shard::View view, shard_->look());
    double sum = 0;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      const SparseSamples::Sample sample = samples_.sample(i);
      const double p = probability(view, sample);
      sum -= std::log(sample.label > 0 ? p : 1 - p);
    }
    return sum / static_cast<double>(samples_.size());
  }
  std::uint64_t pushes() const { return sequence_; }

 private:
  static float probability(const Shard::View& view, const SparseSamples::Sample& sample) {
    float* weights = reinterpret_cast<float*>(const_cast<std::byte*>(view.pieces[0]));
    float sum = 0;
    for (std::size_t i = 0; i < kNonZeros; ++i) {
      const std::atomic_ref weight(weights[sample.features[i]]);
      sum += sample.values[i] * weight.load(std::memory_order_relaxed);
    }
    return 1 / (1 + std::exp(-sum));
  }

  std::unique_ptr<HostShard> shard_;
  const SparseSamples& samples_;
  std::size_t next_ = 0;
  std::uint64_t sequence_ = 0;
};

/// A shard of kFeatures weights, and its workers.
struct SparseServer {
  transport::MemoryFile memory;
  std::vector<SparseWorker> workers;
};

using MakeShard = std::function<std::unique_ptr<HostShard>(int worker)>;

Result<SparseServer> make_server(const std::vector<SparseSamples>& samples, const MakeShard& make) {
  std::vector<SparseWorker> workers;
  for (std::size_t w = 0; w < samples.size(); ++w)
    workers.emplace_back(make(static_cast<int>(w)), samples[w]);
  STORMO_ASSIGN_OR_RETURN(transport::MemoryFile memory,
                          transport::MemoryFile::anonymous(workers[0].shard().bytes()));
  workers[0].shard().create(memory.data());
  for (SparseWorker& w : workers) w.shard().attach(memory.data());
  return SparseServer{std::move(memory), std::move(workers)};
}

/// The first `count` workers make steps for so long, each on a thread; returns how many all make
/// per second.
Result<double> steps_per_second(int count, double seconds,
                                const std::function<Status(std::size_t worker)>& step) {
  constexpr int kStepsPerLook = 8;  // at the clock
  std::atomic<int> ready{0};
  const auto workers = static_cast<std::size_t>(count);
  std::vector<double> rates(workers);
  std::vector<Status> failed(workers);
  const auto work = [&](std::size_t w) {
    ++ready;
    while (ready < count) std::this_thread::yield();
    const double begin = bench::now();
    double end = begin, steps = 0;
    for (; end - begin < seconds && failed[w].ok(); end = bench::now()) {
      for (int i = 0; i < kStepsPerLook && failed[w].ok(); ++i, ++steps) failed[w] = step(w);
    }
    rates[w] = steps / (end - begin);
  };
  std::vector<std::thread> threads;
  for (std::size_t w = 0; w < workers; ++w) threads.emplace_back(work, w);
  for (std::thread& t : threads) t.join();
  double sum = 0;
  for (std::size_t w = 0; w < workers; ++w) {
    STORMO_RETURN_IF_ERROR(failed[w]);
    sum += rates[w];
  }
  return sum;
}

/// Samples per second of all workers, in each round: in place, by one worker alone, with a mutex
/// around each push, and with a version for each push.
struct SparseFigures {
  std::vector<double> in_place, alone, mutex, versions;
  bool verified = false;
};

Result<bool> has_learned(SparseServer& server) {
  bool right = true;
  for (SparseWorker& w : server.workers) {
    STORMO_ASSIGN_OR_RETURN(const double loss, w.loss());
    right = right && loss < std::log(2.0);  // not if it is no number
  }
  return right;
}

Result<bool> has_counted_pushes(SparseServer& server) {
  std::uint64_t pushes = 0;
  for (const SparseWorker& w : server.workers) pushes += w.pushes();
  STORMO_ASSIGN_OR_RETURN(const protocol::ShardState state, server.workers[0].shard().state());
  return state.version == pushes;
}

Result<SparseFigures> measure_sparse(const BenchServersOptions& options, int workers,
                                     FeatureKind kind) {
  std::vector<SparseSamples> samples;
  for (int w = 0; w < workers; ++w) samples.emplace_back(kind, static_cast<std::uint64_t>(w));
  STORMO_ASSIGN_OR_RETURN(const auto policy, protocol::make_policy({}, workers));
  const server::ShardOptions shard{.workers = workers, .optimizer = {}, .policy = policy};
  const std::vector<server::ShardPiece> pieces = {{.end = kFeatures}};
  const auto wait = transport::wait_policy(workers, transport::usable_cores());
  STORMO_ASSIGN_OR_RETURN(SparseServer in_place, make_server(samples, [&](int w) {
                            return std::make_unique<server::InPlaceShard>(pieces, shard, w);
                          }));
  STORMO_ASSIGN_OR_RETURN(SparseServer versions, make_server(samples, [&](int w) {
                            return std::make_unique<server::SharedShard>(
                                pieces, shard, w, server::ShardWait{.policy = wait});
                          }));
  std::mutex lock;
  SparseFigures figures;
  for (int round = 0; round < options.rounds; ++round) {
    const auto measure = [&](std::vector<double>& into, int count, const auto& step) {
      const auto rate = steps_per_second(count, options.seconds, step);
      if (rate.ok()) into.push_back(*rate);
      return rate.status();
    };
    const auto free = [&](std::size_t w) { return in_place.workers[w].step(nullptr); };
    STORMO_RETURN_IF_ERROR(measure(figures.alone, 1, free));
    STORMO_RETURN_IF_ERROR(measure(figures.in_place, workers, free));
    STORMO_RETURN_IF_ERROR(measure(figures.mutex, workers,
                                   [&](std::size_t w) { return in_place.workers[w].step(&lock); }));
    STORMO_RETURN_IF_ERROR(measure(figures.versions, workers, [&](std::size_t w) {
      return versions.workers[w].step(nullptr);
    }));
  }
  // versions are slow, and may have made too few steps to be better than weights of zero
  STORMO_ASSIGN_OR_RETURN(figures.verified, has_learned(in_place));
  for (SparseServer* server : {&in_place, &versions}) {
    STORMO_ASSIGN_OR_RETURN(const bool right, has_counted_pushes(*server));
    figures.verified = figures.verified && right;
  }
  return figures;
}

const char* name_of(FeatureKind kind) {
  return kind == FeatureKind::kUniform ? "uniform" : "skewed";
}

std::string figures_json(const SparseFigures& f, int workers, FeatureKind kind) {
  nlohmann::ordered_json out = {{"op", "sparse"},
                                {"workers", workers},
                                {"features", kFeatures},
                                {"non_zeros", kNonZeros},
                                {"distribution", name_of(kind)},
                                {"rounds", f.in_place.size()},
                                {"verified", f.verified}};
  out["in_place"] = {{"samples_per_s", bench::median(f.in_place)}};
  const auto add = [&](const char* name, const std::vector<double>& rates) {
    out[name] = {{"samples_per_s", bench::median(rates)}};
    bench::add_spread(out[name], "ratio", bench::ratios(f.in_place, rates));
  };
  add("one_worker", f.alone);
  add("mutex", f.mutex);
  add("versions", f.versions);
  return out.dump();
}

std::string columns_of_sparse() {
  return fmt::format("{:>10}  {:>10}  {:>24}  {:>24}  {:>24}", "features", "samples/s",
                     "over 1 worker", "over a mutex", "over versions");
}

std::string line(const SparseFigures& f, FeatureKind kind) {
  std::string out = fmt::format("{:>10}  {:>10.4g}", name_of(kind), bench::median(f.in_place));
  for (const auto* other : {&f.alone, &f.mutex, &f.versions}) {
    const bench::Spread s = bench::ratios(f.in_place, *other);
    const std::string ratio = fmt::format("{:.3g} ({:.3g}-{:.3g})", s.median, s.min, s.max);
    out += fmt::format("  {:>24}", ratio);
  }
  return out + (f.verified ? "" : "  WRONG");
}

}  // namespace

Result<bool> run_sparse_workers(const BenchServersOptions& options, int workers, bool json) {
  const std::string heading =
      json
          ? ""
          : fmt::format("{} workers, one shard of {} weights, {} non-zeros a sample; {} rounds\n{}",
                        workers, kFeatures, kNonZeros, options.rounds, columns_of_sparse());
  const auto measure = [&](FeatureKind kind) -> Result<Report> {
    STORMO_ASSIGN_OR_RETURN(const SparseFigures f, measure_sparse(options, workers, kind));
    return Report{json ? figures_json(f, workers, kind) : line(f, kind), f.verified};
  };
  return print_each<FeatureKind>(/*speaks=*/true, heading,
                                 {FeatureKind::kUniform, FeatureKind::kSkewed}, measure);
}

}  // namespace stormo::cli
