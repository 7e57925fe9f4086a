// Random operations on random groups against a serial oracle, for as long as you like:
//   soak_test [--seconds N | --minutes N] [--seed N]
// Ranks are threads that join as processes do, in many worlds at once, and then processes: a Store,
// shared memory inside each "host", tcp between them. Ends at the first difference, failure, or
// growth of memory or descriptors; the seed, a new one each time, says it all again.
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include <stormo/base/rng.h>

#include "tests/built.h"
#include "tests/multiproc/process.h"
#include "tests/soak/era.h"

namespace stormo::soak {
namespace {

using namespace std::chrono_literals;
using comm::Communicator;

std::chrono::seconds duration{3};
std::uint64_t seed = std::random_device{}();

const std::vector<std::vector<int>>& layouts() {
  static const std::vector<std::vector<int>> all = {
      {3}, {2, 2}, {1, 1},       {5}, {1, 2}, {8}, {1, 1, 1}, {4, 4},   {2, 1, 2},
      {2}, {3, 3}, {1, 1, 1, 1}, {4}, {6},    {7}, {2, 5},    {3, 2, 3}};
  return all;
}

struct World {
  std::vector<int> ranks_per_host;
  std::unique_ptr<transport::StoreServer> store;
  std::vector<std::unique_ptr<Communicator>> ranks;
};

/// Calls body(rank) for every rank, each in a thread.
template <class F>
void on_each_rank(int n, F body) {
  std::vector<std::thread> threads;
  for (Rank r = 0; r < n; ++r) threads.emplace_back([r, &body] { body(r); });
  for (std::thread& t : threads) t.join();
}

World make_world(const std::vector<int>& ranks_per_host) {
  World w;
  w.ranks_per_host = ranks_per_host;
  const auto secret = transport::Secret::random();
  transport::StoreServer::Options options;
  options.listen = "tcp:127.0.0.1";
  options.secret = secret;
  auto store = transport::StoreServer::start(options);
  EXPECT_TRUE(store.ok()) << store.status().to_string();
  w.store = std::move(*store);
  const auto all = places(ranks_per_host, w.store->address(), secret);
  w.ranks.resize(all.size());
  on_each_rank(static_cast<int>(all.size()), [&](Rank r) {
    const auto i = static_cast<std::size_t>(r);
    auto joined = comm::join(all[i]);
    EXPECT_TRUE(joined.ok()) << joined.status().to_string();
    if (joined.ok()) w.ranks[i] = std::move(*joined);
  });
  return w;
}

struct Footprint {
  long kilobytes = 0;        // but for Arenas, which keep what was once used at the same time
  long arena_kilobytes = 0;  // in use by the groups: their copies of private buffers
  int descriptors = 0;
};

Footprint footprint(const std::vector<World>& worlds) {
  ::malloc_trim(0);  // freed memory is no growth
  Footprint f;
  long touched = 0;
  for (const World& w : worlds) {
    for (const auto& rank : w.ranks) {
      const auto stats = rank->arena().stats();
      touched += static_cast<long>(stats.touched_bytes >> 10);
      f.arena_kilobytes += static_cast<long>(stats.in_use_bytes >> 10);
    }
  }
  std::ifstream in("/proc/self/smaps_rollup");
  for (std::string word; in >> word;) {
    if (word == "Pss:") {
      in >> f.kilobytes;  // proportional: what ranks map twice counts once
      f.kilobytes -= touched;
      break;
    }
  }
  f.descriptors = open_descriptors();
  return f;
}

std::string to_text(const Footprint& f) {
  return std::to_string(f.kilobytes >> 10) + " MiB without arenas, " +
         std::to_string(f.arena_kilobytes >> 10) + " MiB in use in arenas, " +
         std::to_string(f.descriptors) + " descriptors";
}

TEST(Soak, RandomOperationsAgreeWithTheSerialOracle) {
  std::printf("seed %llu, %lld s\n", static_cast<unsigned long long>(seed),
              static_cast<long long>(duration.count()));
  const bool is_long = duration >= 60s;
  const std::size_t num_worlds = is_long ? layouts().size() : 4;
  const std::int64_t max_count = is_long ? 262147 : 20011;
  std::vector<World> worlds;
  while (worlds.size() < num_worlds) {
    worlds.push_back(make_world(layouts()[worlds.size()]));
    ASSERT_FALSE(HasFailure());
    on_each_rank(static_cast<int>(worlds.back().ranks.size()), [&](Rank r) {
      EXPECT_EQ(run_greatest(*worlds.back().ranks[static_cast<std::size_t>(r)], seed, max_count),
                "")
          << "seed " << seed;
    });
    ASSERT_FALSE(HasFailure());
  }
  const auto start = std::chrono::steady_clock::now();
  Footprint warm;
  std::uint64_t era = 0;
  auto report_at = start;
  for (auto now = start; now - start < duration || warm.descriptors == 0;
       now = std::chrono::steady_clock::now()) {
    if (warm.descriptors == 0 && now - start > duration / 2) warm = footprint(worlds);
    Rng rng(seed, "soak world", era);
    World& w = worlds[rng.below(worlds.size())];
    const int n = static_cast<int>(w.ranks.size());
    on_each_rank(n, [&](Rank r) {
      EXPECT_EQ(run_era(*w.ranks[static_cast<std::size_t>(r)], seed, era, max_count), "")
          << "era " << era << ", seed " << seed;
    });
    ASSERT_FALSE(HasFailure());
    ++era;
    if (is_long && now >= report_at) {
      const Footprint f = footprint(worlds);
      std::printf("%4lld s: %llu operations on %zu worlds, %s\n",
                  static_cast<long long>((now - start) / 1s),
                  static_cast<unsigned long long>(era * kOperationsPerEra), worlds.size(),
                  to_text(f).c_str());
      std::fflush(stdout);
      report_at = now + 30s;
    }
  }
  const Footprint end = footprint(worlds);
  std::printf("%llu operations\nhalf-way: %s\nend:      %s\n",
              static_cast<unsigned long long>(era * kOperationsPerEra), to_text(warm).c_str(),
              to_text(end).c_str());
  EXPECT_LE(end.descriptors, warm.descriptors);
  EXPECT_LE(end.kilobytes, warm.kilobytes + kMaxGrowthKilobytes);
  EXPECT_LE(end.arena_kilobytes,
            warm.arena_kilobytes + warm.arena_kilobytes / 4 + kMaxGrowthKilobytes);
  for (World& w : worlds) {
    on_each_rank(static_cast<int>(w.ranks.size()), [&](Rank r) {
      const Status left = w.ranks[static_cast<std::size_t>(r)]->finalize(Deadline::after(60s));
      EXPECT_TRUE(left.ok()) << left.to_string();
    });
  }
}

TEST(Soak, RanksThatAreProcessesToo) {
  const bool is_long = duration >= 60s;
  const auto secret = transport::Secret::random();
  std::vector<std::unique_ptr<transport::StoreServer>> stores;
  std::vector<std::unique_ptr<testing::Process>> ranks;
  for (const std::string hosts : {"3", "2,2"}) {
    transport::StoreServer::Options options;
    options.listen = "tcp:127.0.0.1";
    options.secret = secret;
    stores.push_back(transport::StoreServer::start(options).take_or_throw());
    const int n = hosts == "3" ? 3 : 4;
    for (int r = 0; r < n; ++r) {
      ranks.push_back(std::make_unique<testing::Process>(
          std::vector<std::string>{testing::built("soak_rank"), std::to_string(r), hosts,
                                   stores.back()->address().text, std::to_string(seed),
                                   std::to_string(duration / 1s), is_long ? "262147" : "20011"},
          std::vector<std::string>{"STORMO_TEST_SECRET=" + secret.to_hex()}));
    }
  }
  for (const auto& rank : ranks) {
    const int status = rank->wait(duration + 60s);
    EXPECT_EQ(status, 0) << rank->out() << rank->err() << "\nseed " << seed;
    EXPECT_GT(testing::count(rank->out(), " operations"), 0);
    std::printf("%s", rank->out().c_str());
  }
}

}  // namespace
}  // namespace stormo::soak

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    const std::uint64_t value = std::stoull(argv[i + 1]);
    if (word == "--seconds") stormo::soak::duration = std::chrono::seconds(value);
    if (word == "--minutes") stormo::soak::duration = std::chrono::minutes(value);
    if (word == "--seed") stormo::soak::seed = value;
  }
  return RUN_ALL_TESTS();
}
