// Seeded random values must survive their text form; mutated text must be refused with a place, or
// be the text of some value.
#include <gtest/gtest.h>
#include <stormo/base/rng.h>
#include <stormo/plan/limits.h>
#include <stormo/plan/schedule.h>
#include <stormo/plan/step_plan.h>
#include <stormo/plan/topology.h>

#include <array>
#include <bit>
#include <cmath>
#include <regex>
#include <string>

namespace stormo::plan {
namespace {

int below(Rng& rng, int bound) {
  return static_cast<int>(rng.below(static_cast<std::uint64_t>(bound)));
}

std::string random_name(Rng& rng) {
  std::string name;
  for (int i = below(rng, 12); i > 0; --i) name += static_cast<char>(rng.below(256));
  return name;
}

Schedule random_schedule(Rng& rng) {
  Schedule s;
  s.name = random_name(rng);
  s.ranks = 1 + below(rng, 40);
  s.chunks = 1 + below(rng, 40);
  s.goal = {kGoalKinds[rng.below(kGoalKinds.size())], below(rng, s.ranks)};
  s.rounds.resize(rng.below(5));
  for (Round& round : s.rounds) {
    for (int i = below(rng, 6); i > 0; --i) {
      round.push_back({below(rng, s.ranks), below(rng, s.ranks), below(rng, s.chunks),
                       static_cast<ReceiveOp>(below(rng, 2))});
    }
  }
  return s;
}

std::vector<Placement> random_placements(Rng& rng) {
  constexpr std::array kAtRest = {Placement::kReplicate, Placement::kShard, Placement::kShared};
  std::vector<Placement> out;
  for (int i = below(rng, 4); i > 0; --i) out.push_back(kAtRest[rng.below(kAtRest.size())]);
  return out;
}

SegmentShape random_segment(Rng& rng) {
  SegmentShape s{.name = random_name(rng),
                 .parameters = {},
                 .flops_per_sample = static_cast<std::int64_t>(rng.next_u64() >> 1),
                 .borrowed = {}};
  for (int i = below(rng, 3); i > 0; --i) s.borrowed.push_back(below(rng, 9));
  for (int i = below(rng, 3); i > 0; --i) {
    s.parameters.push_back({.name = random_name(rng),
                            .elements = static_cast<std::int64_t>(rng.next_u64() >> 1),
                            .dtype = kDTypes[rng.below(kDTypes.size())],
                            .trainable = below(rng, 2) == 0});
  }
  return s;
}

StepPlan random_step_plan(Rng& rng) {
  StepPlan p;
  p.strategy = random_name(rng);
  for (int i = below(rng, 4); i > 0; --i) {
    p.mesh.axes.push_back({random_name(rng) + std::to_string(i), 1 + below(rng, 16)});
  }
  p.micro_batches = 1 + below(rng, 3);
  p.scaled_loss = below(rng, 2) == 0;
  p.clipped = below(rng, 2) == 0;
  p.chosen = below(rng, 2) == 0;
  for (int i = below(rng, 4); i > 0; --i) p.model.segments.push_back(random_segment(rng));
  p.parameters = random_placements(rng);
  p.frozen = random_placements(rng);
  p.optimizer_state = random_placements(rng);
  for (int i = below(rng, 8); i > 0; --i) {
    Action a{.kind = static_cast<ActionKind>(rng.below(kNumActionKinds))};
    if (row_of(a.kind).range != RangeOf::kNothing) {
      a.range.first = below(rng, 100);
      a.range.last = a.range.first + below(rng, 100);
    }
    if (row_of(a.kind).micro_batch) a.micro_batch = below(rng, p.micro_batches);
    if (row_of(a.kind).averages_slot) a.slot = below(rng, kMaxSlots);
    for (const Axis& axis : p.mesh.axes) {
      if (below(rng, 3) == 0) a.axes.push_back(axis.name);
    }
    a.asynchronous = below(rng, 4) == 0;
    p.actions.push_back(a);
  }
  return p;
}

double random_real(Rng& rng) {
  const double x = std::fabs(std::bit_cast<double>(rng.next_u64()));
  return std::isfinite(x) ? x : rng.uniform();
}

Topology random_topology(Rng& rng) {
  Topology t;
  for (int i = 1 + below(rng, 5); i > 0; --i) t.host_sizes.push_back(1 + below(rng, 9));
  t.intra = {random_real(rng), random_real(rng)};
  t.inter = {random_real(rng), random_real(rng)};
  t.reduce_seconds_per_byte = random_real(rng);
  return t;
}

std::string mutate(std::string text, Rng& rng) {
  static constexpr std::string_view kAlphabet = "0123456789>+=c: \n\"\\x#-rsv.\0\xff";
  for (int i = 1 + below(rng, 3); i > 0 && !text.empty(); --i) {
    const std::size_t at = rng.below(text.size());
    const char c = kAlphabet[rng.below(kAlphabet.size())];
    switch (rng.below(5)) {
      case 0: text[at] = c; break;
      case 1: text.insert(at, 1, c); break;
      case 2: text.erase(at, 1 + rng.below(4)); break;
      case 3: text.insert(at, text.substr(rng.below(text.size()), rng.below(30))); break;
      default: text.resize(at); break;
    }
  }
  return text;
}

template <class Value, class Parse>
void fuzz(const char* purpose, Value (*random)(Rng&), Parse parse) {
  static const std::regex kPlace("[0-9]+:[0-9]+: [^]+");
  int refused = 0, accepted = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    Rng rng(seed, purpose);
    const Value value = random(rng);
    const std::string text = to_text(value);
    const auto parsed = parse(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string() << "\n" << text;
    ASSERT_EQ(*parsed, value) << text;
    ASSERT_EQ(hash(*parsed), hash(value));
    ASSERT_EQ(to_text(*parsed), text);
    for (int i = 0; i < 4; ++i) {
      const std::string broken = mutate(text, rng);
      const auto second = parse(broken);
      if (!second.ok()) {
        ++refused;
        ASSERT_EQ(second.status().code(), Code::kBadPlan);
        ASSERT_TRUE(std::regex_match(second.status().message(), kPlace))
            << second.status().message();
        continue;
      }
      ++accepted;
      const auto third = parse(to_text(*second));
      ASSERT_TRUE(third.ok()) << third.status().to_string() << "\n" << broken;
      ASSERT_EQ(*third, *second) << broken;
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(accepted, 100);
}

TEST(Fuzz, Schedules) { fuzz("fuzz.schedule", random_schedule, parse_schedule); }
TEST(Fuzz, StepPlans) { fuzz("fuzz.step_plan", random_step_plan, parse_step_plan); }
TEST(Fuzz, Topologies) { fuzz("fuzz.topology", random_topology, parse_topology); }

TEST(Fuzz, RandomBytesAreRefused) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed, "fuzz.bytes");
    std::string bytes;
    for (int i = below(rng, 60); i > 0; --i) bytes += static_cast<char>(rng.below(256));
    EXPECT_FALSE(parse_schedule(bytes).ok());
    EXPECT_FALSE(parse_step_plan(bytes).ok());
    EXPECT_FALSE(parse_topology(bytes).ok());
  }
}

}  // namespace
}  // namespace stormo::plan
